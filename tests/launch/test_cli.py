"""The one command line: what it lists, what it refuses, and that it starts without heavy imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from fakes.own_task import fails

from alignopsd_trl.commands import cli
from alignopsd_trl.commands.launch.machine import from_file
from alignopsd_trl.commands.launch.presets import BACKBONES, preset, preset_names
from alignopsd_trl.results import hub


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["fly"], "no command 'fly'; choose one of new"),
        (["train"], "needs the name of a recipe first: alfworld_3b"),
        (["check", "chess", "--play"], "alfworld, searchqa, webshop"),
        (["check", "webshop_trips", "--model", "no/such"], "--model no/such is no folder and no shipped policy ("),
        (
            ["check", "webshop_trips", "--model", "/"],
            "holds no config.json (nor adapter_config.json); give a",
        ),
        (["--files", "ddp9"], "no shipped file 'ddp9'; did you mean 'ddp'? there are"),
        (["trian"], "no command 'trian'; did you mean 'train'?"),
        (["view", "/no/such"], "alignopsd view: "),
        (["view", "/no/such", "/nor/this"], "alignopsd view: "),
        (["view", "a", "b", "--step", "1"], "are for one run; name one"),
        (["push", "/no/such"], "alignopsd push: name a REPOSITORY"),
        (["push", "/no/such", "me/mine"], "alignopsd push: "),
        (["analyse", "dynamics", "/no/such"], "alignopsd analyse: "),
        (["train", "webshop_tiny", "--method", "grop"], "did you mean 'grpo'?"),
        (["train", "webshop_tiny", "--plan", "--rounds", "0"], "rounds=0 must be 1 or more"),
        (["evaluate", "--model", "tiny", "--environment", "webshop_tyny"], "webshop_tyny"),
        (["study", "no_such.yaml"], "no_such.yaml"),
        *[([name], "alignopsd " + name + ": the following") for name in ("view", "push", "evaluate")],
        (["new"], "alignopsd new: name a folder"),
        (
            ["analyse", "temporla", "x"],
            "did you mean 'temporal'?",
        ),
        (
            ["measure", "--model", "a/b/c", "--environment", "x", "--output", "x"],
            "measure: model='a/b/c' is no folder",
        ),
        (["measure", "--nonsense"], "alignopsd measure: unrecognized arguments: --nonsense; --help shows"),
        (["evaluate", "--model", "tiny", "--environment", "x", "--limit", "0"], "--limit 0 must be 1 or more"),
        (["view", __file__], "is no folder"),
        (["train", "webshop_tny", "--plan"], "did you mean 'webshop_tiny'?"),
        (["train", "webshop_15b", "--plan"], "did you mean 'webshop_1_5b'?"),
    ],
)
def test_what_it_can_not_do_is_a_message_of_few_lines_and_code_2(
    argv: list[str], said: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    fails(argv, said, capsys=capsys)


def test_every_shipped_recipe_is_trained_by_its_short_name(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scripts = {path.stem for path in (Path(__file__).parents[2] / "recipes").glob("*.py")}
    assert scripts <= set(preset_names())
    assert preset("hops_1_5b")["environment"] == "searchqa_hops" and preset("maze_smollm")["environment"] == "maze"
    assert preset("webshop_1_5b")["model_name_or_path"] == BACKBONES["1.5b"].hub_id
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    # its script would make the first policy before it plans
    fails(["train", "hops_smollm", "--plan"], "there is no policy in outputs/hops_smollm_start yet", capsys=capsys)


def test_shipped_files_are_there(capsys: pytest.CaptureFixture) -> None:
    cli.main(["--files", "fsdp2"])
    assert capsys.readouterr().out.strip().endswith("accelerate/fsdp2.yaml")
    assert {"table1_tiny", "zero3"} <= set(cli.shipped_files())


PAGES = [
    ["--help"],
    *([name, "--help"] for name in cli.COMMANDS),
    *(["check", game, "--play", "--help"] for game in ("webshop", "alfworld", "searchqa")),
    ["train", "webshop_tiny", "--help"],
]


def test_every_command_has_a_page_before_anything_heavy_is_imported() -> None:
    code = (
        "import sys\n"
        "from alignopsd_trl.commands.cli import main\n"
        f"for argv in {PAGES}:\n"
        "    try:\n"
        "        main(argv)\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, argv\n"
        "    assert 'torch' not in sys.modules, argv\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.count("usage:") + done.stdout.count("alignopsd train webshop_tiny [")
    assert shown == len(PAGES) + 1, "the first page shows how a recipe is called, too"
    assert all(f"\n  {name} " in done.stdout for name in cli.COMMANDS)


@pytest.mark.parametrize("argv", [["check", "nowhere"], ["train", "nowhere"], ["analyse", "dynamics", "/no/such"]])
def test_traceback_shows_where_an_error_comes_from(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["alignopsd", *argv, "--traceback"])
    with pytest.raises((ValueError, OSError), match="no"):
        cli.main()


def test_a_plan_takes_a_shipped_file_by_its_name() -> None:
    assert from_file("fsdp2") == from_file(cli.shipped_files()["fsdp2"])
    with pytest.raises(ValueError, match="plan_for=fsdp9: No such file.* alignopsd --files lists"):
        from_file("fsdp9")


def test_a_missing_extra_is_one_line(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = sys.modules['matplotlib.figure'] = None\n"
        "from alignopsd_trl.commands.cli import main; main(['analyse', 'dynamics', 'nowhere'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "alignopsd analyse: " in done.stderr and "pip install 'alignopsd-trl[studies]'" in done.stderr


def test_a_push_without_token_or_network_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("a")
    monkeypatch.setattr(hub, "get_token", lambda: None)
    nowhere = huggingface_hub.HfApi(endpoint="http://127.0.0.1:9")
    monkeypatch.setattr(hub, "HfApi", lambda token: nowhere)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    for token, said in ((None, "there is no token of the Hub"), ("hf_x", "http://127.0.0.1:9 can't be reached")):
        with pytest.raises(hub.PushFailed, match=said):
            hub.push_files(tmp_path, "me/mine", "again", token=token)
