"""Run by `test_as_it_comes.py` under torchrun: the first process plays, and both get its verdict."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from alignopsd_trl.commands.own_task import as_it_comes as asked
from alignopsd_trl.commands.own_task.options import WarmStartConfig

FOLDER, PRESET = Path(sys.argv[1]), {"environment": "sums", "model_name_or_path": "tiny", "num_generations": 2}


def played(*given: Any) -> asked.Verdict:
    if sys.argv[2] == "fails":
        raise ValueError("no model is here")
    return asked.Verdict(asked.WEAK, "it reads, little", {"method": "grpo"})


asked._played = played
try:
    found = asked.as_it_comes("sums", PRESET, FOLDER / "policy", ["--use_cpu"], config=WarmStartConfig())["method"]
except ValueError as error:
    found = str(error)
(FOLDER / os.environ["RANK"]).write_text(found)
