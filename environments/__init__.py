"""Text environments for multi-turn agents. Usable on their own: nothing here imports `alignopsd_trl`."""

from environments.base import (
    EnvironmentBatch,
    EnvironmentsDown,
    Failure,
    Opening,
    Projection,
    Prompt,
    Record,
    Step,
    Suite,
    TextEnvironment,
    View,
    load,
    open_batch,
)
from environments.panel import TaskPanel

__all__ = [
    "EnvironmentBatch",
    "EnvironmentsDown",
    "Failure",
    "Opening",
    "Projection",
    "Prompt",
    "Record",
    "Step",
    "Suite",
    "TaskPanel",
    "TextEnvironment",
    "View",
    "load",
    "open_batch",
]
