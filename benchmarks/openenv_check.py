"""Trains a round of GRPO and one of AlignOPSD on a real OpenEnv server on loopback, and kills the server in between.

    pip install openenv==0.10.0        # in an environment of its own: it pulls gradio, fastmcp and openai
    python benchmarks/openenv_check.py --output openenv_check.json

The suite plays a stand-in with the same types (`tests/test_openenv.py`). The policy is a shipped one of a million
parameters, the environment echoes what it is told and pays for long words; nothing is learnt here.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import openenv
from datasets import Dataset
from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from alignopsd_trl import AlignOPSDConfig, AlignOPSDTrainer, read_records
from alignopsd_trl.environments.adapters import OpenEnvEnvironment
from alignopsd_trl.environments.base import Failure, Opening, Step
from alignopsd_trl.environments.batch import open_batch

PORT = 8791


class Say(Action):
    message: str = Field(..., description="What to say")


class Heard(Observation):
    echo: str = ""
    left: int = 3


class Echo(Environment):
    """Echoes three messages; the longer a message, the better."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.left = 3

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Heard:
        self.left = 3
        return Heard(echo=f"Say something about {options.get('topic', 'nothing')}.", left=3)

    def step(self, action: Say, **options: Any) -> Heard:
        self.left -= 1
        return Heard(echo=action.message, left=self.left, done=not self.left, reward=min(len(action.message), 20) / 20)

    @property
    def state(self) -> State:
        return State(episode_id="echo", step_count=3 - self.left)


class EchoClient(EnvClient[Say, Heard, State]):
    def _step_payload(self, action: Say) -> dict[str, Any]:
        return {"message": action.message}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Heard]:
        seen = Heard(**payload.get("observation", {}))
        return StepResult(observation=seen, reward=payload.get("reward"), done=payload.get("done", False))

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)


def serve() -> None:
    import uvicorn

    app = create_app(Echo, Say, Heard, env_name="echo", max_concurrent_envs=64)
    uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="error")


def start() -> subprocess.Popen:
    server = subprocess.Popen([sys.executable, __file__, "--serve"])
    for _ in range(240):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", PORT)) == 0:
                return server
        time.sleep(0.5)
    raise SystemExit("the server did not come up")


def connect() -> EnvClient:
    return EchoClient(base_url=f"http://127.0.0.1:{PORT}", message_timeout_s=20.0)


def death_and_return(server: subprocess.Popen) -> tuple[subprocess.Popen, dict[str, str]]:
    """Episodes over the death of a server: what each call gave."""
    batch = open_batch(OpenEnvEnvironment(connect, reward="sum"), 2, 30.0)
    rows = [{"seed": 1, "prompt": "Talk.", "topic": "rain"}] * 2
    said = {"reset": batch.reset([0, 1], rows)[0], "step": batch.step([0], ["It rains."])[0]}
    server.kill()
    server.wait()
    said |= {
        "step without server": batch.step([1], ["Hello"])[0],
        "reset without server": batch.reset([0], rows[:1])[0],
    }
    server = start()
    said |= {"reset again": batch.reset([0, 1], rows)[0], "step again": batch.step([0], ["It rains."])[0]}
    batch.close()
    kinds = [Opening, Step, Failure, Failure, Opening, Step]
    assert [type(one) for one in said.values()] == kinds, said
    return server, {name: str(getattr(one, "message", None) or one.observation) for name, one in said.items()}


def train(method: str, folder: Path) -> dict[str, Any]:
    config = AlignOPSDConfig(
        str(folder),
        method=method,
        use_cpu=True,
        bf16=False,
        report_to="none",
        per_device_train_batch_size=8,
        num_generations=4,
        max_steps=1,
        logging_steps=1,
        max_prompt_length=640,
        max_completion_length=32,
        gradient_checkpointing=False,
    )
    trainer = AlignOPSDTrainer(
        "tiny_alfworld",
        config,
        environment_factory=OpenEnvEnvironment(connect, reward="sum", max_turns=3),
        train_dataset=Dataset.from_list([{"prompt": "Talk.", "topic": topic} for topic in ("rain", "snow")]),
        skill_bank=lambda task_text, row: f"Speak at length of {row['topic']}.",
        encoder="lexical",
    )
    trainer.train()
    turns = read_records(folder / "trajectories")
    episodes = turns.drop_duplicates(["task", "rollout"])
    return {
        "episodes": len(episodes),
        "turns": len(turns),
        "failed": int((episodes.stop == "environment error").sum()),
        "invalid": int((~turns.action_valid).sum()),
        "reward": float(episodes.reward.mean()),
        "stop": episodes.stop.value_counts().to_dict(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("openenv_check.json"))
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    server = start()
    try:
        server, death = death_and_return(server)
        with tempfile.TemporaryDirectory() as folder:
            rounds = {method: train(method, Path(folder) / method) for method in ("grpo", "align_opsd")}
    finally:
        server.kill()
    found = {"openenv": getattr(openenv, "__version__", "?"), "a server that dies": death, "rounds": rounds}
    arguments.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
