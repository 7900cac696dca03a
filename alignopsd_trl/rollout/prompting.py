"""The prompts of an episode's turns, rendered from views or continued from a dialogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from jinja2 import TemplateError

from alignopsd_trl.environments.base import Rendered, Reply
from alignopsd_trl.environments.batch import ValidatedBatch
from alignopsd_trl.rollout.conversations import Conversation, oldest_to_drop
from alignopsd_trl.rollout.episode import TOO_LONG, Episode, check_first_prompt
from alignopsd_trl.rollout.renderer import Renderer, Shown, text_of
from alignopsd_trl.turns import StopReason, Turn


@dataclass
class Prompting:
    """Makes the next turn of episodes, with its ordinary and its privileged prompt.

    `Episode.dialogues` holds what a later turn may continue: by turn, the policy's dialogue and the privileged one.

    Args:
        renderer, end_ids, environments, skills_in_rollout, settings: as in [`Player`].
        takes_schemas: whether the sampler can follow an agent's JSON schema.
    """

    renderer: Renderer
    end_ids: Sequence[int]
    environments: ValidatedBatch
    skills_in_rollout: bool
    settings: Mapping[str, float]
    takes_schemas: bool
    _first: dict[tuple[str, str], str] = field(default_factory=dict)

    def next_turns(self, episodes: Sequence[Episode]) -> list[Turn | Reply | None]:
        """Returns the next turn of each episode. Where no prompt fits, it ends the episode and returns ``None``; an
        agent's own request gets a refusal.

        Raises:
            SiblingsDiffer: if siblings opened alike and read different first prompts.
        """
        for episode in episodes:
            episode.wishes = self.renderer.wishes(episode.view(1))
        turns = [self._asked(one) for one in episodes] if self.renderer.asks else self._made(episodes)
        for episode, turn in zip(episodes, turns, strict=True):
            trajectory = episode.trajectory
            if turn is None:
                trajectory.stop = StopReason.PROMPT_TOO_LONG
                trajectory.message = trajectory.message if trajectory.turns else self._too_long(episode)
            elif isinstance(turn, Turn) and not turn.number and not self.environments.openings_may_differ:
                check_first_prompt(trajectory, turn.prompt_text, self._first, self.environments.name)
        return [*turns]

    def _asked(self, episode: Episode) -> Turn | Reply:
        """Returns the turn of an agent's request, or why there is none."""
        for name, value in episode.wishes.settings.items():
            if self.settings.get(name, value) != value:
                told = f"{name}={value} is not the run's {self.settings[name]}, so that the policy would learn from "
                told += "what it does not sample; leave it out, or use AgentEnvironment(..., sampling='ignore')"
                return Reply.of(told, error="unsupported_value")
        if episode.wishes.schema is not None and not self.takes_schemas:
            return Reply.of("this sampler takes no response_format with a schema", error="unsupported_value")
        try:
            (turn,) = self._made([episode])
        except (TemplateError, TypeError, ValueError) as error:
            return Reply.of(f"the chat template refuses these messages: {error}", error="invalid_value")
        limit = f"max_prompt_length={self.renderer.max_length}"
        return turn or Reply.of(f"the prompt has more tokens than {limit}", error=TOO_LONG)

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

    def _made(self, episodes: Sequence[Episode]) -> list[Turn | None]:
        """Renders prompts from views. The later prompts of a conversation continue its first one."""
        follows = [one.wishes.follows if self.renderer.converses else None for one in episodes]
        pairs = list(zip(episodes, follows, strict=True))
        shown = iter(self._show([episode for episode, earlier in pairs if earlier is None]))
        return [next(shown) if earlier is None else self._go_on(one, earlier) for one, earlier in pairs]

    def _go_on(self, episode: Episode, follows: int) -> Turn | None:
        last, view = episode.trajectory.turns[follows], episode.view(1)
        reply = self.renderer.reply(view)
        dialogues = own, privileged = self._taken(episode, follows)
        for dialogue in dict.fromkeys(dialogues):
            dialogue.go_on(last.response_ids, reply, self.end_ids)
        if self.renderer.asks:
            drop = 0 if len(privileged.ids) <= self.renderer.max_length else None
        else:
            drop = oldest_to_drop(privileged, self.renderer.max_length)
        if drop is None:
            return None
        episode.dialogues[view.step_count] = dialogues
        for dialogue in dict.fromkeys(dialogues):
            if drop:
                dialogue.forget(drop)
        shortened = not self.renderer.asks and len(own) < view.step_count
        turn = Turn(view.step_count, text_of(reply), [*own.ids], [*privileged.ids], history_shortened=shortened)
        turn.shown = own.shown(last.shown.view) if self.renderer.reserved else None
        return turn

    def _taken(self, episode: Episode, follows: int) -> tuple[Conversation, Conversation]:
        """Returns the dialogues of a turn, to go on with. Several requests of an agent may continue the same turn."""
        if not self.renderer.asks:
            return episode.dialogues.pop(follows)
        own, privileged = episode.dialogues[follows]
        other = own.forked()
        return other, other if privileged is own else privileged.forked()

    def _show(self, episodes: Sequence[Episode]) -> list[Turn | None]:
        """Makes turns whose prompts are rendered from views. A prompt that equals the privileged one takes its ids."""
        full = [episode.view(self.environments.history_length) for episode in episodes]
        fitted = self.renderer.fit(full, [episode.trajectory.skill_text for episode in episodes])
        prompts: list[Rendered] = [
            "" if one is None else one.shown if self.skills_in_rollout else self.renderer.show(one.view, "")
            for one in fitted
        ]
        both = list(zip(prompts, fitted, strict=True))
        encoded = iter(self.renderer.encode([prompt for prompt, one in both if one and prompt != one.shown]))
        turns: list[Turn | None] = []
        for episode, view, (prompt, one) in zip(episodes, full, both, strict=True):
            if one is None:
                turns.append(None)
                continue
            ids, same = (one.ids, True) if prompt == one.shown else (next(encoded), False)
            shortened = len(one.view.history) < len(view.history)
            turn = Turn(view.step_count, text_of(prompt), [*ids], [*one.ids], history_shortened=shortened)
            if self.renderer.reserved:
                # an agent's requests share one context, which goes on to the next request
                context = copy(one.view.context) if self.renderer.asks else one.view.context
                turn.shown = Shown(replace(one.view, context=context))
            if self.renderer.converses and episode.wishes.trained:
                own = Conversation(self.renderer, prompt, ids)
                other = own if same else Conversation(self.renderer, one.shown, one.ids)
                episode.dialogues[view.step_count] = own, other
            turns.append(turn)
        return turns
