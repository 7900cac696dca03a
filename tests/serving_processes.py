"""Run by `test_server_play.py` under torchrun: two processes, each of which asks servers for its own episodes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from fakes.servers import ScriptedServer, acting, with_servers
from fakes.toy import build_model, build_tokenizer
from fakes.trainers import make_trainer

from alignopsd_trl.rollout import SamplerDown
from alignopsd_trl.trainer import AlignOPSDTrainer

RANK = os.environ["RANK"]
OPTIONS = {"method": "align_opsd", "self_check": False, "beta": 0.02}


def uneven(body: dict[str, Any]) -> float:
    """The second process waits long for each response, and the first one for the second."""
    return 0.05 * (RANK == "1")


def make(folder: Path, name: str, **options: Any) -> AlignOPSDTrainer:
    return make_trainer(folder / name, policy=folder / f"policy{RANK}", **OPTIONS | options)


def saved(folder: Path, name: str, result: Any) -> None:
    torch.save(result, folder / f"{name}_{RANK}.pt")


def main(folder: Path) -> None:
    build_model(build_tokenizer()).save_pretrained(folder / f"policy{RANK}")
    with ScriptedServer(acting, uneven) as server:
        trainer = make(folder, "well", max_steps=2)
        with_servers(trainer, server)
        trainer.train()
        saved(folder, "well", trainer.seen_rows)
    with ScriptedServer(acting) as server:
        trainer = make(folder, "gone", max_steps=3)
        with_servers(trainer, server, vllm_server_timeout=1.0)
        inner = trainer.rollouts.play_groups

        def play(inputs: Any, update: int, *rest: Any) -> Any:
            if update == 1 and RANK == "1":
                server.stop()
            return inner(inputs, update, *rest)

        trainer.rollouts.play_groups = play
        message = ""
        try:
            trainer.train()
        except SamplerDown as error:
            message = str(error)
        saved(folder, "gone", message)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
