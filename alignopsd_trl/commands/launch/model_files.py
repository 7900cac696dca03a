"""What a model's files say of it without its weights, in a folder, in the Hub's cache or on the Hub."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from transformers.utils.chat_template_utils import render_jinja_template

from alignopsd_trl.common.models import base_of, check_model_name, resolve_model

Thinking = Literal["always", "by choice", "no"]

THINKERS = ("qwen3", "qwen3_moe", "smollm3", "glm4_moe", "gpt_oss", "deepseek_v3")
"""Types of models that think, where no chat template is here to ask."""
TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json")
_OPENED = re.compile(r"add_generation_prompt.*<think>(?!\s*(?:\\n)*\s*</think>)", re.DOTALL)


def config_file(name: str) -> Path:
    """Returns the path of a model's ``config.json``; fetches it and the chat template if they are not here.

    Raises:
        ValueError: for a name that is neither a folder with this file nor known to the Hub or its cache; says what to
            do.
    """
    check_model_name(name)
    if name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
        raise ValueError(f"model={name!r} is no folder; correct the path")
    if found := _here(name, "config.json"):
        return found
    reason = "it holds no config.json"
    if not Path(resolve_model(name)).expanduser().is_dir():
        try:
            return _fetched(name)
        except LocalEntryNotFoundError:
            reason = "it is not in the Hub's cache, and the Hub is not reached"
        except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
            reason = str(error).strip().splitlines()[0]
    raise ValueError(
        f"model={name!r}: {reason}; fetch it where the Hub is reached (hf download {name}), or give a local folder "
        "with its config.json and tokenizer"
    )


def _here(name: str, file: str) -> Path | None:
    folder = Path(resolve_model(name)).expanduser()
    cached = None if folder.is_dir() else try_to_load_from_cache(name, file)
    found = Path(cached) if isinstance(cached, str) else folder / file
    return found if found.is_file() else None


def _fetched(name: str) -> Path:
    found = Path(hf_hub_download(name, "config.json"))
    for file in TEMPLATE_FILES:
        with suppress(EntryNotFoundError):  # a model has one of them, or both
            hf_hub_download(name, file)
    return found


def chat_template(name: str) -> str | None:
    """Returns the default chat template of a model's files that are here; `None` if they have none."""
    for file in TEMPLATE_FILES:
        if (path := _here(name, file)) is None:
            continue
        text = path.read_text(encoding="utf-8")
        found = text if file.endswith(".jinja") else json.loads(text).get("chat_template")
        if isinstance(found, list):  # several templates by their names
            found = next((one["template"] for one in found if one.get("name") == "default"), None)
        if found:
            return found
    return None


def thinking_by(template: str) -> Thinking:
    """Returns whether a model thinks, by its chat template: one that knows ``enable_thinking`` does if a prompt is
    another where it is off, one that opens the thought itself or asks for an effort always does."""
    if "enable_thinking" in template:
        question: Any = [[{"role": "user", "content": "?"}]]
        ask = partial(render_jinja_template, question, chat_template=template, add_generation_prompt=True)
        return "no" if ask() == ask(enable_thinking=False) else "by choice"
    return "always" if _OPENED.search(template) or "reasoning_effort" in template else "no"


def thinking(name: str, kind: str) -> Thinking:
    """Returns whether a model thinks, by its chat template, and where none is here by its ``kind``, the ``model_type``
    of its configuration. Raises `ValueError` if its tokenizer is here and has none."""
    name = base_of(name) or name
    template = chat_template(name)
    if template is not None:
        return thinking_by(template)
    if _here(name, "tokenizer_config.json"):
        raise ValueError(
            f"model={name!r} has no chat template, which prompts are made with: take the model that was tuned to "
            "follow instructions, or set the tokenizer's chat_template and save it"
        )
    return "by choice" if kind in THINKERS else "no"
