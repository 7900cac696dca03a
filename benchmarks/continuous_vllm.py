"""vLLM under the player, with each turn taken together and with nobody waiting: are the episodes the same, and what do
both take? The shipped WebShop policy in float32, an engine in this process and a server on loopback that two processes
ask at the same time. Runs where vLLM is installed; `.ci/vllm` says how on a CPU.

    python benchmarks/continuous_vllm.py --output vllm.json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx
from transformers import AutoTokenizer

from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.environments import open_batch
from alignopsd_trl.environments.loading import load
from alignopsd_trl.experimental.server import Server, ServerSampler
from alignopsd_trl.experimental.vllm import SteppingSampler
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.rollout.prompts import Renderer
from alignopsd_trl.rollout.sampler import Continuous, Request, Response
from alignopsd_trl.rollout.siblings import episode_seeds

POLICY, SUITE = str(resolve_model("tiny")), "webshop_tiny"
TOKENS, LENGTH, TURNS = 48, 400, 8
STEP_TOKENS = 65536  # whole prompts in a step: rewinding a seed between two pieces of one breaks vLLM's CPU build
WAYS = ("lockstep", "continuous")


class InLockstep:
    """A sampler's requests, with their seeds, as one batch of all live episodes."""

    waits_for_all = True

    def __init__(self, sampler: Continuous):
        self._sampler = sampler
        self._asked: list[tuple[Request, Future[Response]]] = []

    @property
    def waiting(self) -> int:
        return len(self._asked)

    def submit(self, request: Request) -> Future[Response]:
        self._asked.append((request, Future()))
        return self._asked[-1][1]

    def advance(self) -> bool:
        asked, self._asked = self._asked, []
        left = [self._sampler.submit(request) for request, _ in asked]
        for future, (_, own) in zip(left, asked, strict=True):
            while not future.done():
                if not self._sampler.advance():
                    wait([future], 1.0, FIRST_COMPLETED)
            own.set_result(future.result())
        return bool(asked)

    def drop(self) -> None:
        self._sampler.drop()


def play(sampler: Any, episodes: int, first: int = 0) -> dict[str, Any]:
    """Seconds, and the responses of all turns with their log-probs."""
    tokenizer, suite = AutoTokenizer.from_pretrained(POLICY), load(SUITE)
    rows = [row for row in suite.panel("test").rows for _ in range(2)][first : first + episodes]
    batch = open_batch(suite.factory, len(rows))
    renderer = Renderer(tokenizer, batch.prompt, PlayOptions(LENGTH - TOKENS))
    player = Player(batch, renderer, sampler, tokenizer, [tokenizer.eos_token_id], max_turns=TURNS, privileged=False)
    seeds = [episode_seeds(row["task_id"], 0, place % 2) for place, row in enumerate(rows)]
    began = time.perf_counter()
    try:
        played = player.play(rows, seeds, [row["task_id"] for row in rows])
    finally:
        batch.close()
    took = time.perf_counter() - began
    turns = [[(list(turn.response_ids), turn.sampling_log_probs) for turn in one.turns] for one in played]
    return {"seconds": took, "turns": turns, "failed": sum(one.failed for one in played)}


class Silent(Continuous):
    """Answers at once: what environments load when they are first asked is no part of the measurement."""

    waiting = 0

    def submit(self, request: Request) -> Future[Response]:
        future: Future[Response] = Future()
        future.set_result(Response([5], [0.0]))
        return future

    def advance(self) -> bool:
        return False

    def drop(self) -> None:
        """Nothing waits."""


def compared(one: list[Any], other: list[Any]) -> dict[str, float]:
    """How many episodes have the same tokens, and how far their log-probs are apart."""
    same = [(left, right) for left, right in zip(one, other, strict=True) if tokens(left) == tokens(right)]
    apart = [
        abs(here - there)
        for left, right in same
        for (_, mine), (_, others) in zip(left, right, strict=True)
        for here, there in zip(mine, others, strict=True)
    ]
    return {"episodes": len(one), "same": len(same), "furthest_log_prob": max(apart, default=0.0)}


def tokens(turns: list[Any]) -> list[list[int]]:
    return [ids for ids, _ in turns]


def summed(found: dict[str, Any]) -> dict[str, Any]:
    """Of both ways: how they compare, without the turns."""
    turns = [found[way].pop("turns") for way in WAYS]
    ratios = {f"{name}_ratio": found["lockstep"][key] / found["continuous"][key] for name, key in NUMBERS}
    return found | ratios | compared(*turns)


NUMBERS = (("step", "steps"), ("wall", "seconds"))


# An engine in this process


def colocated(episodes: int, temperature: float, engine: Any) -> dict[str, Any]:
    from trl.generation.vllm_generation import extract_logprobs
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    def parameters(seed: int) -> Any:
        kind = RequestOutputKind.FINAL_ONLY
        return SamplingParams(temperature=temperature, max_tokens=TOKENS, logprobs=0, seed=seed, output_kind=kind)

    def read(output: Any) -> Response:
        return Response(list(output.outputs[0].token_ids), [one[0] for one in extract_logprobs([output])[0][0]])

    play(Silent(), episodes)
    found: dict[str, Any] = {}
    for way in WAYS:
        before = engine.steps
        sampler = SteppingSampler(engine, parameters, read)
        found[way] = play(sampler if way == "continuous" else InLockstep(sampler), episodes)
        found[way]["steps"] = engine.steps - before
        if engine.has_unfinished_requests():
            raise RuntimeError("requests were left in the engine")
    return summed(found)


class Counting:
    """An engine that counts its steps."""

    def __init__(self, engine: Any):
        self._engine, self.steps = engine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> Any:
        self.steps += 1
        return self._engine.step()


def engine() -> Counting:
    """As TRL makes it, in float32."""
    from vllm import LLM

    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port())}
    os.environ.update(place)
    llm = LLM(
        POLICY,
        distributed_executor_backend="external_launcher",
        logprobs_mode="processed_logprobs",
        dtype="float32",
        enforce_eager=True,
        max_model_len=LENGTH,
        max_num_seqs=256,
        max_num_batched_tokens=STEP_TOKENS,
    )
    return Counting(llm.llm_engine)


def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


# A server, and two processes that ask it


def served(episodes: int, temperature: float, address: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for way in WAYS:
        before, folder = steps_of(address), Path(mkdtemp())
        command = [sys.executable, __file__, "--client", address, way, str(temperature), str(folder)]
        clients = [subprocess.Popen([*command, str(episodes), str(one * episodes)]) for one in range(2)]
        if any([one.wait() for one in clients]):
            raise RuntimeError("a client failed")
        parts = [json.loads((folder / f"{one * episodes}.json").read_text()) for one in range(2)]
        found[way] = {"seconds": max(one["seconds"] for one in parts), "failed": sum(one["failed"] for one in parts)}
        found[way] |= {"turns": [turns for one in parts for turns in one["turns"]], "steps": steps_of(address) - before}
    return summed(found)


def client(address: str, way: str, temperature: float, folder: Path, episodes: int, first: int) -> None:
    """One of two processes: waits for the other, and plays."""
    engine = Server(address, episodes)
    sampler = ServerSampler(engine, {"temperature": temperature, "max_tokens": TOKENS, "logprobs": 0})
    play(Silent(), episodes, first)
    (folder / f"{first}.ready").touch()
    while len(list(folder.glob("*.ready"))) < 2:
        time.sleep(0.01)
    try:
        found = play(sampler if way == "continuous" else InLockstep(sampler), episodes, first)
    finally:
        engine.close()
    (folder / f"{first}.json").write_text(json.dumps(found))


def steps_of(address: str) -> int:
    """Steps of the server's engine so far."""
    found = re.search(r"vllm:iteration_tokens_total_count\{.*?\} ([\d.e+]+)", httpx.get(f"{address}/metrics").text)
    return round(float(found[1])) if found else 0


def server(log: Path) -> tuple[subprocess.Popen, str]:
    number = port()
    options = f"--port {number} --dtype float32 --max-model-len {LENGTH} --enforce-eager --max-logprobs -1"
    options += f" --max-num-seqs 256 --max-num-batched-tokens {STEP_TOKENS}"
    command = [str(Path(sys.executable).with_name("vllm")), "serve", POLICY, *options.split()]
    process = subprocess.Popen(
        [*command, "--logprobs-mode", "processed_logprobs"], stdout=log.open("w"), stderr=subprocess.STDOUT
    )
    return process, f"http://127.0.0.1:{number}"


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--client"]:
        address, way, temperature, folder, episodes, first = arguments[1:]
        client(address, way, float(temperature), Path(folder), int(episodes), int(first))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    parser.add_argument("--episodes", type=int, default=32, help="of each process, at once")
    given = parser.parse_args(arguments)
    log = given.output.with_suffix(".server.log")
    process, address = server(log)
    try:
        own, found = engine(), {}
        Server(address, 1, away=600.0).close()  # waits until it is there
        for temperature in (0.0, 1.0):
            found[f"colocated, temperature {temperature:g}"] = colocated(given.episodes, temperature, own)
            found[f"server, temperature {temperature:g}"] = served(given.episodes, temperature, address)
            given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    finally:
        process.terminate()
        process.wait()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
