"""Run by `test_server_play.py` under torchrun: two processes, each of which asks servers for its own episodes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from fakes.servers import ScriptedServer, acting, make_served
from fakes.toy import build_model, build_tokenizer

from alignopsd_trl.rollout.sampler import SamplerDown
from alignopsd_trl.trainer import AlignOPSDTrainer

RANK = os.environ["RANK"]
OPTIONS = {"method": "align_opsd", "self_check": False, "beta": 0.02}


def uneven(body: dict[str, Any]) -> float:
    """The second process waits long for each response, and the first one for the second."""
    return 0.05 * (RANK == "1")


def make(folder: Path, name: str, server: ScriptedServer, **options: Any) -> Any:
    return make_served(folder / name, server, policy=folder / f"policy{RANK}", **OPTIONS | options)


def saved(folder: Path, name: str, result: Any) -> None:
    torch.save(result, folder / f"{name}_{RANK}.pt")


def main(folder: Path) -> None:
    build_model(build_tokenizer()).save_pretrained(folder / f"policy{RANK}")
    for name, options in (("well", {}), ("well_ahead", {"rounds_ahead": 1})):
        with ScriptedServer(acting, uneven) as server:
            trainer = make(folder, name, server, max_steps=2, **options)
            trainer.train()
            saved(folder, name, trainer.seen_rows)
    for name, options in (("gone", {}), ("gone_ahead", {"rounds_ahead": 1})):
        with ScriptedServer(acting) as server:
            options |= {"method": "grpo", "vllm_server_timeout": 1.0}  # thinking would meet it before
            trainer = make(folder, name, server, max_steps=3, **options)
            saved(folder, name, message(trainer, server))


def message(trainer: AlignOPSDTrainer, server: ScriptedServer) -> str:
    """Of the run's end after the second process has lost its server in the second round."""
    inner = trainer.rollouts.play_groups

    def play(asked: Any) -> Any:
        if asked.update == 1 and RANK == "1":
            server.stop()
        return inner(asked)

    trainer.rollouts.play_groups = play
    try:
        trainer.train()
    except SamplerDown as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
