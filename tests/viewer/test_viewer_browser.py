"""The page in a real browser: headless Chromium (Debian's packages chromium and chromium-driver, extra ``browser``)."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes.recorded import RUNS, with_dialogues

from alignopsd_trl.commands.viewer import compare_runs, view_run
from alignopsd_trl.records import read_records, write_records

RUN, BASELINE = RUNS / "aligned", RUNS / "grpo"
webdriver = pytest.importorskip("selenium.webdriver", reason="needs the extra 'browser'")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking".split()
FLAGS += ["disable-component-update", "disable-sync"]
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(f"--{flag}")
    options.add_argument("--window-size=1280,900")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def opened(browser: Any, page: Path, place: str = "") -> None:
    browser.get("about:blank")
    browser.get(f"{page.as_uri()}{place}")
    until(lambda: browser.execute_script("return document.querySelector('h1') !== null"))


def until(condition: Any, seconds: float = 20.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "the page did not get there"
        time.sleep(0.05)
    return found


def requests(browser: Any) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return view_run(RUN).save(tmp_path_factory.mktemp("page") / "view.html")


def test_no_request_leaves_and_nothing_is_logged(browser: Any, page: Path) -> None:
    browser.get_log("performance"), browser.get_log("browser")
    opened(browser, page)
    outside = [url for url in requests(browser) if not url.startswith(("file:", "data:", "about:", "blob:"))]
    assert outside == []
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_the_grid_shows_the_weights_of_the_records(browser: Any, page: Path) -> None:
    opened(browser, page)
    task = browser.execute_script("return new URLSearchParams(location.hash.slice(1)).get('task') || place.task")
    cells = browser.execute_script(
        "return [...document.querySelectorAll('[role=gridcell]')]"
        ".map((cell) => [cell.dataset.rollout, +cell.dataset.turn, +cell.dataset.value])"
    )
    frame = read_records(RUN / "trajectories")
    frame = frame[(frame.step == 0) & (frame.task == task) & frame.turn.notna()]
    expected = {(row.rollout, row.turn): row.credit_weight for row in frame.itertuples()}
    assert {(rollout, turn) for rollout, turn, _ in cells} == set(expected)
    for rollout, turn, value in cells:
        assert value == pytest.approx(expected[rollout, turn], abs=1e-6)


def test_a_click_on_a_match_moves_the_right_pane(browser: Any, page: Path) -> None:
    frame = read_records(RUN / "trajectories")
    row = next(
        one for one in frame[frame.step == 0].itertuples() if one.turn == one.turn and len(one.credit_sources) > 1
    )
    opened(browser, page, f"#step=0&task={row.task}&rollout={row.rollout}&turn={int(row.turn)}")
    shown = "const m = document.getElementById('matched'); return [m.dataset.rollout, +m.dataset.turn]"
    first = until(lambda: browser.execute_script(shown))
    browser.execute_script(
        "document.querySelector('path.match[data-source=\"1\"]')"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    second = until(lambda: (found := browser.execute_script(shown)) != first and found)
    by_row = frame[(frame.step == 0) & (frame.task == row.task)].set_index("credit_row")
    expected = [[by_row.loc[key].rollout, int(by_row.loc[key].turn)] for key in row.credit_sources]
    assert [first, second] == expected[:2]
    assert "source=1" in browser.execute_script("return location.hash")


def test_the_waterfall_sums_to_the_weight(browser: Any, page: Path) -> None:
    opened(browser, page)
    pairs = browser.execute_script(
        "return current().tasks.flatMap((t) => t.rollouts.flatMap((r) => r.turns.map((u) => "
        "[way(r, u).reduce((sum, step) => sum + step[1], 0), u.credit.weight])))"
    )
    assert len(pairs) > 10
    for total, weight in pairs:
        assert total == pytest.approx(weight, abs=1e-5)


def test_keys_move_and_the_address_follows(browser: Any, page: Path) -> None:
    opened(browser, page)
    before = browser.execute_script("return place.task")
    for key in ("j", "n", "]"):
        browser.execute_script(
            f"document.body.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}', bubbles: true}}))"
        )
    until(lambda: "step=1" in browser.execute_script("return location.hash"))
    assert browser.execute_script("return place.task") != before


def test_it_opens_where_credit_was_moved(browser: Any, page: Path) -> None:
    opened(browser, page)
    shown, best = browser.execute_script(
        "const all = current().tasks.flatMap((t) => t.rollouts.flatMap((r) => r.turns.map(moved)));"
        "return [moved(turnOf(rolloutOf(taskOf(), place.rollout), place.turn)), Math.max(...all)]"
    )
    assert shown == best > 0


def test_a_turn_far_to_the_right_is_in_sight(browser: Any, tmp_path: Path) -> None:
    row = read_records(RUN / "trajectories").iloc[0].to_dict()
    row |= {"credit_sources": [], "credit_source_weights": [], "credit_source_similarities": []}
    write_records(tmp_path / "trajectories" / "step.parquet", [row | {"turn": turn} for turn in range(50)])
    opened(browser, view_run(tmp_path).save(tmp_path / "view.html"), "#turn=45")
    inside = (
        "const cell = document.querySelector('[role=gridcell][aria-selected=true]'), c = cell.getBoundingClientRect(),"
        "g = document.querySelector('.grid').getBoundingClientRect();"
        "return [+cell.dataset.turn, c.left >= g.left && c.right <= g.right]"
    )
    assert browser.execute_script(inside) == [45, True]
    for _ in range(30):
        browser.execute_script("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'p', bubbles: true}))")
    until(lambda: browser.execute_script(inside) == [15, True])


def test_tokens_are_shaded_by_their_gaps(browser: Any, tmp_path: Path) -> None:
    frame = read_records(RUN / "trajectories")
    row = next(one for one in frame.to_dict("records") if len(one["credit_sources"]) and one["credit_advantage"] > 0)
    texts = ["<b>", "red", "</script>"]
    row |= {"token_texts": texts, "credit_sources": [], "credit_source_weights": [], "credit_source_similarities": []}
    row |= {"credit_token_identity_gaps": [0.5, -1.0, 0.0], "credit_token_rectified_gaps": [1.0, -2.0, 0.0]}
    write_records(tmp_path / "trajectories" / "step.parquet", [row])
    opened(browser, view_run(tmp_path).save(tmp_path / "view.html"))
    spans = "return [...document.querySelectorAll('.tokens span')].map((one) => [one.textContent, one.title])"
    assert [text for text, _ in browser.execute_script(spans)] == texts
    found = {}
    for name in ("identity gap", "rectified gap", "rectified − identity"):
        browser.execute_script(
            f"[...document.querySelectorAll('button')].find((b) => b.textContent === '{name}').click()"
        )
        found[name] = [title.rsplit(" ", 1)[1] for _, title in browser.execute_script(spans)]
    assert found == {
        "identity gap": ["+0.500", "−1", "0"],
        "rectified gap": ["+1", "−2", "0"],
        "rectified − identity": ["+0.500", "−1", "0"],
    }
    style = "return [...document.querySelectorAll('.tokens span')].map((one) => getComputedStyle(one).backgroundColor)"
    more, less, even = browser.execute_script(style)
    assert len({more, less, even}) == 3


def test_a_turns_reward_stands_beside_its_episodes(browser: Any, tmp_path: Path) -> None:
    row = read_records(RUN / "trajectories").iloc[0].to_dict()
    row |= {"credit_sources": [], "credit_source_weights": [], "credit_source_similarities": []}
    rows = [row | {"turn": turn, "turn_reward": 0.25 * turn, "reward": 0.75} for turn in range(3)]
    write_records(tmp_path / "trajectories" / "step.parquet", rows)
    opened(browser, view_run(tmp_path).save(tmp_path / "view.html"), "#turn=1")
    shown = "return document.querySelector('.earned').textContent"
    assert browser.execute_script(shown) == "this turn's reward 0.250 of the episode's 0.750"


def test_light_and_dark_keep_texts_readable(browser: Any, page: Path) -> None:
    opened(browser, page)
    for _ in range(2):
        browser.execute_script("document.querySelector('button[title=\"light or dark\"]').click()")
        ground, text = browser.execute_script(
            "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
        )
        assert contrast(ground, text) > 7


def contrast(*colours: str) -> float:
    """The ratio that WCAG asks 4.5 of for plain text."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(luminance(colour) for colour in colours)
    return (high + 0.05) / (low + 0.05)


def test_tasks_are_found_and_filtered(browser: Any, page: Path) -> None:
    opened(browser, page)
    count = "return document.querySelectorAll('.tasks li').length"
    every = browser.execute_script(count)
    name = browser.execute_script("return current().tasks.at(-1).task")
    browser.execute_script(
        "const i = document.querySelector('input[type=search]'); i.value = arguments[0];"
        "i.dispatchEvent(new Event('input'))",
        name,
    )
    assert browser.execute_script(count) == 1 < every
    browser.execute_script("filter.text = ''; filter.kind = 'won'; draw()")
    won = browser.execute_script("return current().tasks.filter((t) => t.rollouts.some((r) => r.won)).length")
    assert browser.execute_script(count) == won


def test_the_evaluation_shows_categories_and_episodes(browser: Any, page: Path) -> None:
    opened(browser, page, "#pane=evaluation")
    rows = until(lambda: browser.execute_script("return document.querySelectorAll('svg.range').length"))
    assert rows == browser.execute_script("return 1 + Object.keys(head.evaluation.after.categories).length")
    episodes = browser.execute_script("return document.querySelectorAll('table')[1].rows.length - 1")
    assert episodes == browser.execute_script("return head.evaluation.after.outcomes.length")


def test_an_episode_is_one_text_with_its_credit_and_the_reason(browser: Any, page: Path) -> None:
    frame = read_records(RUN / "trajectories")
    frame = frame[(frame.step == 0) & frame.turn.notna()]
    for row in (max(frame.itertuples(), key=lambda one: sign * one.credit_advantage) for sign in (1, -1)):
        episode = frame[(frame.task == row.task) & (frame.rollout == row.rollout)]
        opened(browser, page, f"#pane=text&step=0&task={row.task}&rollout={row.rollout}")
        values = "[+one.dataset.turn, +one.dataset.credit, one.textContent]"
        turns = f"return [...document.querySelectorAll('.spoken')].map((one) => {values})"
        shown = until(lambda: browser.execute_script(turns))  # noqa: B023
        assert [turn for turn, _, _ in shown] == episode.turn.tolist()
        for (_, credit, text), told in zip(shown, episode.itertuples(), strict=True):
            assert credit == pytest.approx(told.credit_advantage * told.credit_weight, abs=1e-5)
            assert told.action in text and told.observation in text
            side = "better" if told.credit_advantage > 0 else "worse"
            assert f"The episode did {side} than its siblings" in text or told.credit_advantage == 0


def test_the_reason_names_what_moved_the_weight(browser: Any, page: Path) -> None:
    opened(browser, page)
    found = browser.execute_script(
        "return current().tasks.flatMap((t) => t.rollouts.flatMap((r) => r.turns.map((u) => "
        "[u.credit.advantage, u.credit.weight, reason(r, u)])))"
    )
    because = 0
    for advantage, weight, told in found:
        if advantage == 0:
            assert told == "The episode's advantage over its siblings is 0, so there is no credit to give."
            continue
        assert ("more likely" if advantage > 0 else "less likely") in told
        if abs(weight - 1) >= 0.005:
            assert ("times its even share" if weight > 1 else "only") in told
            because += "because" in told
            if gaps := re.search(
                r"makes .* words (more|less) likely than .*\(([+−\d.e]+) against ([+−\d.e]+) nats", told
            ):
                own, theirs = (float(one.replace("−", "-")) for one in gaps.groups()[1:])
                assert (own > theirs) == (gaps[1] == "more") or own == theirs
                assert (gaps[1] == "more") == ((advantage > 0) == (weight > 1))  # a reason for this side
    assert because > 10


@pytest.mark.parametrize(
    ("credit", "shown", "words"),
    [
        ({"advantage": 1.0, "residual": -0.25}, 0.75, "This method gives the turn +0.75 and the episode's turns"),
        ({"advantage": 1.0, "weight": 1.5, "residual": -0.25}, 1.25, "1.50 times .* invalid actions adds −0.25"),
        ({"advantage": 1.1, "outcome_advantage": 1.0, "weight": 1.5}, 1.1, "1.10 times its even share"),
        ({"advantage": -0.2, "outcome_advantage": 0.0}, -0.2, "This method gives the turn −0.20"),
    ],
)
def test_all_of_a_turns_credit_is_shown(
    browser: Any, page: Path, credit: dict[str, float], shown: float, words: str
) -> None:
    opened(browser, page)
    turns = "const turn = {credit: arguments[0]}, turns = [turn, {credit: {advantage: 0}}];"
    value, told = browser.execute_script(f"{turns} return [creditOf(turn), reason({{turns}}, turn)]", credit)
    assert value == pytest.approx(shown)
    assert re.search(words.replace("+", r"\+"), told)


def test_the_same_task_is_read_side_by_side(browser: Any, tmp_path: Path) -> None:
    run = with_dialogues(tmp_path / "run")
    later = read_records(run / "trajectories")
    later = later[later.step == 0].assign(step=7)
    write_records(run / "trajectories" / "step_000007_rank000.parquet", later.to_dict("records"))
    view_run(run).save(tmp_path / "view.html")
    opened(browser, tmp_path / "view.html", "#pane=text&step=-1")
    heads = "return [...document.querySelectorAll('.read h3')].map((one) => one.textContent)"
    assert [one.split("  ")[0] for one in until(lambda: browser.execute_script(heads))] == [
        "before training",
        "after training",
    ]
    opened(browser, tmp_path / "view.html", f"#pane=text&step=0&task={later.task.iloc[0]}&rollout=0000")
    assert [one.split(",")[0] for one in until(lambda: browser.execute_script(heads))] == ["step 0", "step 7"]


def test_the_top_says_before_after_and_the_interval_or_that_no_panel_was_played(
    browser: Any, page: Path, tmp_path: Path
) -> None:
    opened(browser, page)
    top = browser.execute_script("return document.querySelector('header').textContent")
    assert re.search(r"panel success before [\d.]+ .* % → after [\d.]+ .* %, [+−]?[\d.]+ \[.*\] by task", top)
    shutil.copytree(RUN / "trajectories", tmp_path / "run" / "trajectories")
    opened(browser, view_run(tmp_path / "run").save(tmp_path / "view.html"))
    assert "no panel was played" in browser.execute_script("return document.querySelector('header').textContent")


def test_runs_whose_success_is_unknown_open(browser: Any, tmp_path: Path) -> None:
    outcomes = [{"task_id": str(at), "category": "c", "won": None, "score": at / 2, "turns": 1} for at in range(3)]
    unknown = {"mean": None, "low": None, "high": None}
    result = {"success": unknown, "score": {"mean": 50.0, "low": 0.0, "high": 100.0}, "outcomes": outcomes}
    result |= {"categories": {"c": {"success": unknown, "score": unknown}}, "panel": "p", "environment": "e"}
    row = {
        "step": 0,
        "task": "t",
        "task_id": "t",
        "rollout": "0000",
        "turn": 0,
        "won": None,
        "score": 0.5,
        "reward": 1.0,
    }
    runs = [tmp_path / name for name in ("one", "two")]
    for folder in runs:
        write_records(
            folder / "trajectories" / "step.parquet", [row | {"stop": "done", "action": "a", "action_valid": True}]
        )
        (folder / "evaluation_after.json").write_text(json.dumps(result | {"checksum": "x", "episodes": 3}))
    browser.get_log("browser")
    opened(browser, view_run(runs[0]).save(tmp_path / "view.html"), "#pane=evaluation")
    until(lambda: browser.execute_script("return document.querySelectorAll('table').length") == 2)
    opened(browser, compare_runs(runs).save(tmp_path / "compare.html"))
    assert browser.execute_script("return document.querySelectorAll('table').length") == 2
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


@contextmanager
def wide(browser: Any, width: int) -> Generator[None]:
    """A window of ``width`` pixels, also below what a window of Chromium can have."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("width", [420, 1280])
def test_a_panel_task_leads_to_its_dialogues_and_all_of_the_evaluation_is_in_sight(
    browser: Any, tmp_path: Path, width: int
) -> None:
    browser.get_log("browser")
    with wide(browser, width):
        opened(browser, view_run(with_dialogues(tmp_path / "run")).save(tmp_path / "view.html"), "#pane=evaluation")
        until(lambda: browser.execute_script("return document.querySelectorAll('table').length") == 2)
        hidden = "[...document.querySelectorAll('.across')].map((one) => one.scrollWidth - one.clientWidth)"
        assert browser.execute_script(f"return {hidden}") == [0, 0]
        browser.execute_script("document.querySelectorAll('table')[1].querySelector('button').click()")
        until(lambda: browser.execute_script("return place.step") == -1)
        names = "[...document.querySelectorAll('[role=gridcell]')].map((one) => one.dataset.rollout)"
        assert browser.execute_script(f"return {names}") == ["before", "before", "after", "after"]
        shown = browser.execute_script("return document.querySelector('.detail').textContent")
        assert "before 0" in shown and "Find it." in shown and "No sibling turn matched" not in shown
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.fixture
def trip(tmp_path: Path) -> Path:
    """Two tasks of the same text whose only rollout has 24 turns, in one span a pair."""
    row = read_records(RUN / "trajectories").iloc[0].to_dict()
    row |= {"credit_sources": [], "credit_source_weights": [], "credit_source_similarities": []}
    row |= {"task_text": "serve 3 requests", "category": "price"}
    names = [{"task": name, "task_id": name} for name in ("trip-1", "trip-2")]
    rows = [row | name | {"turn": turn, "credit_span": turn // 2} for name in names for turn in range(24)]
    write_records(tmp_path / "trajectories" / "step.parquet", rows)
    return view_run(tmp_path).save(tmp_path / "view.html")


@pytest.mark.parametrize("width", [1400, 800, 420])
def test_it_fits_the_window(browser: Any, page: Path, trip: Path, tmp_path: Path, width: int) -> None:
    compared = compare_runs([RUN, RUN]).save(tmp_path / "compare.html")
    with wide(browser, width):
        for one, place in ((page, ""), (page, "#pane=evaluation"), (trip, ""), (compared, "")):
            opened(browser, one, place)
            assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth + 1"), (one, place)
            around = "[...document.querySelectorAll('table')].map((one) => getComputedStyle(one.parentNode).overflowX)"
            assert {*browser.execute_script(f"return {around}")} <= {"auto"}, (one, place)


def test_a_narrow_window_is_one_column_with_the_grid_before_the_curves(browser: Any, page: Path) -> None:
    with wide(browser, 420):
        opened(browser, page)
        grid, curves, detail = browser.execute_script(
            "return ['.grid', '.curves', '.detail']"
            ".map((name) => document.querySelector(name).getBoundingClientRect().top)"
        )
        assert grid < detail < curves
        assert grid < 500 and not browser.execute_script("return document.querySelector('.curves').open")


def test_long_episodes_keep_their_numbers_and_their_last_span(browser: Any, trip: Path) -> None:
    with wide(browser, 1400):
        opened(browser, trip)
        cells, right, last = browser.execute_script(
            "return [[...document.querySelectorAll('[role=gridcell]')]"
            ".map((one) => one.querySelector('text').textContent),"
            "document.querySelector('.grid').getBoundingClientRect().right,"
            "[...document.querySelectorAll('rect.span')].at(-1).getBoundingClientRect().right]"
        )
    assert len(cells) == 24 and all(re.fullmatch(r"−?\d\.\d\d", text) for text in cells)
    assert last < right


def test_tasks_of_one_text_are_told_apart(browser: Any, trip: Path) -> None:
    opened(browser, trip)
    items = browser.execute_script(
        "return [...document.querySelectorAll('.tasks li small')].map((one) => one.textContent)"
    )
    assert items == ["price trip-1", "price trip-2"]


def test_symbols_are_explained_where_they_stand(browser: Any, page: Path) -> None:
    opened(browser, page)
    shown = browser.execute_script("return document.querySelector('.why').innerText")
    for name in ("advantage A", "evidence E", "span budget B", "share Q", "box", "credit weight W"):
        assert name in shown
    assert browser.execute_script("return document.querySelector('.why').innerText.includes('fixed multiple')")
    titled = "return [...document.querySelectorAll('#waterfall text title')].map((one) => one.textContent)"
    assert len(browser.execute_script(titled)) == 5
    assert "alpha" in browser.execute_script("return document.querySelector('#matched abbr:last-of-type').textContent")
    for measure in browser.execute_script("return columns()"):
        browser.execute_script("measure = arguments[0]; draw()", measure)
        sentence = browser.execute_script("return document.querySelector('.siblings .legend').innerText")
        assert len(sentence.split()) > 10 and "undefined" not in sentence, measure
    assert "[object" not in browser.execute_script("return document.body.innerText")


def test_curves_have_numbers_on_both_axes(browser: Any, page: Path, tmp_path: Path) -> None:
    inside = (
        "return [...document.querySelectorAll('figure svg')].filter((svg) => svg.getBoundingClientRect().width)"
        ".map((svg) => {"
        "const box = (name) => [...svg.querySelectorAll(name)].map((one) => one.getBoundingClientRect());"
        "return [box('text.tick').length, Math.min(...box('path.curve').map((one) => one.left))"
        ">= Math.max(...box('text.tick[text-anchor=end]').map((one) => one.right))]; })"
    )
    for one in (page, compare_runs([RUN, RUN]).save(tmp_path / "compare.html")):
        opened(browser, one)
        curves = browser.execute_script(inside)
        assert len(curves) >= 6 and all(count >= 4 and apart for count, apart in curves)


def test_identical_runs_fill_no_panel_with_zeros(browser: Any, tmp_path: Path) -> None:
    opened(browser, compare_runs([RUN, RUN]).save(tmp_path / "compare.html"))
    text = browser.execute_script("return document.body.innerText")
    assert "equal at every step: success, %" in text
    figures = "return [...document.querySelectorAll('figcaption')].map((one) => one.textContent)"
    names = browser.execute_script(figures)
    assert len(names) == len(set(names))  # a quantity once: differences that are 0 are no panels


def test_a_baseline_and_a_comparison_open(browser: Any, tmp_path: Path) -> None:
    opened(browser, view_run(BASELINE).save(tmp_path / "baseline.html"))
    until(lambda: browser.execute_script("return document.querySelectorAll('[role=gridcell]').length > 0"))
    assert browser.execute_script("return document.getElementById('waterfall')") is None
    opened(browser, compare_runs([RUN, BASELINE]).save(tmp_path / "compare.html"))
    assert browser.execute_script("return document.querySelectorAll('svg').length") > 4
    rows = browser.execute_script("return document.querySelectorAll('svg.range').length")
    assert rows == browser.execute_script("return Object.keys(head.paired[1].categories).length") > 1
    panels = browser.execute_script(
        "return [...document.querySelectorAll('figure')].map((one) => one.querySelectorAll('path.curve').length)"
    )
    assert 2 in panels  # both runs in one panel
    names = "return [...document.querySelectorAll('.key')].map((one) => one.textContent)"
    assert all(name in browser.execute_script(names)[0] for name in ("aligned", "grpo"))
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth + 1")
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_a_screenshot_is_kept(browser: Any, page: Path, tmp_path: Path) -> None:
    opened(browser, page)
    target = Path(os.environ.get("ALIGNOPSD_SCREENSHOTS", tmp_path)) / "view.png"
    assert browser.save_screenshot(str(target)) and target.stat().st_size > 10_000
