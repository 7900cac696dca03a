"""Types of text environments: the interface between environments and rollouts.

Data flow of one episode::

    reset(**task) -> Opening -> prompt.render(view, skill) -> policy -> project(response) -> step(action) -> Step -> ...
    ... until `Step.done` or the caller's turn limit -> finish() -> Ending or nothing

An environment is a plain Python object: it never sees token ids, models or processes. It renders the prompt and parses
the response into an action; the caller keeps the history, counts the turns and decides how much of the past fits.
``won`` (the environment verified success), ``score`` (the environment's own number) and ``done`` (the episode ended by
itself) are three different things and are never derived from each other.

`alignopsd_trl.environments.validation` alone checks the values that an environment returns.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from datasets import Dataset

    from alignopsd_trl.environments.panel import TaskPanel


@dataclass(frozen=True)
class Projection:
    """A parsed action. ``valid`` is the environment's verdict on the *format*; the action is executed either way."""

    action: str
    valid: bool


@dataclass(frozen=True)
class Opening:
    """The result of a reset.

    Args:
        observation (`str`):
            The observation of the first prompt.
        task_text (`str`):
            The request alone; also the query to the skill bank.
        admissible (`tuple[str, ...]`, *optional*, defaults to `()`):
            Actions on offer, if the environment lists them.
        category (`str`, *optional*, defaults to `""`):
            Row of the tables in which the episode counts. Empty: the dataset column ``category``.
        task_key (`str`, *optional*):
            Kind of the task, for a skill bank with skills by kind.
        data_source (`str`, *optional*):
            Data set of the task, for a skill bank with skills by data set.
        context (`Any`, *optional*):
            Data of this episode for the environment's own prompt, passed as `View.context` and not used elsewhere.
        later (`bool`, *optional*, defaults to `False`):
            The episode begins with requests that are not trained (`Wishes`). A `Step` will bring the opening.
    """

    observation: str
    task_text: str
    admissible: tuple[str, ...] = ()
    category: str = ""
    task_key: str | None = None
    data_source: str | None = None
    context: Any = None
    later: bool = False


@dataclass(frozen=True)
class Step:
    """The result of one action.

    Args:
        observation (`str`):
            The observation of the next prompt.
        reward (`float`, *optional*, defaults to `0.0`):
            Of this step. The trajectory's reward is the sum over its steps and its `Ending`.
        done (`bool`, *optional*, defaults to `False`):
            The episode ended by itself. Never set it for a turn limit: the caller counts turns.
        won (`bool`, *optional*, defaults to `False`):
            The environment verified success. `None` if it can't know: results then report the score alone.
        score (`float`, *optional*, defaults to `0.0`):
            The environment's own number so far; tables print it times 100.
        admissible (`tuple[str, ...]`, *optional*, defaults to `()`):
            Actions on offer now.
        valid (`bool`, *optional*, defaults to `True`):
            False overrides `Projection.valid`, for an action that was not on offer where that counts as invalid.
        lost (`bool`, *optional*, defaults to `False`):
            The environment is sure that the episode can't be won any more within its ``max_turns``. Training plays on;
            measurements of success alone (`alignopsd measure`) stop the episode.
        milestone (`str`, *optional*):
            Name of the sub-goal that this action reached, for methods that give credit between sub-goals.
        metrics (`Mapping[str, float]`, *optional*):
            Numbers. Those of an episode's last step are logged as ``last_step/<name>``.
        info (`Mapping[str, Any]`, *optional*):
            Anything else, saved with the trajectories as JSON beside the metrics.
        opening (`Opening`, *optional*):
            Of an episode whose own was still to come (`Opening.later`).
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
    milestone: str | None = None
    opening: Opening | None = None


class RunningScore:
    """Makes rewards of a score that an environment counts up: each is the change since the last step.

    Args:
        most: the score of a perfect episode; rewards are shares of it.
        start: the score before the first step.
    """

    def __init__(self, most: float = 1.0, start: float = 0.0):
        self._most, self.share = most, start / most

    def gain(self, score: float) -> float:
        """Returns the reward of a step that leaves the score at this; `share` is the part of the best one so far."""
        before, self.share = self.share, score / self._most
        return self.share - before


@dataclass(frozen=True)
class Ending:
    """The result of `TextEnvironment.finish`, known only when an episode is over.

    Args:
        reward (`float`, *optional*, defaults to `0.0`):
            Added to the rewards of the steps.
        won (`bool`, *optional*):
            Replaces the last step's ``won``; `None` keeps it.
        score (`float`, *optional*):
            Replaces the last step's ``score``; `None` keeps it.
        metrics, info (*optional*):
            Added to those of the last step.
        turn_rewards (`Mapping[int, float]`, *optional*):
            Added to the rewards of turns, by their numbers from 0.
    """

    reward: float = 0.0
    won: bool | None = None
    score: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    turn_rewards: Mapping[int, float] = field(default_factory=dict)


UNREWARDED = "unrewarded"
"""In ``info`` of an `Ending`: the agent returned no reward. Without reward functions somebody must give one."""


LONGEST_MESSAGE = 4000  # characters of an exception's text


@dataclass(frozen=True)
class Failure:
    """An environment that raised, exceeded its time limit or returned an invalid value. It ends one episode."""

    kind: str  # "error" or "timeout"
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Makes the failure of an exception, with the line that raised it."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        return cls("error", f"{type(error).__name__}: {text_of_error(error)}{place}")


def text_of_error(error: BaseException) -> str:
    """Returns the text of an exception of foreign code, which may raise itself, be endless or no Unicode."""
    try:
        text = str(error)
    except BaseException as second:
        return f"its text can't be read, since __str__ raises {type(second).__name__}"
    shown = text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]} ..."
    return shown.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class Record:
    """One finished turn in the history. ``number`` counts from 1 over the whole episode, ``observation`` is the one
    before the action, ``result`` the one after it."""

    number: int
    observation: str
    action: str
    result: str


@dataclass(frozen=True)
class View:
    """All that a prompt is rendered from. ``history`` holds the records to show, the last ones of the episode;
    ``step_count`` counts all actions so far, shown or not."""

    task_text: str
    observation: str
    admissible: tuple[str, ...]
    history: tuple[Record, ...]
    step_count: int
    context: Any = None


Message = Mapping[str, Any]
"""One message of a conversation: ``role``, ``content``, and other fields of the chat template (``tool_calls``, ...)."""


@dataclass(frozen=True)
class Chat:
    """A prompt of several messages, for the tokenizer's chat template.

    Args:
        messages (`Sequence[Message]`):
            From the system prompt, if there is one, to the message that the policy answers.
        tools (`Sequence[Mapping[str, Any]]`, *optional*, defaults to `()`):
            JSON schemas of the tools on offer, passed to the template.
        variables (`Mapping[str, Any]`, *optional*):
            Of the template, beside those of the run's ``chat_template_kwargs``.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, prompt: Rendered, further: Sequence[Message] = ()) -> Chat:
        """Returns any prompt as a chat, with further messages; a text is one user message."""
        chat = cls([{"role": "user", "content": prompt}]) if isinstance(prompt, str) else prompt
        chat = chat if isinstance(chat, Chat) else cls(chat)
        return replace(chat, messages=[dict(one) for one in (*chat.messages, *further)])


Rendered = str | Sequence[Message] | Chat
"""A prompt before the chat template: the text of one user message, messages, or messages with tools."""


@dataclass(frozen=True)
class Wishes:
    """What a turn asks beside its prompt, where an agent words the requests itself.

    Args:
        place (`str | int`): tells the request from the others of its episode, in whatever order they arrive. The
            sampling seed depends on it.
        follows (`int`, *optional*): number of the turn whose conversation it continues; `None` begins another one.
        trained (`bool`): whether the response becomes a turn.
        max_tokens, stop (*optional*): the response ends after that many tokens, and at the first of these texts.
        settings (`Mapping[str, float]`): settings of sampling, refused unless they are the run's.
        schema (`Mapping`, *optional*): JSON schema of the response, refused unless the sampler takes schemas.
    """

    place: str | int
    follows: int | None
    trained: bool = True
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    settings: Mapping[str, float] = field(default_factory=dict)
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Reply:
    """The answer to a request with `Wishes`.

    Args:
        action (`str`): of the turn.
        prompt_tokens, response_tokens (`int`): the number of tokens of the turn.
        truncated (`bool`): whether the response reached its token limit.
    """

    action: str
    prompt_tokens: int = 0
    response_tokens: int = 0
    truncated: bool = False


@dataclass(frozen=True)
class Refusal:
    """The reason why a request with `Wishes` gets no answer, and its code in OpenAI's words."""

    reason: str
    code: str


class Prompt(Protocol):
    """Renders one turn. An empty ``skill`` leaves no trace, not even an empty line.

    An optional method ``reply(view) -> Rendered`` returns what the environment adds to a *conversation*
    (``history="conversation"``) after each response; ``view.history`` is then the last record alone. Without it, a user
    message with the observation and the actions on offer is added.

    An optional method ``wishes(view) -> Wishes`` belongs to prompts of an agent's own requests. Such prompts are never
    shortened: `step` gets a `Reply` or a `Refusal`.
    """

    name: str

    def render(self, view: View, skill: str = "") -> Rendered: ...


class EnvironmentsDown(RuntimeError):
    """Raised when a resource that all environments share, such as a retrieval server, has failed for good. A run saves
    its state and ends with this error, instead of training on empty observations."""


class DataError(ValueError):
    """Raised for data of an environment that can't be used. The message names file, record, field and remedy."""


class TextEnvironment(ABC):
    """A text game, one episode at a time. `reset`, `step` and `project` are the methods to write.

    It follows TRL's environment convention where that applies: a factory without arguments, ``reset(**row)`` with every
    dataset column (and an integer ``seed``, one for all siblings of a task). In place of tools it has
    ``step(action)``.

    Attributes:
        prompt (`Prompt`): renders a turn for the policy.
        history_length (`int`, defaults to 2): the number of past turns that the prompt shows at most.
        max_turns (`int`, defaults to 50): turns after which the caller ends the episode; environments do not count.
        openings_may_differ (`bool`, defaults to `False`): whether siblings of a task may start differently. If not, a
            task whose siblings do so ends the run.
        thinks_freely (`bool`, defaults to `False`): whether the text before the action counts as thinking in a response
            without think tags.
        concurrent (`bool` or `str`, defaults to `False`): how many calls may run at once. `False`: the environments of
            a process take turns, and each episode has the generators of `random`, `numpy.random` and torch's CPU to
            itself, seeded from its ``seed``. `True`: calls run on threads, for code that waits (a server) and shares
            nothing. ``"processes"``: calls run in a worker process for each core, for code that computes.
        most_alive (`int`, *optional*): environments that a process keeps at most, where each is dear (a JVM, a
            browser). Episodes beyond that wait until earlier ones have ended.
    """

    prompt: Prompt
    history_length: int = 2
    max_turns: int = 50
    openings_may_differ: bool = False
    thinks_freely: bool = False
    concurrent: bool | str = False
    most_alive: int | None = None

    @staticmethod  # noqa: B027 (most rows need nothing)
    def prepare_row(**row: Any) -> None:
        """Makes what an episode of a row needs, such as a generated game, before the time of its `reset` is taken. It
        is called for one row at a time, for one that is ready too, and has ten minutes. `reset` must find or make the
        same without it."""

    @abstractmethod
    def reset(self, *_: Any, **task: Any) -> Opening:
        """Starts the episode of a dataset row. It gets every column of the row and ``seed`` (`int`); name the needed
        ones and take the rest by ``**columns``.

        All siblings of a task get the same ``seed``: draw the task and its start from it. A `reset` that names a
        parameter ``dynamics_seed`` also gets that (`int`), which differs between siblings: for chance during the
        episode, such as the outcome of a throw. A column of either name takes precedence."""

    @abstractmethod
    def step(self, action: str) -> Step:
        """Executes any string. An exception ends the episode: answer nonsense by an observation instead."""

    @abstractmethod
    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        """Parses any response into an action and a verdict on its format. Pure, also beside other calls; never raises.
        ``admissible`` are the
        actions that were on offer, for rules that need them."""

    def finish(self) -> Ending | None:
        """Called once when the episode is over, also at the turn limit, for a reward that is known only then. ``None``:
        the steps said all."""
        return None

    def close(self) -> None:  # noqa: B027 (most environments hold nothing)
        """Frees what the environment holds. Called when a run ends, and when an environment has failed."""


class EnvironmentBatch(Protocol):
    """Many episodes side by side, addressed by slot. An episode that fails returns a `Failure` alone.

    A batch may have a method ``metrics() -> dict[str, float]`` with counters since it was made; the trainer logs their
    increase in each round as ``environment/<name>``. If its attribute ``takes_dynamics_seed`` is true, tasks hold
    ``dynamics_seed``; ``openings_may_differ`` is as in `TextEnvironment`. If it has a method ``worker(slot) -> int``,
    `step` is called from one thread per worker, each with the slots of that worker; else from the player's thread.
    An attribute ``slots`` says how many there are, if fewer than were asked for.
    Unless its attribute ``projects_itself`` is false, a call of `project` has the environments' time limit.
    An attribute ``prepare_row`` is as in `TextEnvironment`.
    """

    prompt: Prompt
    history_length: int
    max_turns: int

    def reset(self, slots: Sequence[int], tasks: Sequence[Mapping[str, Any]]) -> list[Opening | Failure]: ...

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Step | Failure]: ...

    def finish(self, slots: Sequence[int]) -> list[Ending | None | Failure]: ...

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection: ...

    def close(self) -> None: ...


UNMADE = "made when a run starts"
"""In the ``task_id`` of a placeholder, see `Suite`."""


@dataclass(frozen=True)
class Suite:
    """An environment with its tasks, which recipes and evaluations load by name.

    Args:
        name (`str`):
            Of the environment.
        skill_bank (`str`, *optional*, defaults to `""`):
            Name of the shipped skill bank that fits it.
        sketch (`Callable[[str, int], list[Mapping]]`, *optional*):
            For tasks that take long to make: (split, number of tasks that are wanted whole) -> all rows of the split,
            of which later ones may be placeholders. A plan reads them.
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
    sketch: Callable[[str, int], Sequence[Mapping[str, Any]]] | None = None

    @classmethod
    def of_rows(
        cls,
        name: str,
        factory: Callable[[], TextEnvironment],
        rows: Callable[[str], Sequence[Mapping[str, Any]]],
        *,
        categories: tuple[str, ...] = (),
        description: Mapping[str, Any],
        skill_bank: str = "",
    ) -> Suite:
        """Makes a suite whose splits and panels are the same: ``rows`` returns those of either by its name."""
        from datasets import Dataset

        from alignopsd_trl.environments.panel import TaskPanel

        def tasks(split: str) -> Dataset:
            given = [dict(row) for row in rows(split)]
            try:
                return Dataset.from_list(given)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"rows({split!r}) of {name!r} make no dataset ({error}); give the values of a column one type"
                ) from error

        return cls(
            name,
            factory,
            tasks,
            panel=lambda panel: TaskPanel.of(name, panel, rows(panel)),
            categories=categories,
            description=description,
            skill_bank=skill_bank,
        )
