"""Options of playing: what a policy's prompts show, and how its responses are read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from alignopsd_trl.common.options import as_mapping

OWN_KWARGS = ("messages", "conversation", "tools", "chat_template", "add_generation_prompt", "continue_final_message")
OWN_KWARGS += ("tokenize", "padding", "truncation", "max_length", "tokenizer_kwargs", "processor_kwargs")
"""Arguments of a tokenizer's ``apply_chat_template`` that playing gives itself, as those that begin with return_."""
THINK = ("<think>", "</think>")
"""The tags between which a model thinks by default."""


@dataclass(frozen=True)
class PlayOptions:
    """Options of playing beside environment, tokenizer and sampler, in training, evaluations and measurements alike.

    To add one, add a field here and a field of this name to [`AlignOPSDConfig`]. A field's metadata is how a command
    line takes it (arguments of ``add_argument``).

    Args:
        max_prompt_length: tokens of a prompt at most.
        max_turns: turns of an episode; the environment's own number by default.
        history: ``"window"`` (each turn is a prompt of its own, with some of the past) or ``"conversation"`` (the whole
            dialogue, see `conversations`).
        past_thinking: of a conversation's earlier responses, see [`conversations.Conversation`].
        thinking_tags: between which the model thinks.
        chat_template_kwargs: handed to the chat template.

    Raises:
        ValueError: for ``thinking_tags`` that are no opening and closing tag, and for ``chat_template_kwargs`` that are
            no variables of a chat template.
    """

    max_prompt_length: int = field(default=4096, metadata={"type": int})
    max_turns: int | None = field(default=None, metadata={"type": int})
    history: str = field(default="window", metadata={"choices": ("window", "conversation")})
    past_thinking: str = field(default="template", metadata={"choices": ("template", "keep")})
    thinking_tags: Sequence[str] = field(default=THINK, metadata={"nargs": 2})
    chat_template_kwargs: Mapping[str, Any] | None = field(default=None, metadata={"help": "JSON"})

    def __post_init__(self) -> None:
        if len(self.thinking_tags) != 2 or not all(self.thinking_tags):
            raise ValueError(f"thinking_tags={self.thinking_tags!r} must be an opening and a closing tag")
        object.__setattr__(self, "thinking_tags", tuple(self.thinking_tags))
        object.__setattr__(self, "chat_template_kwargs", as_mapping(self.chat_template_kwargs) or None)
        for name in self.chat_template_kwargs or ():
            if name in OWN_KWARGS or name.startswith("return_"):
                raise ValueError(
                    f"chat_template_kwargs has {name!r}, which playing sets itself; leave it out; the chat template's "
                    "own variables go here, such as enable_thinking"
                )

    @classmethod
    def of(cls, config: Any) -> PlayOptions:
        """Takes the options from a configuration with fields of these names."""
        return cls(**{name: getattr(config, name) for name in cls.names()})

    @classmethod
    def names(cls) -> list[str]:
        return [one.name for one in fields(cls)]

    @classmethod
    def usual(cls) -> dict[str, Any]:
        """Returns the defaults in the form that JSON has."""
        return json.loads(json.dumps(asdict(cls())))
