"""Conversations: the whole dialogue of an episode as the policy's prompt, continued by token ids.

    first prompt | response | rest | response | rest ...

A rest is all that the chat template writes between two responses: the environment's reply with its markup. The ids of
sampled tokens are kept wherever the template shows a past response unchanged. Elsewhere the response, or the whole
dialogue, is encoded from its text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from os.path import commonprefix
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from alignopsd_trl.environments.base import Chat, Message, Rendered, View
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.renderer import Renderer, Shown, messages_of
from alignopsd_trl.turns import Trajectory, continued

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = "\ufdd0past\ufdd1"  # noncharacters, which no response holds


class Conversation:
    """One episode's dialogue under one view. A `copy.copy` goes on from here by itself: its lists are never changed.

    The renderer's ``past_thinking`` decides on the thinking of earlier responses: ``"template"`` leaves it to the chat
    template, ``"keep"`` keeps it.

    Args:
        opening: the first prompt.

    Attributes:
        ids: the prompt of the next turn.
        shortened: whether turns were dropped from it.
    """

    def __init__(self, renderer: Renderer, opening: Rendered, ids: Sequence[int]):
        self._renderer, self._past_thinking = renderer, renderer.options.past_thinking
        self._opening = Chat.of(opening)
        self._turns: list[list[Message]] = []
        self._first: list[int] = list(ids)
        self._parts: list[list[int]] | None = []  # the ids of each past turn; None once a template rewrote them
        self._shown: str | None = None
        self.ids: list[int] = list(ids)
        self.shortened = False

    def __len__(self) -> int:
        return len(self._turns)

    def go_on(self, response: Sequence[int], reply: Rendered, end_ids: Sequence[int]) -> None:
        """Appends the sampled response and the environment's reply to it."""
        ended = bool(response) and response[-1] in end_ids
        said = self._renderer.decode(response[:-1] if ended else response)
        end = self._renderer.decode(response[-1:]) if ended else ""
        added = messages_of(reply)
        self._turns = [*self._turns, [self._message(response, said, added), *added]]
        grown = self._by_template if self._past_thinking == "template" else self._by_mark
        part = grown(list(response), said, end)
        if part is None:
            self._parts, self.ids = None, self._renderer.encode([self._chat(self._turns)])[0]
        else:
            self.ids = self.ids + part
            self._parts = None if self._parts is None else [*self._parts, part]

    def _message(self, response: Sequence[int], said: str, reply: Sequence[Message]) -> Message:
        """Returns a response as a message: its text, or, where the template refuses that or does not show the reply to
        it, thinking, content and calls apart.

        Raises:
            TemplateError, ValueError: if the template refuses both.
        """
        plain: Message = {"role": "assistant", "content": said}
        refusal: Exception | None = None
        try:
            if self._renderer.shows(self._chat([*self._turns, [plain, *reply]]), reply):
                return plain
        except (TemplateError, TypeError) as error:
            refusal = error
        try:
            parts = self._renderer.parsed(self.ids, response, self._opening.tools)
            if self._renderer.shows(self._chat([*self._turns, [parts, *reply]]), reply):
                return parts
        except (TemplateError, TypeError, ValueError) as error:
            if refusal is not None:
                raise ValueError(f"{refusal} ({error})") from error
        return plain

    def _by_template(self, response: list[int], said: str, end: str) -> list[int] | None:
        """Returns the ids to append if the template leaves the dialogue so far unchanged, else `None`."""
        before = self._renderer.text(self._chat(self._turns[:-1])) if self._shown is None else self._shown
        after = self._shown = self._renderer.text(self._chat(self._turns))
        if after.startswith(before + said):
            rest = after[len(before) + len(said) :].removeprefix(end)
            return response + self._renderer.tokens(rest, self.ids + response)
        return self._renderer.tokens(after[len(before) :], self.ids) if after.startswith(before) else None

    def _by_mark(self, response: list[int], said: str, end: str) -> list[int] | None:
        """Returns the ids to append even if the template changes past responses: a mark in the response's place shows
        where the rest begins. `None` if the mark is lost."""
        (message, *reply) = self._turns[-1]
        marked = [*self._turns[:-1], [{**message, "content": _MARK}, *reply]]
        before, *rest = self._renderer.text(self._chat(marked)).split(_MARK)
        if len(rest) != 1 or message["content"] != said:
            return None
        return response + self._renderer.tokens(rest[0].removeprefix(end), self.ids + response)

    def _chat(self, turns: Sequence[Sequence[Message]]) -> Chat:
        return Chat.of(self._opening, [message for turn in turns for message in turn])

    def shown(self, opening: View) -> Shown:
        """Returns the dialogue so far, from which `Shown.beside` can render the next prompt again.

        Args:
            opening: the view of the first prompt.
        """
        past = [message for turn in self._turns for message in turn]
        return Shown(opening, past, None if self._parts is None else self.ids[len(self._first) :])

    def without_oldest(self, count: int) -> list[int]:
        """Returns the ids without that many of the oldest turns."""
        if self._parts is not None:
            return self._first + [token for part in self._parts[count:] for token in part]
        return self._renderer.encode([self._chat(self._turns[count:])])[0]

    def forget(self, count: int) -> None:
        """Drops that many of the oldest turns."""
        self.ids, self.shortened = self.without_oldest(count), True
        self._turns, self._shown = self._turns[count:], None
        self._parts = None if self._parts is None else self._parts[count:]


def oldest_to_drop(conversation: Conversation, limit: int) -> int | None:
    """Returns how many of the oldest turns to drop so that the prompt fits ``limit`` tokens; `None` if it can't.

    If possible, it drops turns until half the limit is free. The following turns can then extend the prompt's token
    ids; dropping one turn at a time would make each prompt a new one.
    """
    if len(conversation.ids) <= limit:
        return 0
    fits = None
    for count in range(1, len(conversation)):
        length = len(conversation.without_oldest(count))
        if length <= limit:
            fits = count
        if length <= limit // 2:
            break
    return fits


def note_of_breaks(trajectories: Sequence[Trajectory], options: PlayOptions) -> str | None:
    """Says what to do where the chat template keeps dialogues from being rows; `None` where it does not."""
    later = [pair for played in trajectories for pair in continued(played.turns)]
    broken = sum(not two.extends(one) and not two.history_shortened for one, two in later)
    if not broken or options.past_thinking != "template":
        return None
    return (
        f"past_thinking='keep' would save rows: the chat template rewrites past responses in {broken} of "
        f"{len(later)} prompts (docs/conversations.md)"
    )


# The trial of a chat template before anything is played: three turns, of which it must show every text


_MOST = 4096  # words of the prompt that must not be cut
_PLACE = {"type": "string", "description": "Where."}
_TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {"place": _PLACE}}}
_CALL = {"type": "function", "function": {"name": "look", "arguments": {"place": "here"}}}


def check_template(tokenizer: PreTrainedTokenizerBase, options: PlayOptions, native: bool = False) -> None:
    """Checks that a chat template shows a prompt whole and asks for a response; for conversations and for tools in its
    own format also that it goes on after thinking, answers and calls.

    Args:
        native: whether it shows tools and their calls.

    Raises:
        ValueError: if not; names what it lacks, and the remedy.
    """
    renderer = Renderer(tokenizer, None, options)
    try:
        _asks(renderer)
        if options.history == "conversation" or native:
            _goes_on(renderer, native)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"the tokenizer's chat template can't be played with: {reason}; set tokenizer.chat_template to one that "
            "can, or take another model"
        ) from error


def _asks(renderer: Renderer) -> None:
    text = " ".join(map(str, range(min(renderer.options.max_prompt_length, _MOST))))
    asked: list[Message] = [{"role": "user", "content": text}]
    shown, bare = renderer.text(asked), renderer.text(asked, asks=False)
    if text not in shown:
        raise ValueError("it drops or cuts the text of the user's message")
    whole = renderer.text([*asked, {"role": "assistant", "content": "seen"}], asks=False)
    lead = whole.removeprefix(shown).partition("seen")[0].strip()
    if shown == bare and lead and whole.startswith(shown):
        raise ValueError(f"add_generation_prompt changes nothing, and a response begins after {lead!r}")


def _goes_on(renderer: Renderer, native: bool) -> None:
    opening = Chat([{"role": "user", "content": "first"}], [{"type": "function", "function": _TOOL}] if native else ())
    talk = Conversation(renderer, opening, renderer.encode([opening])[0])
    for number, word in enumerate(("second", "third")):
        message = {"role": "assistant", "content": "seen", "reasoning_content": "well", "thinking": "well"}
        reply: list[Message] = [{"role": "user", "content": word}]
        if native:
            message = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
            reply = [{"role": "tool", "name": "look", "content": word}]
        said, ends = _said(renderer, opening, message)
        talk.go_on(said, reply, ends)
        shown = renderer.decode(talk.ids)
        if renderer.options.past_thinking == "keep" and "well" in renderer.decode(said) and "well" not in shown:
            raise ValueError("it drops past thinking; use past_thinking='template'")
        if word not in shown and renderer.decode(renderer.tokens(word)).strip() == word:
            raise ValueError(f"it does not show the reply to response {number + 1}")


def _said(renderer: Renderer, opening: Chat, message: Message) -> tuple[list[int], list[int]]:
    """Returns the response that the template makes of a message, to its end, and the token that ends it."""
    asked, whole = renderer.text(opening), renderer.text(Chat.of(opening, [message]), asks=False)
    ids, end = renderer.tokens(whole[len(commonprefix([asked, whole])) :]), renderer.end_id
    return (ids[: ids.index(end) + 1] if end in ids else ids), [end]


def notes_of(tokenizer: PreTrainedTokenizerBase, options: PlayOptions, ends: Collection[int]) -> Iterator[str]:
    """Yields what a user should know of a chat template: options that it never reads, and an end of its turns that ends
    no response."""
    renderer = Renderer(tokenizer, None, options)
    for name in options.chat_template_kwargs or ():
        if not renderer.reads(name):
            yield f"chat_template_kwargs: the chat template never reads {name!r}; leave it out, or correct its name"
    said = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "seen"}]
    after = renderer.text(said, asks=False).rpartition("seen")[2].strip()
    end = re.match(f"({renderer.marks.pattern})+", after)
    if end and not {*renderer.tokens(end[0])} & {*ends}:
        yield (
            f"responses run on past {end[0]!r}, with which the chat template ends a turn: it is no end token; add its "
            f"id, {renderer.tokens(end[0])[-1]}, to generation_config.eos_token_id"
        )
