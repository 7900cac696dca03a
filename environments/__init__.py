"""Text environments for multi-turn agents. Usable on their own: nothing here imports `alignopsd_trl`."""

from alignopsd_trl.environments.base import (
    Chat,
    Ending,
    EnvironmentBatch,
    EnvironmentsDown,
    Failure,
    Message,
    Opening,
    Projection,
    Prompt,
    Record,
    Rendered,
    RunningScore,
    Step,
    Suite,
    TextEnvironment,
    View,
)
from alignopsd_trl.environments.batch import SerialBatch, ThreadedBatch, open_batch
from alignopsd_trl.environments.generators import RandomStream
from alignopsd_trl.environments.loading import load
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.environments.plain import PlainEnvironment
from alignopsd_trl.environments.processes import ProcessBatch
from alignopsd_trl.environments.prompt import ShortPrompt
from alignopsd_trl.environments.search import shortest_way

__all__ = [
    "Chat",
    "Ending",
    "EnvironmentBatch",
    "EnvironmentsDown",
    "Failure",
    "Message",
    "Opening",
    "PlainEnvironment",
    "ProcessBatch",
    "Projection",
    "Prompt",
    "RandomStream",
    "Record",
    "Rendered",
    "RunningScore",
    "SerialBatch",
    "ShortPrompt",
    "Step",
    "Suite",
    "TaskPanel",
    "TextEnvironment",
    "ThreadedBatch",
    "View",
    "load",
    "open_batch",
    "shortest_way",
]
