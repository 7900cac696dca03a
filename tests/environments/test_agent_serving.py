"""The file of an agent after training: the same success against a server of the checkpoint."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from alignopsd_trl.commands.cli import main
from alignopsd_trl.environments import load
from alignopsd_trl.environments.adapters import Served
from alignopsd_trl.results.play import evaluate


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """That of ``transformers serve policy``, with a fresh policy that wins most of the tasks."""
    for name in ("fastapi", "uvicorn"):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    main(["new", "numbers_to_find", "--agent"])
    main(["demonstrate", "numbers_to_find", "--episodes", "256"])
    main(["warm_start", "numbers_to_find", "--max_steps", "120", "--tasks", "0"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [Path(sys.executable).with_name("transformers"), "serve", "policy", "--port", port, "--device", "cpu"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while server.poll() is None and time.monotonic() < until:
        try:
            httpx.get(f"http://localhost:{port}/health")
            break
        except httpx.HTTPError:
            time.sleep(0.5)
    yield f"http://localhost:{port}/v1"
    server.terminate()
    server.wait()


@pytest.mark.full
def test_a_served_policy_wins_what_it_wins_in_an_evaluation(address: str) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained("policy"), AutoTokenizer.from_pretrained("policy")
    suite = load("numbers_to_find")
    _, played = evaluate(model, tokenizer, suite.factory, suite.panel("test"), temperature=0, max_completion_length=32)
    client, agent = Served(address, temperature=0, max_tokens=32), sys.modules["numbers_to_find"].agent
    served = [asyncio.run(agent(one.row, client)) for one in played]
    assert served == [float(bool(one.won)) for one in played] and 0 < sum(served)
