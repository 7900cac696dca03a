from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A job in the background may have been started with interrupts ignored, which its children would inherit; the tests of
# Ctrl-C need them.
signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("WANDB_MODE", "disabled")

# A shared machine may be slow for a moment: how long an example takes is not what these tests are about.
settings.register_profile("full", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("full"), max_examples=20)
settings.load_profile("quick")


@pytest.fixture(scope="session")
def chat_policy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A saved policy of random weights and its tokenizer, whose chat template has tools."""
    from fakes.tool_classes import chat_model, chat_tokenizer

    folder, tokenizer = tmp_path_factory.mktemp("chat_policy"), chat_tokenizer()
    chat_model(tokenizer).save_pretrained(folder)
    return folder, tokenizer
