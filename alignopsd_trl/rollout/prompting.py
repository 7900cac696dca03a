"""The prompts of turns: rendered from views, or continued from a dialogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from alignopsd_trl.environments.base import Refusal, Rendered, Reply, View, Wishes
from alignopsd_trl.environments.batch import ValidatedBatch
from alignopsd_trl.rollout.conversations import Conversation, oldest_to_drop
from alignopsd_trl.rollout.episode import Episode, check_first_prompt
from alignopsd_trl.rollout.renderer import Renderer, Shown, text_of
from alignopsd_trl.turns import StopReason, Turn


@dataclass
class Prompting:
    """Makes the next turns of episodes whose environment words the prompts itself. [`requests.Requests`] does so for
    agents. Either class also says, without an object of it, how a turn and its answer reach the environment.

    Args:
        skills_in_rollout: whether the policy itself sees the skill.
        settings, takes_schemas: of the sampler, which the requests of an agent must fit.
    """

    environments: ValidatedBatch
    renderer: Renderer
    end_ids: Sequence[int]
    skills_in_rollout: bool = False
    settings: Mapping[str, float] = field(default_factory=dict)
    takes_schemas: bool = False

    def __post_init__(self) -> None:
        self._first: dict[tuple[str, str], str] = {}

    @staticmethod
    def wishes(prompt: Any, view: View) -> Wishes:
        """Returns what a turn asks beside its prompt: to continue the turn before it."""
        return Wishes(view.step_count, view.step_count - 1 if view.step_count else None)

    @staticmethod
    def kept(view: View) -> View:
        """Returns a view that stays as it is while the episode goes on."""
        return view

    @staticmethod
    def answer(turn: Turn | Refusal) -> str | Reply | Refusal:
        """Returns what `step` gets."""
        return turn.action if isinstance(turn, Turn) else turn

    def next_turns(self, _: Sequence[int], episodes: Sequence[Episode]) -> Sequence[Turn | Refusal | None]:
        """Returns the next turn of each episode, without its response. Where no prompt fits, it ends the episode and
        returns `None`; an agent's own request gets a refusal.

        Raises:
            SiblingsDiffer: if siblings opened alike and read different first prompts.
        """
        turns = self._made(episodes)
        for episode, turn in zip(episodes, turns, strict=True):
            trajectory = episode.trajectory
            if turn is None:
                trajectory.stop = StopReason.PROMPT_TOO_LONG
                trajectory.message = trajectory.message if trajectory.turns else self._too_long(episode)
            elif isinstance(turn, Turn) and not turn.number and episode.wishes.trained:
                if not self.environments.openings_may_differ:
                    check_first_prompt(trajectory, turn.prompt_text, self._first, self.environments.name)
        return turns

    def _too_long(self, episode: Episode) -> str:
        """Says how much too long a first prompt is, and what to change."""
        skill, view = episode.trajectory.skill_text, episode.view(0)
        bare, whole = map(len, self.renderer.encode([self.renderer.show(view, text) for text in ("", skill)]))
        share = f", {whole - bare:,} of them the skill's" if skill else ""
        limit, reserved = self.renderer.options.max_prompt_length, self.renderer.reserved
        remedy = "lower skill_tokens" if bare <= limit else "shorten what reset() returns"
        kept = f" less {reserved} for a later text" if reserved else ""
        return (
            f"its first prompt has {whole:,} tokens{share}, more than max_prompt_length={limit}{kept}; "
            f"raise that, or {remedy}"
        )

    def _made(self, episodes: Sequence[Episode]) -> Sequence[Turn | Refusal | None]:
        """Renders prompts from views. The later prompts of a conversation continue its first one."""
        follows = [one.wishes.follows if self.renderer.converses else None for one in episodes]
        pairs = list(zip(episodes, follows, strict=True))
        shown = iter(self._show([episode for episode, earlier in pairs if earlier is None]))
        return [next(shown) if earlier is None else self._go_on(one, earlier) for one, earlier in pairs]

    def _go_on(self, episode: Episode, follows: int) -> Turn | None:
        """Continues the dialogues of an earlier turn; `None` if the prompt does not fit."""
        last, view = episode.trajectory.turns[follows], episode.view(1)
        reply = self.renderer.reply(view)
        own, privileged = self._taken(episode, follows)
        dialogues = dict.fromkeys([own, privileged])
        for dialogue in dialogues:
            dialogue.go_on(last.response_ids, reply, self.end_ids)
        drop = self._to_drop(privileged)
        if drop is None:
            return None
        episode.dialogues[view.step_count] = own, privileged
        for dialogue in dialogues if drop else ():
            dialogue.forget(drop)
        turn = Turn(view.step_count, text_of(reply), [*own.ids], [*privileged.ids], history_shortened=own.shortened)
        turn.shown = own.shown(last.shown.view) if self.renderer.reserved else None
        return turn

    def _taken(self, episode: Episode, follows: int) -> tuple[Conversation, Conversation]:
        """Returns the dialogues of a turn, to go on with."""
        return episode.dialogues.pop(follows)

    def _to_drop(self, dialogue: Conversation) -> int | None:
        """Returns how many of the oldest turns to drop so that the prompt fits; `None` if it can't."""
        return oldest_to_drop(dialogue, self.renderer.max_length)

    def _show(self, episodes: Sequence[Episode]) -> list[Turn | None]:
        """Makes turns whose prompts are rendered from views. A prompt that equals the privileged one takes its ids."""
        full = [episode.view(self.environments.history_length) for episode in episodes]
        fitted = self.renderer.fit(full, [episode.trajectory.skill_text for episode in episodes])
        prompts: list[Rendered] = [
            "" if fit is None else fit.shown if self.skills_in_rollout else self.renderer.show(fit.view, "")
            for fit in fitted
        ]
        both = list(zip(prompts, fitted, strict=True))
        encoded = iter(self.renderer.encode([prompt for prompt, fit in both if fit and prompt != fit.shown]))
        turns: list[Turn | None] = []
        for episode, view, (prompt, fit) in zip(episodes, full, both, strict=True):
            if fit is None:
                turns.append(None)
                continue
            ids, same = (fit.ids, True) if prompt == fit.shown else (next(encoded), False)
            shortened = len(fit.view.history) < len(view.history)
            turn = Turn(view.step_count, text_of(prompt), [*ids], [*fit.ids], history_shortened=shortened)
            turn.shown = Shown(self.kept(fit.view)) if self.renderer.reserved else None
            if self.renderer.converses and episode.wishes.trained:
                own = Conversation(self.renderer, prompt, ids)
                other = own if same else Conversation(self.renderer, fit.shown, fit.ids)
                episode.dialogues[view.step_count] = own, other
            turns.append(turn)
        return turns
