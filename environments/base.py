"""What every text environment is, and what a rollout needs to know of it: types alone.

Data flow of one episode::

    reset(**task) -> Opening -> prompt.render(view, skill) -> policy -> project(response) -> step(action) -> Step -> ...
    ... until `Step.done` or the turn limit, which is the caller's -> finish() -> Ending or nothing

An environment is a plain Python object: it never sees token ids, models or processes. The prompt side (how a turn is
shown to a policy, how a response becomes an action) belongs to the environment; the caller keeps the history, counts
the turns and decides how much of the past fits. ``won`` (the environment verified success), ``score`` (the
environment's own number) and ``done`` (the episode ended by itself) are three different things and are never derived
from each other here.

What an environment returns is checked in `alignopsd_trl.environments.validation`, and nowhere else.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from datasets import Dataset

    from alignopsd_trl.environments.panel import TaskPanel


@dataclass(frozen=True)
class Projection:
    """A response turned into an action. ``valid`` is the environment's verdict on the *format*; the action is
    executed either way."""

    action: str
    valid: bool


@dataclass(frozen=True)
class Opening:
    """What an episode starts with.

    Args:
        observation (`str`):
            What the first prompt shows.
        task_text (`str`):
            The request alone; also what the skill bank is asked with.
        admissible (`tuple[str, ...]`, *optional*, defaults to `()`):
            Actions on offer, where the environment lists them.
        category (`str`, *optional*, defaults to `""`):
            Row of the tables that the episode counts under. Empty: the dataset column ``category``.
        task_key (`str`, *optional*):
            Kind of the task, for a skill bank that files its skills under kinds.
        data_source (`str`, *optional*):
            Data set of the task, likewise.
        context (`Any`, *optional*):
            What the environment's own prompt needs of this episode; handed to it as `View.context` and unseen else.
    """

    observation: str
    task_text: str
    admissible: tuple[str, ...] = ()
    category: str = ""
    task_key: str | None = None
    data_source: str | None = None
    context: Any = None


@dataclass(frozen=True)
class Step:
    """The environment's answer to one action.

    Args:
        observation (`str`):
            What the next prompt shows.
        reward (`float`, *optional*, defaults to `0.0`):
            Of this step. The trajectory's reward is the sum over its steps and its `Ending`.
        done (`bool`, *optional*, defaults to `False`):
            The episode ended by itself. Never set it for a turn limit: the caller counts turns.
        won (`bool`, *optional*, defaults to `False`):
            The environment verified success. `None` where it can't know: results then report the score alone.
        score (`float`, *optional*, defaults to `0.0`):
            The environment's own number, as of now; tables print it times 100.
        admissible (`tuple[str, ...]`, *optional*, defaults to `()`):
            Actions on offer now.
        valid (`bool`, *optional*, defaults to `True`):
            False takes back what `Projection` said of the action's format: an action that was not on offer, where that
            counts as invalid.
        lost (`bool`, *optional*, defaults to `False`):
            The environment is sure that the episode can't be won any more within its ``max_turns``. Training plays on;
            what only asks who wins (`alignopsd fidelity`) need not.
        metrics (`Mapping[str, float]`, *optional*):
            Numbers. Those of an episode's last step are logged as ``last_step/<name>``.
        info (`Mapping[str, Any]`, *optional*):
            Anything else, saved with the trajectories as JSON beside the metrics.
    """

    observation: str
    reward: float = 0.0
    done: bool = False
    won: bool | None = False
    score: float = 0.0
    admissible: tuple[str, ...] = ()
    valid: bool = True
    metrics: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    lost: bool = False


@dataclass(frozen=True)
class Ending:
    """What is known only when an episode is over, whatever ended it (see `TextEnvironment.finish`).

    Args:
        reward (`float`, *optional*, defaults to `0.0`):
            Added to the rewards of the steps.
        won (`bool`, *optional*):
            In place of what the last step said; `None` leaves that.
        score (`float`, *optional*):
            Likewise.
        metrics, info (*optional*):
            Added to those of the last step.
    """

    reward: float = 0.0
    won: bool | None = None
    score: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """An environment that raised, outlasted its time limit or returned what it must not. It costs its own episode
    only."""

    kind: str  # "error" or "timeout"
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Of an exception, with the line that raised it."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        return cls("error", f"{type(error).__name__}: {error}{place}")


@dataclass(frozen=True)
class Record:
    """One finished turn as the history shows it: ``number`` counts from 1 over the whole episode, ``observation`` is
    what the action was chosen on, ``result`` what the environment answered."""

    number: int
    observation: str
    action: str
    result: str


@dataclass(frozen=True)
class View:
    """All that a prompt may be rendered from. ``history`` holds the records that are shown (a suffix of the episode);
    ``step_count`` counts all actions taken so far, shown or not."""

    task_text: str
    observation: str
    admissible: tuple[str, ...]
    history: tuple[Record, ...]
    step_count: int
    context: Any = None


Message = Mapping[str, Any]
"""One message of a conversation: ``role``, ``content``, and what else the chat template reads (``tool_calls``, ...)."""


@dataclass(frozen=True)
class Chat:
    """A prompt of several messages, for the tokenizer's chat template.

    Args:
        messages (`Sequence[Message]`):
            From the system prompt, if there is one, to what the policy answers.
        tools (`Sequence[Mapping[str, Any]]`, *optional*, defaults to `()`):
            JSON schemas of the tools on offer, handed to the template.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()


Rendered = str | Sequence[Message] | Chat
"""A prompt before the chat template: the text of one user message, messages, or messages with tools."""


class Prompt(Protocol):
    """Renders one turn. An empty ``skill`` leaves no trace, not even an empty line.

    A method ``reply(view) -> Rendered`` is called, if there is one, for the later turns of a *conversation*
    (``history="conversation"``): what the environment adds to the dialogue after the policy's response;
    ``view.history`` is then the last record alone. Without it that is the observation and the actions on offer, as a
    user message.
    """

    name: str

    def render(self, view: View, skill: str = "") -> Rendered: ...


class EnvironmentsDown(RuntimeError):
    """What all environments share (a retrieval server, say) has failed for good: no episode can go on. A run saves its
    state and ends with this error, instead of training on empty observations."""


class TextEnvironment(ABC):
    """One episode at a time of a text game: `reset`, `step` and `project` are all that one must write.

    Follows TRL's environment convention where it applies: a factory without arguments, ``reset(**row)`` with every
    dataset column (and an integer ``seed``, one for all siblings of a task). In place of tools it has
    ``step(action)``.

    Attributes:
        prompt (`Prompt`): how a turn is shown to the policy.
        history_length (`int`, defaults to 2): how many past turns the prompt shows at most.
        max_turns (`int`, defaults to 50): turns after which the caller ends the episode; environments do not count.
        openings_may_differ (`bool`, defaults to `False`): siblings of a task may open differently. Without it, a task
            whose siblings do ends the run.
        thinks_freely (`bool`, defaults to `False`): a response without think tags thinks in the text before its action.
    """

    prompt: Prompt
    history_length: int = 2
    max_turns: int = 50
    openings_may_differ: bool = False
    thinks_freely: bool = False

    @abstractmethod
    def reset(self, *_: Any, **task: Any) -> Opening:
        """Starts the episode of a dataset row. Gets every column of the row and ``seed`` (`int`); take what you need by
        name and the rest by ``**columns``.

        All siblings of a task get the same ``seed``: draw the start of the episode, and all that a task is, from it. A
        `reset` that names a parameter ``dynamics_seed`` also gets that (`int`), another one for each sibling: for
        chance that acts on the way, such as the outcome of a throw. A column of either name goes before it."""

    @abstractmethod
    def step(self, action: str) -> Step:
        """Executes any string. An exception costs the episode: answer nonsense by an observation instead."""

    @abstractmethod
    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        """Turns any response into an action and a verdict on its format. Pure; never raises. ``admissible`` are the
        actions that were on offer, for rules that ask for one of them."""

    def finish(self) -> Ending | None:
        """Called once when the episode is over, also at the turn limit: the place for a reward that is known only
        then. ``None``: the steps have said all."""
        return None

    def close(self) -> None:  # noqa: B027 (most environments hold nothing)
        """Frees what the environment holds. Called when a run ends, and when an environment has failed."""


class EnvironmentBatch(Protocol):
    """Many episodes side by side, addressed by slot. One bad episode yields a `Failure` and nothing else.

    A batch may have a method ``metrics() -> dict[str, float]`` with counters since it was made; the trainer logs what
    each round adds, as ``environment/<name>``. Its tasks hold ``dynamics_seed`` where it has a true attribute
    ``takes_dynamics_seed``; ``openings_may_differ`` is as in `TextEnvironment`. Where it has a method ``lane(slot) ->
    int``, its `step` may be called by several threads at once, each with slots of another lane; else all steps are made
    in the player's thread.
    """

    prompt: Prompt
    history_length: int
    max_turns: int

    def reset(self, slots: Sequence[int], tasks: Sequence[Mapping[str, Any]]) -> list[Opening | Failure]: ...

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Step | Failure]: ...

    def finish(self, slots: Sequence[int]) -> list[Ending | None | Failure]: ...

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Suite:
    """An environment with its tasks: what a recipe or an evaluation asks for by name.

    Args:
        name (`str`):
            Of the environment.
        skill_bank (`str`, *optional*, defaults to `""`):
            Name of the shipped skill bank that fits it.
        factory (`Callable[[], TextEnvironment]`):
            Without arguments, makes one `TextEnvironment`.
        tasks (`Callable[[str], Dataset]`):
            Split name -> `datasets.Dataset` with at least the columns ``task_id`` (str) and ``category`` (str).
        panel (`Callable[[str], TaskPanel]`):
            panel name -> `TaskPanel`, the fixed and checksummed list that evaluations play.
        categories (`tuple[str, ...]`):
            In the order in which tables print them.
        description (`Mapping[str, Any]`):
            What a result must record to be comparable (data checksum, options, versions).
    """

    name: str
    factory: Callable[[], TextEnvironment]
    tasks: Callable[[str], Dataset]
    panel: Callable[[str], TaskPanel]
    categories: tuple[str, ...]
    description: Mapping[str, Any]
    skill_bank: str = ""
