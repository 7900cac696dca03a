"""Renders the views of an environment as messages and, through the tokenizer's chat template, as token ids.

A template renders a prompt to one text, in which a tokenizer finds control tokens wherever they stand. They are broken
up in all that a prompt shows but the policy's own responses, whose token ids are kept: observations, tasks, skills,
tools and messages.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, nodes

from alignopsd_trl.environments.base import Chat, Prompt, Rendered, View
from alignopsd_trl.rollout.options import THINK, PlayOptions
from alignopsd_trl.rollout.reading import add_parser, message_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ASKED = (*THINK, "<tool_call>", "</tool_call>")
"""Tags that prompts ask a policy to write. They begin no turn and end none."""
_ASKS = ("defined", "undefined", "default")  # tests and filters for what may be given or not
MOST_HELD = 4_000_000  # tokens of cached texts, some 8 bytes each with the text


def marks_of(tokenizer: PreTrainedTokenizerBase, asked: Sequence[str] = ()) -> re.Pattern[str]:
    """Makes a pattern of the control tokens that a tokenizer finds in any text: its special tokens, and the other added
    tokens that look like them or that its chat template writes, except tags that prompts ask for.

    Args:
        asked: further such tags; special tokens among them are control tokens all the same.
    """
    template, added = str(tokenizer.chat_template), tokenizer.added_tokens_decoder.values()
    special = {str(one) for one in added if one.special} | set(tokenizer.all_special_tokens)
    written = {str(one) for one in added if re.search(r"[|｜]", str(one)) or str(one) in template}
    written = {one for one in written if not one[0].isalnum() and not re.search(r"\s", one)} - {*asked}
    whole = (one for one in (special | written) - {*ASKED} if len(one) > 1 and not one[1].isspace())
    marks = sorted(whole, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, marks)) or r"(?!)", re.IGNORECASE)


def as_text(shown: Any, marks: re.Pattern[str]) -> Any:
    """Breaks up marks in a text, or in all texts of messages and tools, so that they are encoded as text:
    ``<|im_end|>`` becomes ``< |im_end|>``."""
    if isinstance(shown, str):
        while marks.search(shown):  # the rest of a broken mark may be another one
            shown = marks.sub(lambda found: f"{found[0][0]} {found[0][1:]}", shown)
        return shown
    if isinstance(shown, Mapping):
        return {as_text(name, marks): as_text(one, marks) for name, one in shown.items()}
    return [as_text(one, marks) for one in shown] if isinstance(shown, list | tuple) else shown


@cache
def _variables(template: str) -> set[str]:
    """Returns the variables that a chat template reads and does not set itself, unless they are defined."""
    plain = re.sub(r"{%-?\s*(end)?generation\s*-?%}", "", template)  # a block of transformers' own
    tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(plain)
    names = [*tree.find_all(nodes.Name)]
    tests = (one for one in tree.find_all((nodes.Test, nodes.Filter)) if one.name in _ASKS)
    own = {one.name for one in names if one.ctx != "load"} - {getattr(one.node, "name", "") for one in tests}
    own |= {"loop", *(one.name for one in tree.find_all(nodes.Macro))}
    return {one.name for one in names} - own


def messages_of(prompt: Rendered) -> list[dict[str, Any]]:
    """Returns the messages of a prompt; a text is one user message."""
    return [dict(message) for message in Chat.of(prompt).messages]


def text_of(prompt: Rendered) -> str:
    """Returns a prompt for people to read: a text unchanged, messages under their roles."""
    if isinstance(prompt, str):
        return prompt
    texts = []
    for message in messages_of(prompt):
        rest = {name: value for name, value in message.items() if name not in ("role", "content") and value}
        parts = str(message.get("content") or ""), str(rest or "")  # such as tool calls
        texts.append(f"[{message.get('role', '')}]\n" + "\n".join(filter(None, parts)))
    return "\n\n".join(texts)


@dataclass(frozen=True)
class Fitted:
    """A view whose history is short enough that the prompt with the skill fits, and that prompt with its token ids."""

    view: View
    shown: Rendered
    ids: list[int]


@dataclass(frozen=True)
class Shown:
    """What a turn's prompt showed, to render it again with a text in its skill slot.

    Args:
        view: of the prompt; in a conversation of its first prompt.
        past: a conversation's messages since then.
        tail: their token ids; `None` where the chat template rewrote them.
    """

    view: View
    past: Sequence[Mapping[str, Any]] = ()
    tail: Sequence[int] | None = ()

    def beside(self, renderer: Renderer, text: str) -> tuple[Rendered, list[int]]:
        """Renders the turn's prompt with ``text`` in its skill slot.

        Returns:
            The prompt, and token ids to append to its own: those of a conversation's later messages, unless the chat
            template rewrote them, which then are part of the prompt.
        """
        prompt = renderer.show(self.view, text)
        if self.tail is not None:
            return prompt, list(self.tail)
        return Chat.of(prompt, self.past), []


class Renderer:
    """Turns a `View` into prompt token ids through the tokenizer's chat template. A text is one user message.

    Args:
        prompt: the environment's template; `None` where all prompts are rendered already.
        reserved: tokens of a prompt that stay free for a text that is known after play (`Turn.shown`); 0: none.

    Attributes:
        converses: whether prompts are dialogues.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, prompt: Prompt | None, options: PlayOptions, reserved: int = 0
    ):
        self._tokenizer: Any = tokenizer  # its annotations give a union whatever it is asked for
        self._prompt: Any = prompt  # with optional methods
        self.options = options
        self._kwargs = dict(options.chat_template_kwargs or {})
        self.marks, self.end_id = marks_of(tokenizer, options.thinking_tags), self._tokenizer.eos_token_id
        self.reserved, self.max_length = reserved, options.max_prompt_length - reserved
        self.converses = options.history == "conversation"
        self._known: dict[str, array[int]] = {}
        self._held = 0

    def show(self, view: View, skill: str) -> Rendered:
        """Renders a view by the environment's prompt, without control tokens.

        Raises:
            TypeError: if the result is neither a text nor messages.
        """
        return self._foreign(self._prompt.render(view, skill), "render")

    def reply(self, view: View) -> Rendered:
        """Returns what a later turn adds to a conversation: the prompt's own ``reply(view)`` if it has one, else the
        observation and the admissible actions."""
        own = getattr(self._prompt, "reply", None)
        if own is not None:
            return self._foreign(own(view), "reply")
        offered = f"\n\nAdmissible actions: [{', '.join(view.admissible)}]" if view.admissible else ""
        return self._foreign(view.observation + offered, "reply")

    def _foreign(self, prompt: Any, method: str) -> Rendered:
        """Breaks up control tokens in what a ``method`` of the prompt returned, if the chat template can take it."""
        messages = prompt.messages if isinstance(prompt, Chat) else prompt
        plain = isinstance(messages, str) and not isinstance(prompt, Chat)
        listed = isinstance(messages, Sequence) and messages and all(isinstance(one, Mapping) for one in messages)
        if not (plain or listed):
            raise TypeError(
                f"{type(self._prompt).__name__}.{method} returned {prompt!r:.80}; return a str, a list of messages "
                "like {'role': 'user', 'content': ...}, or environments.Chat(messages, tools)"
            )
        if isinstance(prompt, Chat):
            return Chat(*(as_text(one, self.marks) for one in (prompt.messages, prompt.tools, prompt.variables)))
        return as_text(prompt, self.marks)

    def text(self, prompt: Rendered, asks: bool = True) -> str:
        """Renders a prompt by the chat template, as text; with its generation prompt if it ``asks`` for a response."""
        chat, given = Chat.of(prompt), {"add_generation_prompt": asks, "tokenize": False}
        return self._tokenizer.apply_chat_template(
            chat.messages, tools=list(chat.tools) or None, **given, **{**self._kwargs, **chat.variables}
        )

    def reads(self, variable: str) -> bool:
        """Whether the chat template reads a variable, which it does not set itself."""
        return variable in _variables(self._tokenizer.get_chat_template())

    def shows(self, prompt: Rendered, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the rendered prompt has the texts of the messages, perhaps as JSON."""
        shown, texts = self.text(prompt), [str(one.get("content") or "").strip() for one in messages]
        return all(one in shown or json.dumps(one, ensure_ascii=False)[1:-1] in shown for one in texts)

    def parsed(self, prompt: Sequence[int], response: Sequence[int], tools: Sequence[Any]) -> dict[str, Any]:
        """Returns a response as a message of thinking, content and tool calls, without control tokens.

        Raises:
            ValueError: if neither the tokenizer nor TRL has a parser for it, or as `message_of`.
        """
        add_parser(self._tokenizer)
        message = message_of(self._tokenizer, list(response), list(prompt), list(tools))
        return {"content": "", **as_text(message, self.marks), "role": "assistant"}

    def tokens(self, text: str, after: Sequence[int] = ()) -> list[int]:
        """Tokenises a text that follows the tokens ``after``. Alone it could get other tokens, since many tokenizers
        mark the beginning of a text."""
        before = self.decode(after[-1:]) if after else ""
        ahead, both = (self._tokenizer(one, add_special_tokens=False)["input_ids"] for one in (before, before + text))
        if both[: len(ahead)] == ahead:
            return both[len(ahead) :]
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def encode(self, prompts: Sequence[Rendered]) -> list[list[int]]:
        """Returns the token ids of prompts, generation prompt included. Texts are cached, since siblings and Monte
        Carlo rollouts meet the same views again."""
        if self._held > MOST_HELD:
            self._known.clear()
            self._held = 0
        texts = dict.fromkeys(prompt for prompt in prompts if isinstance(prompt, str))
        new = [text for text in texts if text not in self._known]
        for text, ids in zip(new, self._encode(new), strict=True):
            self._known[text] = array("I", ids)
            self._held += len(ids)
        others = iter(self._encode([prompt for prompt in prompts if not isinstance(prompt, str)]))
        return [self._known[one].tolist() if isinstance(one, str) else next(others) for one in prompts]

    def _encode(self, prompts: Sequence[Rendered]) -> list[list[int]]:
        texts = [self.text(prompt) for prompt in prompts]
        return self._tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []

    def fit(self, views: Sequence[View], skills: Sequence[str]) -> list[Fitted | None]:
        """Cuts each view's history, oldest records first, until the prompt *with* the skill fits; ``None`` where it is
        too long even without history. Student and teacher of a turn share the cut."""
        cut, fitted = list(views), [None] * len(views)
        open_rows = list(range(len(views)))
        while open_rows:
            shown = [self.show(cut[row], skills[row]) for row in open_rows]
            long = []
            for row, prompt, ids in zip(open_rows, shown, self.encode(shown), strict=True):
                if len(ids) <= self.max_length:
                    fitted[row] = Fitted(cut[row], prompt, ids)
                elif cut[row].history:
                    cut[row] = replace(cut[row], history=cut[row].history[1:])
                    long.append(row)
            open_rows = long
        return fitted
