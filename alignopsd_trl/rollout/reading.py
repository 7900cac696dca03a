"""Parses responses: thinking, action, and tool calls in a chat template's own format.

Environments and methods know one form, ``<think>...</think>`` and then the rest. Policies write others: the generation
prompt may hold the opening tag, and a model may have tags of its own or think in plain text before it acts.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from alignopsd_trl.environments.adapters.calls import calls_in, text_before_calls
from alignopsd_trl.environments.adapters.rows import is_deep
from alignopsd_trl.environments.base import Wishes
from alignopsd_trl.rollout.options import THINK, PlayOptions
from alignopsd_trl.turns import Thought, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TAIL = 24  # tokens at the end of a prompt that may hold an opened tag
_FAMILIES = ("action", "search", "answer")
_OPENING = {tag: re.compile(rf"<{tag}\b", re.IGNORECASE) for tag in ("think", *_FAMILIES)}
_CLOSING = {tag: re.compile(rf"</{tag}\s*>", re.IGNORECASE) for tag in ("think", *_FAMILIES)}


def _first_block(tag: str, text: str) -> str | None:
    """Returns the inside of the first complete block of a tag. Linear in the text: if the first opening tag is never
    closed, no later one is."""
    opening = _OPENING[tag].search(text)
    start = text.find(">", opening.end()) if opening else -1
    closing = _CLOSING[tag].search(text, start + 1) if start >= 0 else None
    return text[start + 1 : closing.start()] if closing else None


def parse_response(text: str | None) -> Thought:
    """Returns thinking and action of a response, for correspondence (not for the environment, which has its own rules).

    The first complete think block gives the thinking; the first family among action, search, answer that has a
    complete block gives the action, wherever it stands, even if its block is blank. Opening tags may carry attributes,
    case does not matter, outer white space is stripped. Any string or ``None`` is legal. Source: method facts A.1 to
    A.3.
    """
    text = text or ""
    thinking = _first_block("think", text)
    action = next((body for tag in _FAMILIES if (body := _first_block(tag, text)) is not None), None)
    return Thought((thinking or "").strip(), (action or "").strip())


@dataclass(frozen=True)
class Reading:
    """A parsed response.

    Args:
        text: the response for environments, with its thinking between ``<think>`` tags.
        thought: thinking and action, for correspondence.
        action: the action in the tokenizer's own format; `None` where the environment parses it from ``text``.
    """

    text: str
    thought: Thought
    action: str | None = None


class Reader:
    """Parses sampled responses of one tokenizer.

    Args:
        freely: whether, in a response without these tags, the text before the tool call counts as thinking.
        native: whether tool calls are in the format of the tokenizer's chat template.

    Raises:
        ValueError: for ``native`` with a chat template that has no tools, or whose calls have no parser.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tags: Sequence[str] = THINK,
        freely: bool = False,
        native: bool = False,
    ):
        self._tokenizer, self._tags, self._freely, self._native = tokenizer, tuple(tags), freely, native
        if native:
            require_tools(tokenizer)
        self._may_open = self._tags[0] in str(getattr(tokenizer, "chat_template", ""))
        self._special_tags: list[list[int]] | None = None
        if any(one in tag for one in getattr(tokenizer, "all_special_tokens", ()) for tag in self._tags):
            self._special_tags = [tokenizer(tag, add_special_tokens=False)["input_ids"] for tag in self._tags]

    def take(
        self, turn: Turn, response: Sequence[int], wishes: Wishes, end_ids: Sequence[int], tools: Sequence[Any]
    ) -> Reading:
        """Writes a sampled response, up to where its turn's wishes end it, and its action into the turn. Returns what
        the environment parses where the reading has no action."""
        turn.response_ids = list(response[: response_end(response, wishes, self.decode)])
        turn.response_text = self.decode(turn.response_ids)
        ended = bool(turn.response_ids) and turn.response_ids[-1] in end_ids
        turn.truncated = not ended and not any(stop in turn.response_text for stop in wishes.stop)
        reading = self.read(turn.prompt_ids, turn.response_ids, turn.response_text, tools)
        turn.thought = reading.thought
        if reading.action is not None:
            turn.action, turn.action_valid = reading.action, True
        return reading

    def read(
        self, prompt: Sequence[int], response: Sequence[int], text: str, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Reading:
        """Parses the response to a prompt.

        Args:
            text: the response, decoded without special tokens.
            tools: JSON schemas of the tools on offer, with the types of their arguments.
        """
        whole = self._canonical(prompt, response, text)
        if self._native:
            return self._message(list(prompt), list(response), whole, list(tools))
        thought = parse_response(whole)
        if self._freely:
            thinking = thought.thinking or ("" if "<think" in whole.lower() else text_before_calls(whole))
            thought = Thought(thinking, thought.action or calls_in(whole))
        return Reading(whole, thought)

    @cached_property
    def closing(self) -> set[int]:
        """The tokens that may end a closing tag."""
        texts = self._tokenizer.batch_decode([[number] for number in range(len(self._tokenizer))])
        return {number for number, text in enumerate(texts) if self._tags[1][-1] in text}

    def has_thought(self, prompt: Sequence[int], response: Sequence[int]) -> bool:
        """Whether an unfinished response already holds complete thinking between tags. Never true in native format,
        which is parsed as a whole."""
        if self._native:
            return False
        text = self._canonical(prompt, response, self.decode(response))
        return bool(parse_response(text).thinking)

    def _canonical(self, prompt: Sequence[int], response: Sequence[int], text: str) -> str:
        """Returns the response with its thinking between ``<think>`` tags, whatever opened it and whatever its tags."""
        text, (first, last) = text if self._special_tags is None else self._with_tags(response), self._tags
        if self._may_open and first not in text.partition(last)[0]:
            tail: Any = self._tokenizer.decode(list(prompt[-_TAIL:]), skip_special_tokens=False)
            text = first + text if tail.rstrip().endswith(first) else text
        return text if self._tags == THINK else text.replace(first, THINK[0], 1).replace(last, THINK[1], 1)

    def _with_tags(self, response: Sequence[int]) -> str:
        """Decodes a response without special tokens other than those of the tags."""
        parts: list[str] = []
        rest = list(response)
        for tag, ids in zip(self._tags, self._special_tags or (), strict=True):
            at = next((n for n in range(len(rest) - len(ids) + 1) if rest[n : n + len(ids)] == ids), None)
            if at is not None:
                parts += [self.decode(rest[:at]), tag]
                rest = rest[at + len(ids) :]
        return "".join([*parts, self.decode(rest)])

    def decode(self, ids: Sequence[int]) -> str:
        """Returns a text without special tokens."""
        text: Any = self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _message(self, prompt: list[int], response: list[int], whole: str, tools: list[Any]) -> Reading:
        message: dict[str, Any] = {"content": whole}
        with suppress(ValueError):
            message = message_of(self._tokenizer, response, prompt, tools)
        thinking = message.get("reasoning_content") or message.get("thinking") or parse_response(whole).thinking
        calls = message.get("tool_calls") or []
        if calls and not thinking:
            thinking = message.get("content") or ""
        shown = "\n".join(json.dumps(call.get("function", call)) for call in calls)
        return Reading(whole, Thought(str(thinking).strip(), shown), json.dumps(message))


def response_end(ids: Sequence[int], wishes: Wishes, text: Callable[[Sequence[int]], str]) -> int:
    """Returns the number of a response's tokens up to the end of the first stop text, at most ``wishes.max_tokens``."""
    length = len(ids) if wishes.max_tokens is None else min(len(ids), wishes.max_tokens)
    stops = [stop for stop in wishes.stop if stop in text(ids[:length])]
    if not stops:
        return length
    return bisect_left(range(length), True, key=lambda count: any(stop in text(ids[:count]) for stop in stops))


def message_of(tokenizer: Any, response: list[int], prompt: list[int], tools: list[Any]) -> dict[str, Any]:
    """Parses a response by its chat template's parser. A lone surrogate, which no API takes, becomes a question mark.

    Raises:
        ValueError: for calls that JSON can't hold, or of too many levels.
    """
    from trl.chat_template_utils import parse_response as parse_message

    with suppress(RecursionError):
        found = parse_message(tokenizer, response, prefix=prompt, tools=tools or None) if response else {}
        message = json.loads(json.dumps(found, ensure_ascii=False, default=str).encode(errors="replace"))
        if not is_deep(message):
            return message
    raise ValueError("its calls have too many levels")


def reader_for(tokenizer: PreTrainedTokenizerBase, environments: Any, options: PlayOptions) -> Reader:
    """Makes the reader of responses for a batch of environments (a `ValidatedBatch`)."""
    return Reader(
        tokenizer, options.thinking_tags, environments.thinks_freely, getattr(environments.prompt, "native", False)
    )


def require_tools(tokenizer: PreTrainedTokenizerBase) -> None:
    """Checks that the chat template shows tool calls and that these can be parsed, by TRL's parser if need be.

    Raises:
        ValueError: if not; says what to do.
    """
    from trl.chat_template_utils import supports_tool_calling

    remedy = "use format='text' of the environment, which works with any template"
    if not supports_tool_calling(tokenizer):
        raise ValueError(
            "format='native' needs a chat template that shows tools, their calls and what they return, and this "
            f"tokenizer's does not; set tokenizer.chat_template to one that does, or {remedy}"
        )
    try:
        add_parser(tokenizer)
    except ValueError as error:
        raise ValueError(
            f"format='native' needs to read the calls that a model writes, and {error}, or {remedy}"
        ) from None


def add_parser(tokenizer: PreTrainedTokenizerBase) -> None:
    """Gives a tokenizer TRL's parser of responses to its chat template, unless it has one.

    Raises:
        ValueError: if TRL has none.
    """
    if getattr(tokenizer, "response_template", None) is None and getattr(tokenizer, "response_schema", None) is None:
        from trl.chat_template_utils import add_response_schema

        try:
            add_response_schema(tokenizer)
        except ValueError as error:
            raise ValueError(
                "neither the tokenizer nor TRL has a parser for what this chat template lets the model write; set "
                "tokenizer.response_template"
            ) from error
