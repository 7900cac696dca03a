"""Run by `test_kill.py`: trains on the toy game, saving every step, until it is done or killed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from toy import ToyEnvironment
from trainers import losses, make_trainer
from transformers import TrainerCallback


class Slow(TrainerCallback):
    def on_step_end(self, *ignored: object, **also: object) -> None:
        time.sleep(0.2)


if __name__ == "__main__":
    folder, resume = Path(sys.argv[1]), sys.argv[2] == "resume"
    trainer = make_trainer(
        folder,
        factory=ToyEnvironment,
        method="align_opsd",
        max_steps=8,
        save_strategy="steps",
        save_steps=1,
        parts={"callbacks": [Slow()]},
    )
    trainer.train(resume_from_checkpoint=resume)
    (folder / "losses.json").write_text(json.dumps(losses(trainer)))
