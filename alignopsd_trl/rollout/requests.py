"""An agent's own requests: what each asks for, how it becomes a prompt, and how its answer goes back."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from alignopsd_trl.environments.base import Chat, Refusal, Reply, Step, View, Wishes
from alignopsd_trl.rollout.conversations import Conversation
from alignopsd_trl.rollout.episode import Episode
from alignopsd_trl.rollout.options import OWN_KWARGS
from alignopsd_trl.rollout.prompting import Prompting
from alignopsd_trl.rollout.renderer import Renderer, messages_of
from alignopsd_trl.turns import StopReason, Turn

TOO_LONG = "context_length_exceeded"
MOST_PASSED = 256  # requests in a row that become no turn: such an agent may never end


def asks(prompt: Any) -> bool:
    """Whether an environment's prompts are an agent's own requests."""
    return hasattr(prompt, "wishes")


def prompting_of(prompt: Any) -> type[Prompting]:
    """Returns what makes the turns of an environment, by its prompt."""
    return Requests if asks(prompt) else Prompting


@dataclass
class Requests(Prompting):
    """Makes turns of an agent's requests, or refuses them; none is shortened."""

    @staticmethod
    def wishes(prompt: Any, view: View) -> Wishes:
        return prompt.wishes(view)

    @staticmethod
    def kept(view: View) -> View:
        """Returns a view with a copy of the agent's context, which goes on to the next request."""
        return replace(view, context=copy(view.context))

    @staticmethod
    def answer(turn: Turn | Refusal) -> Reply | Refusal:
        if isinstance(turn, Refusal):
            return turn
        return Reply(turn.action, len(turn.prompt_ids), len(turn.response_ids), turn.truncated)

    def _made(self, episodes: Sequence[Episode]) -> list[Turn | Refusal]:
        return [self._asked(one) for one in episodes]

    def _asked(self, episode: Episode) -> Turn | Refusal:
        """Returns the turn of a request, or why there is none."""
        for name, value in episode.wishes.settings.items():
            if self.settings.get(name, value) != value:
                return Refusal(
                    f"{name}={value} is not the run's {self.settings[name]}, so that the policy would learn from what "
                    "it does not sample; leave it out, or use AgentEnvironment(..., sampling='ignore')",
                    "unsupported_value",
                )
        if episode.wishes.schema is not None and not self.takes_schemas:
            return Refusal("this sampler takes no response_format with a schema", "unsupported_value")
        try:
            check_request(self.renderer, episode.view(1))
            (turn,) = super()._made([episode])
        except Exception as error:  # of any kind: the template's code runs on what an agent wrote
            return Refusal(f"the chat template refuses this request: {error}", "invalid_value")
        limit = f"max_prompt_length={self.renderer.max_length}"
        return turn or Refusal(f"the prompt has more tokens than {limit}", TOO_LONG)

    def _taken(self, episode: Episode, follows: int) -> tuple[Conversation, Conversation]:
        """Returns copies of the dialogues of a turn: several requests may continue the same one."""
        own, privileged = episode.dialogues[follows]
        other = copy(own)
        return other, other if privileged is own else copy(privileged)

    def _to_drop(self, dialogue: Conversation) -> int | None:
        return 0 if len(dialogue.ids) <= self.renderer.max_length else None


def check_request(renderer: Renderer, view: View) -> None:
    """Raises `ValueError` unless the chat template reads the variables of a request and shows its new messages; past
    responses it may shorten."""
    prompt = Chat.of(renderer.show(view, ""))
    new = [message for message in messages_of(renderer.reply(view)) if message["role"] != "assistant"]
    unread = (name for name in prompt.variables if name in OWN_KWARGS or not renderer.reads(name))
    if (name := next(unread, None)) is not None:
        raise ValueError(f"it never reads {name!r} of a request; leave that out, or use sampling='ignore'")
    if not renderer.shows(prompt, new):
        hidden = next(message for message in new if not renderer.shows(prompt, [message]))
        raise ValueError(f"it does not show the message of {hidden['role']!r}, {hidden['content']!r:.80}")


def pass_over(episode: Episode, turn: Turn | Refusal, step: Step) -> None:
    """Goes on after a request that becomes no turn: it is refused, or not trained."""
    trajectory, refusal = episode.trajectory, turn if isinstance(turn, Refusal) else None
    episode.observation, episode.admissible, episode.passed = step.observation, step.admissible, episode.passed + 1
    trajectory.won = step.won
    if step.done:
        too_long = refusal is not None and refusal.code == TOO_LONG
        trajectory.stop = StopReason.PROMPT_TOO_LONG if too_long else StopReason.DONE
    elif episode.passed >= MOST_PASSED:
        trajectory.stop = StopReason.TURN_LIMIT
    if trajectory.stop is not None and not trajectory.turns:
        last = f"; its last request was refused: {refusal.reason}" if refusal else ""
        trajectory.message = f"the agent ended without a turn to train on{last}"
