"""`rounds_ahead` on vLLM's real server, on a CPU: how old the weights of turns are, and how far the server's log-probs
are from the trainer's, by that age. The shipped WebShop policy in float32; weights are pushed through a folder, since
the server's own way needs CUDA. Runs where vLLM is installed; `.ci/vllm` says how on a CPU.

    python benchmarks/rounds_ahead_vllm.py --output ahead.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx
from continuous_vllm import LENGTH, POLICY, SUITE, TOKENS, TURNS, server

from alignopsd_trl.environments.loading import load
from alignopsd_trl.experimental.config import ContinuousConfig
from alignopsd_trl.experimental.server import Server, ServerBackend
from alignopsd_trl.experimental.trainer import ContinuousTrainer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fakes.trainers import variety  # noqa: E402


class OnServer(ContinuousTrainer):
    """Samples on the server as if TRL had joined it, and pushes weights through ``folder``."""

    folder: Path

    def make_backend(self) -> ServerBackend:
        self.use_vllm, self.vllm_mode, self._last_loaded_step = True, "server", -1
        self.vllm_importance_sampling_correction = True
        return ServerBackend(
            self,
            self._config,
            self.processes,
            self.push,
            lambda temperature, tokens: {"temperature": temperature, "max_tokens": tokens, "logprobs": 0},
        )

    def push(self) -> int:
        """Writes the weights where the server loads them."""
        self.accelerator.unwrap_model(self.model).save_pretrained(self.folder)
        order = {"method": "reload_weights", "kwargs": {"weights_path": str(self.folder)}}
        for name, body in (("collective_rpc", order), ("reset_prefix_cache", None)):
            address = f"{self.args.vllm_server_base_url}/{name}"
            httpx.post(address, json=body, timeout=60).raise_for_status()
        return self.state.global_step


def make(folder: Path, given: argparse.Namespace, address: str, ahead: int) -> OnServer:
    suite = load(SUITE)
    config = ContinuousConfig(
        str(folder / "run"),
        use_cpu=True,
        bf16=False,
        vllm_mode="server",
        vllm_server_base_url=address,
        rounds_ahead=ahead,
        method="align_opsd",
        action_filter="webshop",
        per_device_train_batch_size=given.episodes,
        max_steps=given.rounds,
        max_turns=TURNS,
        learning_rate=given.learning_rate,
        max_prompt_length=LENGTH - TOKENS,
        max_completion_length=TOKENS,
        gradient_checkpointing=False,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    config.use_vllm = False  # TRL would join the server, which needs CUDA
    return OnServer(
        POLICY,
        config,
        environment_factory=suite.factory,
        train_dataset=suite.tasks("train"),
        skill_bank="webshop",
        encoder="lexical",
        reward_funcs=variety,
    )


def watch(trainer: OnServer) -> dict[int, list[float]]:
    """Distances of log-probs, by staleness."""
    inner, found = trainer.scorer.batch, defaultdict(list)

    def batch(*arguments: Any) -> Any:
        made = inner(*arguments)
        for turn, scores in zip(made.turns, made.student_log_probs, strict=True):
            pairs = zip(turn.sampling_log_probs or (), scores.tolist(), strict=False)
            found[turn.staleness] += [abs(own - here) for own, here in pairs]
        return made

    trainer.scorer.batch = batch
    return found


def run(address: str, folder: Path, given: argparse.Namespace, ahead: int) -> dict[str, Any]:
    trainer = make(folder / str(ahead), given, address, ahead)
    trainer.folder = folder / "pushed"
    found = watch(trainer)
    trainer.train()
    lines = [entry for entry in trainer.state.log_history if "loss" in entry]
    names = ("staleness/mean", "staleness/max", "seconds/rollout", "seconds/update", "grad_norm")
    names += tuple(f"sampling/importance_sampling_ratio/{kind}" for kind in ("min", "mean", "max"))
    distances = {
        age: {"tokens": len(one), "mean": sum(one) / len(one), "furthest": max(one)} for age, one in found.items()
    }
    return {"distances": distances, "rounds": [{name: line.get(name) for name in names} for line in lines]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    parser.add_argument("--episodes", type=int, default=16, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    given = parser.parse_args()
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"
    process, address = server(given.output.with_suffix(".server.log"))
    folder = Path(mkdtemp())
    try:
        Server(address, 1, away=600.0).close()  # waits until it is there
        found = {f"rounds_ahead={ahead}": run(address, folder, given, ahead) for ahead in (0, 1)}
    finally:
        process.terminate()
        process.wait()
    given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
