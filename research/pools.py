"""What experiments read from finished measurements of `alignopsd measure`, beside the pooled turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

from alignopsd_trl.common.statistics import Interval


def measured(folder: Path) -> np.ndarray:
    """Which of the folder's turns have an A_MC, bool."""
    column = parquet.read_table(folder / "turns.parquet", columns=["a_mc"])["a_mc"].to_numpy()
    return ~np.isnan(column.astype(float))


def short(figure: dict[str, Any]) -> str:
    """As `Interval` is shown."""
    return str(Interval(*(np.nan if figure[name] is None else figure[name] for name in ("value", "low", "high"))))
