"""Foreign text in prompts: observations, tasks, skills, tools and messages hold no control token of the chat template.

A template renders a prompt to one text, in which a tokenizer finds control tokens wherever they stand. They are broken
up in all that a prompt shows but the policy's own responses, whose token ids are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from alignopsd_trl.rollout.options import THINK

_ASKED = (*THINK, "<tool_call>", "</tool_call>")
"""Tags that prompts ask a policy to write. They begin no turn and end none."""


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
    whole = (one for one in (special | written) - {*_ASKED} if len(one) > 1 and not one[1].isspace())
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
