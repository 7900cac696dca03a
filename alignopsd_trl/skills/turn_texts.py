"""Gives the turns of a played round their privileged texts, and makes the prompts that hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from transformers import PreTrainedTokenizerBase

from alignopsd_trl.rollout.renderer import Renderer, as_text, marks_of
from alignopsd_trl.skills.turn_source import PrivilegedSource
from alignopsd_trl.turns import Trajectory, Turn

_SLOT = 16  # tokens that a prompt may write around its skill


def reserved_tokens(budget: int) -> int:
    """Returns the tokens that a prompt keeps free for a text of at most ``budget`` tokens."""
    return budget + _SLOT


@dataclass(eq=False)
class TurnTexts:
    """The texts of a source, as text that a chat template takes for nothing else.

    Args:
        source: gives the texts.
        tokenizer: of the policy.
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
