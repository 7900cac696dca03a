"""The Python of the README and of docs/your_own_task.md runs as it stands, from a folder outside the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_readme_trains_and_evaluates_on_a_laptop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (snippet,) = blocks("README.md", "python")
    names: dict[str, object] = {}
    exec(compile(snippet, "README.md", "exec"), names)
    assert names["trainer"].state.global_step == 2
    assert "success %" in capsys.readouterr().out
    assert (tmp_path / "outputs" / "first_run" / "trajectories").is_dir()
