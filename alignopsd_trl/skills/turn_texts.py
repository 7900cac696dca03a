"""Gives the turns of a played round their privileged texts, from a user's function or one of two examples by its name,
and makes the prompts that hold them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from transformers import PreTrainedTokenizerBase

from alignopsd_trl.common.errors import UserError
from alignopsd_trl.rollout.renderer import Renderer, as_text, marks_of
from alignopsd_trl.skills.loading import accepts, function_named
from alignopsd_trl.turns import Trajectory, Turn


def next_observation(turn: Turn) -> str | None:
    """Tells the answer to the turn's action; `None` where there was no action or no answer. An environment that has
    better words for this than its observation gives them as ``Step.info["next_observation"]``."""
    answer = turn.info.get("next_observation", turn.observation)
    return f"After the action {turn.action} you will see: {answer}" if turn.action and answer else None


def feedback(turn: Turn) -> str | None:
    """Returns what the environment itself says of the action, ``Step.info["feedback"]``; `None` where it gave none."""
    return turn.info.get("feedback")


SHIPPED = {example.__name__: example for example in (next_observation, feedback)}

NAMES = ("task_text", "row", "turn", "trajectory", "siblings")
"""What a source may ask for, in the order of its positional arguments."""


class PrivilegedError(UserError):
    """Raised for what is no source, for a source that raised, and for a text that is none."""


class PrivilegedSource:
    """A function that gives the teacher a text for a turn, after its round was played.

    Args:
        function: has parameters of `NAMES` (``siblings`` are the other trajectories of the group), or takes five
            arguments in this order. It returns a text; `None` or "" leaves the turn without a teacher's view.
        name: for messages and records; by default the function's module and name.

    Raises:
        PrivilegedError: if the function takes other arguments.
    """

    def __init__(self, function: Callable[..., str | None], name: str = ""):
        own = getattr(function, "__qualname__", type(function).__name__)
        self.name = name or f"{getattr(function, '__module__', '')}:{own}"
        self._function, self._by_name = function, _by_name(function, self.name)

    def __call__(self, turn: Turn, trajectory: Trajectory, siblings: Sequence[Trajectory]) -> str:
        """Returns the text of a turn, empty for none. Raises `PrivilegedError` if the function raised or returned no
        text."""
        given: list[Any] = [trajectory.task_text, trajectory.row, turn, trajectory, siblings]
        named = {name: value for name, value in zip(NAMES, given, strict=True) if name in self._by_name}
        place = f"privileged={self.name!r}, task {trajectory.task!r}, turn {turn.number}"
        try:
            found = self._function(**named) if named else self._function(*given)
        except Exception as error:
            raise PrivilegedError(f"{place}: {type(error).__name__}: {error}") from error
        if found is not None and not isinstance(found, str):
            raise PrivilegedError(f"{place}: it returned {found!r:.80}; return a text or None")
        return found or ""


SourceSpec = str | PrivilegedSource | Callable[..., str | None]
"""A name of `SHIPPED`, ``"module:function"`` (the current folder counts), a function, or a source."""


def load_source(spec: SourceSpec) -> PrivilegedSource:
    """Loads a source; raises [`PrivilegedError`] if ``spec`` is none."""
    if not isinstance(spec, str):
        return spec if isinstance(spec, PrivilegedSource) else PrivilegedSource(spec)
    if spec in SHIPPED:
        return PrivilegedSource(SHIPPED[spec], spec)
    module, colon, name = spec.rpartition(":")
    if not colon:
        raise PrivilegedError(f"privileged={spec!r} is unknown; use one of {', '.join(SHIPPED)}, or module:function")
    return PrivilegedSource(function_named(f"privileged={spec!r}", module, name), spec)


def _by_name(function: Callable, name: str) -> set[str]:
    """Returns the names that a function asks for; none if it takes five arguments by their places."""
    named = set(NAMES) & set(inspect.signature(function).parameters)
    if named and accepts(function, **dict.fromkeys(named)):
        return named
    if accepts(function, *NAMES):
        return set()
    asked = f"give it parameters of {', '.join(NAMES)}, or five in this order"
    raise PrivilegedError(f"privileged={name!r} takes {inspect.signature(function)}; {asked}")


_SLOT = 16  # tokens that a prompt may write around its skill


def reserved_tokens(budget: int) -> int:
    """Returns the tokens that a prompt keeps free for a text of at most ``budget`` tokens."""
    return budget + _SLOT


@dataclass(eq=False)
class TurnTexts:
    """The texts of a source, as text that a chat template takes for nothing else.

    Args:
        budget: tokens of a text at most; the rest is cut off.
    """

    source: PrivilegedSource
    tokenizer: PreTrainedTokenizerBase
    budget: int

    def __post_init__(self) -> None:
        self._marks = marks_of(self.tokenizer)

    def give(self, trajectories: Sequence[Trajectory], renderer: Renderer) -> float:
        """Gives each turn of whole sibling groups its text and, where there is one, its privileged prompt. Returns the
        share of turns with a text.

        Args:
            trajectories: those that failed get no texts.
            renderer: of the player, which kept what each prompt showed.
        """
        played = sorted((one for one in trajectories if not one.failed), key=lambda one: one.task)
        groups = [list(members) for _, members in groupby(played, key=lambda one: one.task)]
        every = [(turn, one, group) for group in groups for one in group for turn in one.turns]
        for turn, one, group in every:
            text = self.source(turn, one, [other for other in group if other is not one])
            turn.privileged_text, turn.privileged_ids = self._bounded(text), turn.prompt_ids
        self._render([turn for turn, _, _ in every if turn.privileged_text], renderer)
        return sum(bool(turn.privileged_text) for turn, _, _ in every) / max(len(every), 1)

    def _bounded(self, text: str) -> str:
        """Breaks up the tokenizer's control tokens in a text, and cuts it to the budget."""
        text = as_text(text.strip(), self._marks)
        return cut(text, lambda part: len(self.tokenizer(part, add_special_tokens=False)["input_ids"]), self.budget)

    def _render(self, turns: Sequence[Turn], renderer: Renderer) -> None:
        shown = [turn.shown.beside(renderer, turn.privileged_text) for turn in turns]
        encoded = renderer.encode([prompt for prompt, _ in shown])
        for turn, ids, (_, tail) in zip(turns, encoded, shown, strict=True):
            if len(ids) + len(tail) > renderer.options.max_prompt_length:  # a template may write more around the text
                turn.privileged_text = ""
            else:
                turn.privileged_ids = ids + tail


def cut(text: str, count: Callable[[str], int], budget: int) -> str:
    """Cuts a text from its end until it has at most ``budget`` tokens."""
    while (tokens := count(text)) > budget:
        text = text[: min(len(text) - 1, len(text) * budget // tokens)].rstrip()
    return text
