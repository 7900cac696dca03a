"""A run's page: what it holds, what it refuses, and that no text of an environment gets out of its element."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from fakes.own_task import fails
from fakes.recorded import RUNS, with_dialogues

from alignopsd_trl.commands.viewer import compare_runs, view_run
from alignopsd_trl.commands.viewer.__main__ import view as view_command
from alignopsd_trl.commands.viewer.run import PANEL, paired, read_run, step_content
from alignopsd_trl.records import read_records, write_records

RUN, BASELINE = RUNS / "aligned", RUNS / "grpo"
HOSTILE = "</script><script>document.title='owned'</script>\x00\x1b[31m\u2028<img src=x onerror=alert(1)>"


def turns(content: dict[str, Any]) -> dict[tuple[str, str, int], dict[str, Any]]:
    return {
        (task["task"], rollout["rollout"], turn["turn"]): turn
        for task in content["tasks"]
        for rollout in task["rollouts"]
        for turn in rollout["turns"]
    }


def blobs(page: str) -> list[dict[str, Any]]:
    found = re.findall(r'<script type="application/octet-stream" id="step--?\d+">([^<]*)</script>', page)
    return [json.loads(gzip.decompress(base64.b64decode(blob))) for blob in found]


def test_the_page_holds_what_the_records_hold() -> None:
    frame = read_records(RUN / "trajectories")
    frame = frame[frame.turn.notna()]
    found = {(step["step"], *key): turn for step in blobs(view_run(RUN).html) for key, turn in turns(step).items()}
    assert len(found) == len(frame) > 10
    for row in frame.to_dict("records"):
        turn = found[row["step"], row["task"], row["rollout"], row["turn"]]
        assert turn["credit"]["weight"] == pytest.approx(row["credit_weight"], abs=1e-6)
        assert turn["observation"] == row["observation"] and turn["action"] == row["action"]
        assert len(turn["sources"]) == len(row["credit_sources"])


def test_sources_are_places_of_the_same_task() -> None:
    frame = read_records(RUN / "trajectories").set_index(["step", "task", "rollout", "turn"])
    content = step_content(read_run(RUN), 0)
    matched = [(key, turn) for key, turn in turns(content).items() if turn["sources"]]
    assert matched
    for (task, rollout, _), turn in matched:
        assert sum(source["weight"] for source in turn["sources"]) == pytest.approx(1.0, abs=1e-5)
        for source in turn["sources"]:
            row = frame.loc[(0, task, source["rollout"], source["turn"])]
            assert source["rollout"] != rollout or row.credit_row == turn["credit"]["row"]


def test_a_turn_says_that_the_teacher_was_not_asked() -> None:
    found = read_run(RUN)
    frame = found.frame.copy()
    first = frame[frame.turn.notna()].index[0]
    frame["credit_teacher_thinking"] = frame.credit_teacher_thinking.astype(object).fillna("")
    frame.loc[first, "credit_teacher_thinking"] = None
    shown = turns(step_content(dataclasses.replace(found, frame=frame), int(frame.step[first])))
    unasked = [key for key, turn in shown.items() if turn.get("unasked")]
    assert unasked == [(frame.task[first], frame.rollout[first], frame.turn[first])]


def test_a_baseline_opens_without_what_it_does_not_have() -> None:
    found = turns(step_content(read_run(BASELINE), 0))
    assert found and not any(turn["sources"] or "weight" in turn["credit"] for turn in found.values())
    assert all("advantage" in turn["credit"] for turn in found.values())


def test_hostile_texts_stay_data(tmp_path: Path) -> None:
    record = {"step": 0, "task": HOSTILE, "task_id": HOSTILE, "rollout": "0000", "turn": 0, "category": HOSTILE}
    record |= {"task_text": HOSTILE, "observation": HOSTILE, "thinking": HOSTILE, "action": HOSTILE, "prompt": HOSTILE}
    record |= {"reward": 0.0, "won": False, "score": 0.0, "stop": "done", "action_valid": True}
    write_records(tmp_path / "trajectories" / "step.parquet", [record])
    html = view_run(tmp_path, task=HOSTILE).html
    assert html.count("<script") == html.count("</script") == 6 and "<img" not in html
    assert not set("\x00\x1b\u2028") & set(html)
    hostile = tmp_path / "<script>alert(1)<"
    (hostile / "script>").mkdir(parents=True)  # a folder's name is the page's title
    (tmp_path / "trajectories").rename(hostile / "script>" / "trajectories")
    assert view_run(hostile / "script>").html.count("<script") == 6
    (hostile / "script>" / "trajectories").rename(tmp_path / "trajectories")
    html = view_run(tmp_path, task=HOSTILE).html
    assert turns(blobs(html)[0])[HOSTILE, "0000", 0]["observation"] == HOSTILE


def test_the_file_needs_no_network() -> None:
    html = view_run(RUN).html
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", html)
    assert "default-src 'none'" in html


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        view_run(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="its steps are 0, 1"):
        view_run(RUN, steps=[7])
    with pytest.raises(ValueError, match="some that are: canonical-"):
        view_run(RUN, task="toy/none")
    with pytest.raises(ValueError, match="two runs or more"):
        compare_runs([RUN])


def test_a_damaged_file_is_named_with_its_line(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    results = tmp_path / "run" / "results.json"
    results.write_text(text := results.read_text()[: len(results.read_text()) // 2])
    with pytest.raises(ValueError, match=rf"results\.json is damaged at line {text.count(chr(10)) + 1}; move it away"):
        view_run(tmp_path / "run")
    results.unlink()
    log = tmp_path / "run" / "log.jsonl"
    log.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo\n{"step": 3, "loss": 0.1}\n')
    with pytest.raises(ValueError, match=r"log\.jsonl is damaged at line 2"):
        compare_runs([RUN, tmp_path / "run"])


def test_a_run_that_goes_on_shows_what_it_logged(tmp_path: Path) -> None:
    shutil.copytree(RUN / "trajectories", tmp_path / "run" / "trajectories")
    (tmp_path / "run" / "log.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n{"step": 3, "lo')
    curves = {curve.name: curve.values for curve in read_run(tmp_path / "run").curves}
    assert curves["loss"] == [0.5, 0.25]


def test_the_panels_dialogues_are_a_step_with_before_and_after_as_siblings(tmp_path: Path) -> None:
    found = read_run(folder := with_dialogues(tmp_path / "run"))
    assert found.steps == [*read_run(RUN).steps, PANEL]
    assert found.curves == read_run(RUN).curves  # nothing that was trained on is counted with them
    content = step_content(found, PANEL)
    assert [[one["rollout"] for one in task["rollouts"]] for task in content["tasks"]] == [["before", "after"]] * 2
    said = {(key[1], key[2]): turn["action"] for key, turn in turns(content).items()}
    assert said == {(when, turn): f"{when} {turn}" for when in ("before", "after") for turn in range(2)}
    assert blobs(view_run(folder).html)[-1]["tasks"] == content["tasks"]
    (folder / "evaluation_before.parquet").write_text("no parquet")
    with pytest.raises(ValueError, match=r"evaluation_before\.parquet is damaged"):
        view_run(folder)


def test_every_symbol_has_its_sentence() -> None:
    assets = Path(view_run.__code__.co_filename).parent / "assets"
    terms = dict(re.findall(r'^  (\w+): \["[^"]+", "([^"]+)"\],$', (assets / "terms.js").read_text(), re.MULTILINE))
    script = (assets / "view.js").read_text()
    measures = re.search(r"const MEASURES = \[(.*)\];", script)[1].replace('"', "").split(", ")
    bars = re.search(r'return \[\["even", 1\].*', script)[0]
    assert {*measures, *re.findall(r'\["(\w+)"', bars), "rho", "span"} <= set(terms)
    assert all(sentence.endswith(".") for sentence in terms.values())


BLIND = {  # linear RGB as people without red or green cones see it (Viénot, Brettel and Mollon 1999)
    "protanopia": ((0.1124, 0.8876, 0.0), (0.1124, 0.8876, 0.0), (0.0040, -0.0040, 1.0)),
    "deuteranopia": ((0.2928, 0.7072, 0.0), (0.2928, 0.7072, 0.0), (-0.0223, 0.0223, 1.0)),
}


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("sight", BLIND)
def test_less_and_more_are_told_apart_without_red_or_green(sight: str, theme: int) -> None:
    style = (Path(view_run.__code__.co_filename).parent / "assets" / "view.css").read_text()

    def seen(name: str) -> list[float]:
        colour = re.findall(rf"--{name}: #([0-9a-f]{{6}})", style)[theme]
        linear = [(int(colour[at : at + 2], 16) / 255) ** 2.2 for at in (0, 2, 4)]
        parts = [sum(share * part for share, part in zip(row, linear, strict=True)) for row in BLIND[sight]]
        return [255 * max(part, 0.0) ** (1 / 2.2) for part in parts]

    colours = {name: seen(name) for name in ("less", "even", "more")}
    for one, other in (("less", "more"), ("less", "even"), ("even", "more")):
        assert math.dist(colours[one], colours[other]) > 60, (one, other)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    view_command([str(RUN), "-o", str(tmp_path / "view.html"), "--step", "1"])
    assert [step["step"] for step in blobs((tmp_path / "view.html").read_text())] == [1]
    view_command([str(RUN), str(BASELINE), "-o", str(tmp_path / "compare.html")])
    assert (tmp_path / "compare.html").is_file()
    fails(["view", str(tmp_path / "nowhere")], "nowhere", capsys=capsys)


def test_paired_results_by_hand() -> None:
    def result(won: list[bool], scores: list[float]) -> dict[str, Any]:
        rows = zip(won, scores, strict=True)
        kinds = ["hats", "hats", "shoes", "shoes"]
        return {
            "outcomes": [
                {"task_id": str(n), "category": kinds[n], "won": w, "score": s} for n, (w, s) in enumerate(rows)
            ]
        }

    found = paired(result([True, False, False, True], [1, 0, 0, 1]), result([True, True, True, False], [1, 1, 0.5, 0]))
    assert (found["newly_won"], found["newly_lost"], found["tasks"]) == (2, 1, 4)
    assert found["success"]["mean"] == pytest.approx(25.0) and found["score"]["mean"] == pytest.approx(12.5)
    assert found["success"]["low"] < 25.0 < found["success"]["high"]
    hats, shoes = found["categories"]["hats"], found["categories"]["shoes"]
    assert (hats["tasks"], hats["success"]["mean"], hats["score"]["mean"]) == (2, 50.0, 50.0)
    assert (shoes["success"]["mean"], shoes["score"]["mean"]) == (0.0, -25.0)
    assert paired(result([True], [1]), None) is None
