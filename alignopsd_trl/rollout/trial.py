"""Tries a chat template before anything is played: three turns, of which it must show every text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from os.path import commonprefix
from typing import Any

from transformers import PreTrainedTokenizerBase

from alignopsd_trl.environments.base import Chat, Message
from alignopsd_trl.rollout.conversations import Conversation
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.renderer import Renderer

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
    nobody: Any = None  # the prompts are rendered already
    renderer = Renderer(tokenizer, nobody, options)
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
    asked, whole = renderer.text(opening), renderer.text(Chat([*opening.messages, message], opening.tools), asks=False)
    ids, end = renderer.tokens(whole[len(commonprefix([asked, whole])) :]), renderer.end_id
    return (ids[: ids.index(end) + 1] if end in ids else ids), [end]


def notes_of(tokenizer: PreTrainedTokenizerBase, options: PlayOptions, ends: Collection[int]) -> Iterator[str]:
    """Yields what a user should know of a chat template: options that it never reads, and an end of its turns that ends
    no response."""
    nobody: Any = None
    renderer, template = Renderer(tokenizer, nobody, options), str(tokenizer.chat_template)
    for name in options.chat_template_kwargs or ():
        if not re.search(rf"\b{re.escape(name)}\b", template):
            yield f"chat_template_kwargs: the chat template never reads {name!r}; leave it out, or correct its name"
    said = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "seen"}]
    after = renderer.text(said, asks=False).rpartition("seen")[2].strip()
    end = re.match(f"({renderer.marks.pattern})+", after)
    if end and not {*renderer.tokens(end[0])} & {*ends}:
        yield (
            f"responses run on past {end[0]!r}, with which the chat template ends a turn: it is no end token; add its "
            f"id, {renderer.tokens(end[0])[-1]}, to generation_config.eos_token_id"
        )
