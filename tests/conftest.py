from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A job in the background may have been started with interrupts ignored, which its children would inherit; the tests of
# Ctrl-C need them.
signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("OMP_NUM_THREADS", "1")  # models are so small that a second thread costs more than it saves
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("WANDB_MODE", "disabled")

# A shared machine may be slow for a moment: how long an example takes is not what these tests are about.
settings.register_profile("full", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("full"), max_examples=20)
settings.load_profile("quick")


def pytest_collection_finish() -> None:
    """What was imported stays. Each training collects garbage, which takes a quarter of a second of looking at that."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n 2`` a process gets whole files, whose tests share fixtures, in the order of their names: by default
    those of few tests would come last, which take long."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


@pytest.fixture(scope="session")
def chat_policy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A saved policy of random weights and its tokenizer, whose chat template has tools."""
    from fakes.tool_classes import chat_model, chat_tokenizer

    folder, tokenizer = tmp_path_factory.mktemp("chat_policy"), chat_tokenizer()
    chat_model(tokenizer).save_pretrained(folder)
    return folder, tokenizer


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Modules of written tasks are forgotten afterwards."""
    known, places = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = places
    for name in set(sys.modules) - known:
        if name.startswith(("maze", "guessing")):
            del sys.modules[name]


@pytest.fixture
def maze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: None) -> Path:
    """A folder as ``alignopsd new`` leaves it, entered."""
    from alignopsd_trl.commands.cli import main

    monkeypatch.chdir(tmp_path)
    main(["new", "maze", "--model", "tiny"])
    monkeypatch.chdir(tmp_path / "maze")
    return tmp_path / "maze"
