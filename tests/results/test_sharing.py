"""Cards and pushes of a run or a trainer, against a stand-in for the Hub on loopback."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import load_dataset
from fakes.hub import Hub, points_to
from fakes.recorded import RUNS
from fakes.toy_suite import arguments, save_policy
from fakes.trainers import make_config
from huggingface_hub import ModelCard

from alignopsd_trl import AlignOPSDTrainer
from alignopsd_trl.commands import cli
from alignopsd_trl.commands.launch.recipe import main as recipe
from alignopsd_trl.common.files import write_json
from alignopsd_trl.environments.loading import load
from alignopsd_trl.records import read_records
from alignopsd_trl.results.card import changed_settings, is_hub_id, model_card, write_dataset
from alignopsd_trl.results.hub import PushFailed, push_run, push_trajectories

TOKEN = "hf_a-secret-that-nobody-may-see"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run's folder: results and records as it left them, weights that are only bytes."""
    folder = Path(shutil.copytree(RUNS / "finished", tmp_path / "run"))
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    (folder / "checkpoint-1").mkdir()
    (folder / "checkpoint-1" / "model.safetensors").write_bytes(b"older weights")
    (folder / "README.md").write_text(model_card(results(folder), "webshop_tiny", place="outputs/webshop_tiny"))
    for name in ("training_args.bin", "view.html", "runs/events.1", "notes.txt", "log.jsonl"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("stays here")
    return folder


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractContextManager[Hub]]:
    """Opens a stand-in, at which huggingface_hub is pointed."""

    @contextmanager
    def hub(**options: Any) -> Generator[Hub]:
        with Hub(**options) as made:
            points_to(made.endpoint, monkeypatch)
            yield made

    return hub


def card_of(text: str) -> Any:
    """A card whose data have the names that its text gives them."""
    return ModelCard(text)


def test_the_card_says_how_well_and_how_to_repeat_it() -> None:
    found = results(RUNS / "finished")
    card = card_of(model_card(found, "somebody/shopper", "apache-2.0"))
    success = next(one for one in card.data.eval_results if one.metric_type == "success_rate")
    assert success.metric_value == pytest.approx(found["after"]["success"]["mean"], abs=0.01)
    assert success.dataset_args["checksum"] == found["after"]["checksum"]
    values = {(one.dataset_config, one.metric_type): one.metric_value for one in card.data.eval_results}
    assert values["all", "success_rate_before"] == pytest.approx(found["before"]["success"]["mean"], abs=0.01)
    for name, part in found["after"]["categories"].items():
        assert values[name, "score"] == pytest.approx(part["score"]["mean"], abs=0.01)
    for expected in (
        found["after"]["checksum"],
        found["skill_bank"]["checksum"],
        found["encoder"]["checksum"],
        "alignopsd evaluate --model somebody/shopper --environment webshop_tiny",
        f"--limit {found['recipe']['panel_limit']}",
        f"{found['before']['success']['mean']:.1f}",
        '"learning_rate": 0.0003',
    ):
        assert expected in card.text, expected
    assert "None" not in card.content and "[None]" not in card.content


HOSTILE = 'a|b\n<script>alert(1)</script> `x` \\| "q'


def test_foreign_text_stays_text_in_cards(run: Path, tmp_path: Path) -> None:
    results = json.loads((run / "results.json").read_text())
    results["after"]["categories"] = dict.fromkeys([HOSTILE], next(iter(results["after"]["categories"].values())))
    results["before"] = None
    results["model"]["name"] = results["recipe"]["environment"] = results["recipe"]["panel"] = HOSTILE
    results["after"] |= {"panel": HOSTILE, "environment": HOSTILE}
    results["changed"] = {"model_name_or_path": HOSTILE}
    card = model_card(results, HOSTILE, place=HOSTILE, base_model=HOSTILE).split("\n---\n", 1)[1]
    assert "<script>" not in "".join(card.split("```")[::2]), "outside code"
    assert r"| a\|b &lt;script&gt;alert(1)&lt;/script&gt; \`x\` \\\| " in card
    (snippet,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert ast.literal_eval(re.search("place = (.*)", snippet)[1]) == HOSTILE
    for line in card.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) in (3, 7), line
    write_json(run / "results.json", results)
    write_dataset(run, tmp_path)
    assert "<script>" not in (tmp_path / "README.md").read_text()


def test_a_base_model_is_named_where_it_is_one_of_the_hub() -> None:
    found = results(RUNS / "finished")
    assert card_of(model_card(found, "x/y")).data.base_model is None  # a shipped policy has no id there
    found["model"] |= {"name": "Qwen/Qwen2.5-3B-Instruct", "checksum": None}
    assert card_of(model_card(found, "x/y")).data.base_model == "Qwen/Qwen2.5-3B-Instruct"
    assert "base_model_relation" not in card_of(model_card(found, "x/y")).data.to_dict()
    found |= {"adapter": True, "model": {"name": "/a/copy", "checksum": None}}
    assert "base_model" not in model_card(found, "x/y").partition("# x/y")[0]  # of a folder nobody else has
    card = card_of(model_card(found, "x/y", base_model="Qwen/Qwen2.5-3B-Instruct"))
    assert (card.data.base_model, card.data.base_model_relation) == ("Qwen/Qwen2.5-3B-Instruct", "adapter")
    assert not is_hub_id("./outputs/run") and not is_hub_id("tiny") and is_hub_id("owner/name")


def test_the_card_cites_what_the_citation_file_says() -> None:
    cited = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text())["preferred-citation"]
    last = model_card(results(RUNS / "finished"), "x/y").splitlines()[-1]
    for part in (cited["title"], cited["authors"][-1]["family-names"], str(cited["year"]), cited.get("url", "")):
        assert part in last


def test_an_evaluation_that_was_not_made_is_not_made_up() -> None:
    found = results(RUNS / "finished") | {"before": None}
    assert "not measured" in model_card(found, "x/y")
    found["after"]["success"]["mean"] = None  # of an environment that says nothing of success
    card = card_of(model_card(found, "x/y"))
    whole = [one.metric_type for one in card.data.eval_results if one.dataset_config == "all"]
    assert whole == ["score"] and "| unknown |" in card.content


def test_settings_of_a_card_are_those_that_differ() -> None:
    changed = changed_settings({"alpha_max": 0.8, "credit_temperature": 0.1, "hub_token": TOKEN, "output_dir": "o"})
    assert changed == {"credit_temperature": 0.1}


def snippet(card: str) -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```", card, re.MULTILINE | re.DOTALL)
    return code


@pytest.mark.parametrize("skills", [False, True])
def test_the_cards_snippet_and_command_run(skills: bool, capsys: pytest.CaptureFixture) -> None:
    found = results(RUNS / "finished")
    found["after"]["skills"], found["recipe"]["panel_limit"] = skills, 3
    found["recipe"]["environment_options"] = '{"history_length": 2}'
    found["config"] |= {"top_k": 20, "max_completion_length": 12, "max_turns": 2, "history": "conversation"}
    found["config"] |= {"thinking_tags": ["<think>", "</think >"]}
    card = model_card(found, "somebody/shopper", place="tiny")
    code = (
        snippet(card)
        .replace(
            'place = "tiny"', 'from alignopsd_trl.common.models import resolve_model\nplace = resolve_model("tiny")'
        )
        .replace("head(20)", "head(3)")
    )
    exec(compile(code, "README.md", "exec"), {})
    by_snippet = capsys.readouterr().out
    (command,) = re.findall(r"^```bash\n(.*?)^```", card, re.MULTILINE | re.DOTALL)
    cli.main(shlex.split(command.replace("\\\n", " "))[1:])
    assert capsys.readouterr().out.strip() in by_snippet and "top_k=20" in code and "history_length=2" in code
    assert ("Guidance" in by_snippet or "skill" in by_snippet.lower()) or not skills


def test_a_push_is_one_commit_without_trajectories(run: Path, opened: Any) -> None:
    with opened() as hub:
        push_run(run, "somebody/shopper", TOKEN)
    assert hub.commits == {"somebody/shopper": 1}
    paths = {path for _, _, path in hub.files}
    assert {"model.safetensors", "README.md", "results.json", "config.json"} == paths
    assert "--model somebody/shopper " in hub.files["models", "somebody/shopper", "README.md"].decode()
    assert hub.files["models", "somebody/shopper", "model.safetensors"] == b"weights"
    assert any(TOKEN in (sent or "") for sent in hub.tokens)
    assert not any(TOKEN.encode() in content for content in hub.files.values())


def loaded(hub: Hub, folder: Path, configuration: str) -> Any:
    """A pushed data set as its user gets it."""
    for (kind, _, path), content in hub.files.items():
        if kind == "datasets":
            target = folder / "pulled" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    return load_dataset(str(folder / "pulled"), configuration, split="train", cache_dir=str(folder / "cache"))


def test_trajectories_are_a_data_set_with_two_configurations(run: Path, opened: Any, tmp_path: Path) -> None:
    with opened() as hub:
        push_trajectories(run, "somebody/trips", TOKEN)
    turns, episodes = (loaded(hub, tmp_path, name) for name in ("turns", "episodes"))
    assert len(turns) == sum(episodes["turns"]) > len(episodes) > 0
    assert "credit_weight" in turns.column_names


@pytest.mark.parametrize("fault", ["refused", "broken", "away"])
def test_a_push_that_fails_costs_nothing(
    run: Path, fault: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with Hub(refuse=fault == "refused", break_off=fault == "broken") as hub:
        points_to("http://127.0.0.1:9" if fault == "away" else hub.endpoint, monkeypatch)
        with pytest.raises(PushFailed, match=f"push again: alignopsd push {run} somebody/shopper"):
            push_run(run, "somebody/shopper", TOKEN)
        with pytest.raises(SystemExit) as stopped:
            cli.main(["push", str(run), "somebody/shopper", "--token", TOKEN])
    assert stopped.value.code == 1 and TOKEN not in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_card_that_was_edited_by_hand_is_pushed_as_it_is(run: Path, opened: Any) -> None:
    (run / "README.md").write_text("my own words")
    with opened() as hub:
        push_run(run, "somebody/shopper", TOKEN)
    assert hub.files["models", "somebody/shopper", "README.md"] == b"my own words"
    (run / "README.md").write_bytes("Züge".encode("latin-1"))
    with opened() as hub, pytest.raises(ValueError, match=r"README.md is not in UTF-8"):
        push_run(run, "somebody/shopper", TOKEN)
    assert not hub.files


def test_an_adapter_goes_with_a_base_that_others_can_load(run: Path, opened: Any, tmp_path: Path) -> None:
    config = run / "adapter_config.json"
    config.write_text(json.dumps({"peft_type": "LORA", "r": 4, "base_model_name_or_path": str(tmp_path)}))
    with opened() as hub:
        with pytest.raises(PushFailed, match=f"a folder of this machine, {tmp_path}.* --base_model ID"):
            push_run(run, "somebody/shopper", TOKEN)
        assert not hub.files
        cli.main(["push", str(run), "somebody/shopper", "--token", TOKEN, "--base_model", "Qwen/Qwen2.5-7B-Instruct"])
    pushed = json.loads(hub.files["models", "somebody/shopper", "adapter_config.json"])
    assert pushed == {"peft_type": "LORA", "r": 4, "base_model_name_or_path": "Qwen/Qwen2.5-7B-Instruct"}
    assert json.loads(config.read_text())["base_model_name_or_path"] == str(tmp_path)


def no_token(folder: Path, *others: bytes | str) -> None:
    for file in folder.rglob("*"):
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes(), f"{file} holds the token"
    assert not any(TOKEN in str(one) for one in others)


@pytest.mark.full
def test_a_run_whose_push_is_refused_is_whole_and_pushed_later(
    tmp_path: Path, opened: Any, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    where = {"push_to_hub": True, "hub_model_id": "somebody/toy", "trajectories_hub_repo": "somebody/trips"}
    argv = arguments(tmp_path / "run", save_policy(tmp_path / "policy"), rounds=1, save_rounds=1, **where)
    with opened(refuse=True) as hub:
        with pytest.raises(PushFailed, match="pushed to 'somebody/toy'(.|\n)*pushed to 'somebody/trips'") as failed:
            recipe("webshop_tiny", [*argv, "--hub_token", TOKEN])
    assert results(tmp_path / "run")["after"]["episodes"] == 4 and (tmp_path / "run" / "checkpoint-1").is_dir()
    with opened() as hub:
        cli.main(
            ["push", str(tmp_path / "run"), "somebody/toy", "--trajectories", "somebody/trips", "--licence", "mit"]
        )
    assert card_of(hub.files["models", "somebody/toy", "README.md"].decode()).data.license == "mit"
    turns = loaded(hub, tmp_path / "pulled", "turns")
    frame = read_records(tmp_path / "run" / "trajectories")
    assert len(turns) == len(frame) and set(turns.column_names) == set(frame.columns)
    assert hub.commits == {"somebody/toy": 1, "somebody/trips": 1}
    told = capsys.readouterr()
    no_token(tmp_path, failed.value, told.out, told.err, *hub.files.values())


def test_a_push_that_can_not_succeed_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set"):
        recipe("webshop_tiny", ["--push_to_hub"])
    points_to("http://127.0.0.1:9", monkeypatch)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    for asked in (["--trajectories_hub_repo", "me/trips"], ["--push_to_hub", "--seed", "1"], ["--push_to_hub", "True"]):
        with pytest.raises(ValueError, match="no token of the Hub; run hf auth login"):
            recipe("webshop_tiny", asked)


def test_a_trainer_without_a_recipe_has_a_card_and_one_push(
    tmp_path: Path, opened: Any, capsys: pytest.CaptureFixture
) -> None:
    suite = load("tests.fakes.toy_suite", tasks=4, panel=6)
    folder = tmp_path / "run"
    trainer = AlignOPSDTrainer(
        str(save_policy(tmp_path / "policy")),
        make_config(folder, save_trajectories=True, hub_token=TOKEN, per_device_train_batch_size=4),
        environment_factory=suite.factory,
        train_dataset=suite.tasks("train"),
    )
    panel = suite.panel("test").head(5)
    trainer.create_model_card()
    assert "Not measured" in (folder / "README.md").read_text()
    trainer.evaluate_panel(panel)
    trainer.train()
    after = trainer.evaluate_panel(panel)
    (folder / "view.html").write_text("stays here")
    with opened(refuse=True) as hub:
        with pytest.raises(PushFailed, match=r"push again: trainer\.push_to_hub\(\)"):
            trainer.push_to_hub()
    with opened() as hub:
        trainer.push_to_hub(licence="apache-2.0")
    assert hub.commits == {"somebody/run": 1}
    files = {path: content for (_, _, path), content in hub.files.items()}
    assert "model.safetensors" in files and not set(files) & {"training_args.bin", "view.html", "run.json"}
    assert not any("/" in path for path in files)
    card = files["README.md"].decode()
    no_token(tmp_path, card, *files.values())
    assert "None" not in card and "| base model | policy" in card and f"{after.success.mean:.1f}" in card
    data = card_of(card).data
    assert data.eval_results[0].dataset_args["checksum"] == panel.checksum and data.license == "apache-2.0"
    assert "alignopsd evaluate --model somebody/run --environment tests.fakes.toy_suite --panel test" in card
    capsys.readouterr()
    exec(compile(snippet(card).replace("somebody/run", str(folder)), "README.md", "exec"), {})
    assert f"checksum {suite.panel('test').checksum}" in capsys.readouterr().out


def test_what_is_not_finished_is_not_pushed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="resume the run first"):
        push_run(tmp_path, "somebody/shopper")
