"""Text environments for multi-turn agents. Usable on their own: nothing here imports `alignopsd_trl`."""

from environments.base import (
    Ending,
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
)
from environments.batch import SerialBatch, ThreadedBatch, open_batch
from environments.panel import TaskPanel

__all__ = [
    "Ending",
    "EnvironmentBatch",
    "EnvironmentsDown",
    "Failure",
    "Opening",
    "Projection",
    "Prompt",
    "Record",
    "SerialBatch",
    "Step",
    "Suite",
    "TaskPanel",
    "TextEnvironment",
    "ThreadedBatch",
    "View",
    "load",
    "open_batch",
]
