"""Classes that were written for TRL's ``environment_factory``, trained as they are."""

from __future__ import annotations

import ast
import re
import sqlite3
from pathlib import Path
from typing import Any, Literal

import pytest
from datasets import Dataset
from fakes.sweeps import mostly_full
from fakes.tool_cases import CASES, Plan
from fakes.tool_classes import (
    Counter,
    Guessing,
    as_text,
    as_tool_calls,
    chat_model,
    counter_rows,
    guessing_reward,
    guessing_rows,
    messages,
    played,
    script,
    trainer_of,
)
from fakes.toy import answer_with
from PIL import Image

from alignopsd_trl import AlignOPSDConfig, read_records
from alignopsd_trl.checks.trainer import adapted
from alignopsd_trl.commands.launch.running import closing
from alignopsd_trl.commands.viewer.run import episode_curves, paired
from alignopsd_trl.common.files import plain
from alignopsd_trl.environments import Failure, Opening, Step, TaskPanel
from alignopsd_trl.environments.adapters import ToolEnvironment, row_id
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.results.play import evaluate
from alignopsd_trl.training.rewards import RewardError


def texts_of(plans: list[Plan]) -> list[list[str]]:
    """What is said with a call is thought."""
    return [[as_text("", calls, said) if calls else said for said, calls in plan] for plan in plans]


@pytest.mark.parametrize("method", ["grpo", "align_opsd"])
@pytest.mark.parametrize("name", mostly_full(["counter", "calculator"]))
def test_a_class_of_trl_trains_unchanged(chat_policy: Any, tmp_path: Path, name: str, method: str) -> None:
    given, rows, plans = CASES[name]
    parts = given | {"train_dataset": rows, "method": method, "max_completion_length": 256 if method == "grpo" else 16}
    parts["skip_zero_advantage"] = False  # weights are random: no group differs, and all of the method is to run
    trainer = trainer_of(chat_policy, tmp_path / "run", texts_of(plans) if method == "grpo" else None, **parts)
    before = [value.clone() for value in trainer.model.parameters()]
    trainer.train()
    turns = read_records(tmp_path / "run" / "trajectories")
    assert turns.won.isna().all() and turns.message.eq("").all()
    logged = trainer.state.log_history[0]
    assert "episodes/success" not in logged
    if method == "grpo":
        assert any((value != old).any() for value, old in zip(trainer.model.parameters(), before, strict=True))
        assert len(turns) == sum(map(len, plans))
    else:
        assert "correspondence/matched_share" in logged


def records_of(chat_policy: Any, folder: Path, name: str, **options: Any) -> Any:
    given, rows, plans = CASES[name]
    trainer_of(chat_policy, folder, texts_of(plans), train_dataset=rows, **given | options).train()
    return read_records(folder / "trajectories")


@pytest.fixture(scope="module")
def counted(chat_policy: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The records of the counter's scripted episodes."""
    return records_of(chat_policy, tmp_path_factory.mktemp("counted"), "counter")


def test_calls_run_in_order_and_what_they_raise_goes_back_to_the_policy(counted: Any) -> None:
    first, second = counted[counted.task_text.str.contains("to 2")].groupby("rollout")
    assert first[1].observation.tolist() == ["3", ""] and first[1].thinking.tolist() == ["up", ""]
    assert second[1].observation.tolist() == ["5\n4", "2", ""]
    third = counted[counted.task_text.str.contains("to 3")].iloc[:3]
    assert "unexpected keyword argument" in third.observation.iloc[0]
    assert "Tool reset not found" in third.observation.iloc[1] and third.action_valid.tolist() == [False, False, True]
    assert counted.stop.eq("done").all()
    rewards = counted.groupby(["task", "rollout"], sort=False).reward.first()
    assert sorted(rewards.round(6)) == [0.7, 0.7, 0.9, 1.0]


def test_the_prompt_shows_the_messages_the_tools_and_the_past(counted: Any) -> None:
    prompt = counted[counted.task_text.str.contains("to 2")].prompt.iloc[1]
    assert "You count." in prompt and "Count. The counter is at 0, bring it to" in prompt
    assert "increment(step: int) -> int\n    Increase the counter." in prompt and "get_reward" not in prompt
    assert "<action>increment(step=3)</action>\n3" in prompt and "Do it in one call" not in prompt


def test_reward_functions_get_what_trl_hands_them(chat_policy: Any, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def look(prompts: Any, completions: Any, environments: Any, target: Any, **columns: Any) -> list[float]:
        seen.update(prompts=prompts, completions=completions, environments=environments, target=target)
        return [0.0] * len(prompts)

    records_of(chat_policy, tmp_path, "counter", reward_funcs=look)
    assert [type(one) for one in seen["environments"]] == [Counter] * 4 and seen["target"] == [2, 2, 3, 3]
    assert seen["prompts"][0] == messages("Count. The counter is at 0, bring it to 2.", "You count.")
    roles = " ".join(message["role"] for message in seen["completions"][1])
    assert roles == "assistant tool tool assistant tool assistant"
    call = {"type": "function", "function": {"name": "increment", "arguments": {"step": 3}}}
    assert seen["completions"][0][0] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "up",
        "tool_calls": [call],
    }
    assert seen["completions"][0][1] == {"role": "tool", "name": "increment", "content": "3"}
    assert seen["completions"][0][2] == {"role": "assistant", "content": "done"}


@pytest.mark.parametrize("way", ["close", "_close", "__del__"])
def test_what_an_object_opened_is_closed_with_its_batch(way: str) -> None:
    live: set[int] = set()

    def reset(self: Any, **row: Any) -> None:
        live.add(id(self))

    def look(self: Any) -> str:
        """Looks."""
        return "nothing"

    kind = type("Sandbox", (), {"reset": reset, "look": look, way: lambda self: live.discard(id(self))})
    batch = open_batch(ToolEnvironment(kind), 3, 5.0)
    batch.reset(range(3), [{}] * 3)
    batch.step(range(3), ["look()"] * 3)
    assert len(live) == 3
    batch.close()
    assert not live


def test_success_is_what_the_user_says_it_is() -> None:
    won = ToolEnvironment(Counter, success=lambda environment, reward: reward == 1.0)
    _, _, ending = played(won, {"target": 2}, "<action>increment(2)</action>")
    assert (ending.won, ending.reward, ending.score) == (True, 1.0, 1.0)
    _, steps, ending = played(ToolEnvironment(Counter), {"target": 2}, "<action>increment(2)</action>")
    assert ending.won is None and steps[0].won is None and steps[0].info["calls"][0]["arguments"] == {"step": 2}


class Drawing:
    """Draws from a seed where it is given one."""

    def reset(self, prompt: str, seed: int = -1) -> str:
        self.seed = seed
        return f" {seed}"

    def look(self) -> str:
        """Look."""
        return str(self.seed)


def test_reset_gets_the_row_as_trl_hands_it_and_a_seed_if_it_takes_one() -> None:
    opening, _, _ = played(ToolEnvironment(Drawing), {"prompt": "Draw", "task_id": row_id({"prompt": "Draw"})})
    assert isinstance(opening, Opening) and opening.task_text == "Draw 7"
    seen: list[dict[str, Any]] = []

    class Watching(Guessing):
        def reset(self, **row: Any) -> None:
            seen.append(row)
            super().reset(**row)

    played(ToolEnvironment(Watching), {"secret": 4, "task_id": "mine"})
    played(ToolEnvironment(Watching, seeded=True), {"secret": 4, "seed": 3, "task_id": row_id({"secret": 4})})
    played(ToolEnvironment({"one": Watching}), {"secret": 4, "environment": "one"})
    assert seen == [{"secret": 4, "task_id": "mine"}, {"secret": 4, "seed": 3}, {"secret": 4}]


@pytest.mark.parametrize(
    ("response", "result"),
    [
        ("<action>guess(number=4)</action>", "Correct!"),
        ("<action>guess(number=2)\nguess(number=4)</action>", "higher\nCorrect!"),
        ("<think><action>guess(number=4)</action></think><action>guess(2)</action>", "higher"),
        ('<tool_call>\n{"name": "guess", "arguments": {"number": 4}}\n</tool_call>', "Correct!"),
        ("<action>guess(number=</action>", "{'error': \"guess(number= can't be read: '(' was never closed\"}"),
        ("<action>guess(number=open('x'))</action>", "open('x') is no literal"),
        ("<action>number = 4</action>", "is no call"),
        ("<action>self.reset()</action>", "Tool self.reset not found."),
        ("<action>get_reward()</action>", "Tool get_reward not found."),
        *(
            (f"<action>guess({one * 900}1)</action>", "can't be read")
            for one in ("(", "-", "1+", "not ", "1 if 1 else ")
        ),
        ("<action>guess" + ".a" * 900 + "(1)</action>", "can't be read"),
        (f'<tool_call>{{"name": "guess", "arguments": {"[" * 9000}</tool_call>', "be read"),
        ("<tool_call>" * 20_000 + "guess(number=4)</tool_call>", "Correct!"),
    ],
)
def test_what_a_policy_may_write(response: str, result: str) -> None:
    _, (step,), _ = played(ToolEnvironment(Guessing), {"secret": 4}, response)
    assert isinstance(step, Step) and result in step.observation
    assert step.valid is ("error" not in step.observation) and step.metrics["tool_calls"] >= 1


class Shop:
    def reset(self, **row: Any) -> None:
        self.bought: list[str] = []

    def buy(self, names: list[str], where: Literal["left", "right"] = "left", price: float | None = None) -> str:
        """Buys things."""
        self.bought += names
        return f"bought {len(names)}"

    def look(self, deep: bool = False) -> Any:
        """Shows the shop."""
        picture = Image.new("RGB", (2, 2))
        return {"shelves": [picture]} if deep else picture


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ('buy(names=["apple"])', "bought 1"),
        ('buy(["apple", "pear"], "right", 3)', "bought 2"),
        ('buy(names=["apple"], price=None)', "bought 1"),
        ('buy(names="apple")', "buy: names='apple' is not of type list[str]"),
        ("buy(names=[1])", "buy: names=[1] is not of type list[str]"),
        ('buy(["apple"], "up")', 'buy: where=\'up\' is not of type "left" or "right"'),
        ('buy(["apple"], price="free")', "buy: price='free' is not of type float or null"),
        ('buy(["apple"], price=true)', "buy: price=True is not of type float or null"),
    ],
)
def test_arguments_are_held_to_the_types_of_the_tool(call: str, result: str) -> None:
    environment = ToolEnvironment(Shop)
    _, (step,), _ = played(environment, {}, f"<action>{call}</action>")
    assert (
        result in ast.literal_eval(step.observation)["error"] if "not of type" in result else step.observation == result
    )
    assert step.valid is ("not of type" not in result)


@pytest.mark.parametrize("call", ["look()", "look(deep=True)"])
def test_an_image_that_a_tool_returns_costs_its_episode(call: str) -> None:
    batch = open_batch(ToolEnvironment(Shop), 1, 5.0)
    batch.reset([0], [{}])
    (failed,) = batch.step([0], [call])
    assert isinstance(failed, Failure) and "images are not read" in failed.message


@pytest.mark.parametrize("response", ["It is 4.", "<action></action>", "<action>guess(number=4)", "", "<think>guess"])
def test_a_response_without_a_call_ends_the_episode(response: str) -> None:
    _, (step,), _ = played(ToolEnvironment(Guessing), {"secret": 4}, response)
    assert step.done and step.valid and not step.observation and step.metrics["tool_calls"] == 0


def test_calls_after_the_last_round_of_them_are_not_run() -> None:
    environment = ToolEnvironment(Counter, max_tool_calling_iterations=1)
    _, steps, ending = played(environment, {"target": 2}, *["<action>increment(1)</action>"] * 2)
    assert environment.max_turns == 2 and [step.observation for step in steps] == ["1", ""]
    assert not steps[1].done and ending.reward == 0.9


class Painting:
    def reset(self, **row: Any) -> list[dict[str, Any]]:
        return [{"type": "image", "image": None}, {"type": "text", "text": "Look."}]


class Refusing:
    def reset(self, **row: Any) -> str:
        raise RuntimeError("no rooms left")


@pytest.mark.parametrize(
    ("kind", "message"), [(Painting, "only text is supported"), (Refusing, "RuntimeError: no rooms left")]
)
def test_a_reset_that_fails_costs_the_episode(kind: type, message: str) -> None:
    batch = open_batch(ToolEnvironment(kind), 1, 5.0)
    opening = batch.reset([0], [{"seed": 1}])[0]
    assert isinstance(opening, Failure) and message in opening.message
    batch.close()


def test_several_environments_are_chosen_by_their_column(chat_policy: Any, tmp_path: Path) -> None:
    turns = records_of(chat_policy, tmp_path, "two environments")
    assert set(turns.category) == {"counter", "guessing"}
    assert "increment" not in turns[turns.category == "guessing"].prompt.iloc[0]
    assert sorted(turns.groupby(["task", "rollout"]).reward.first().round(6)) == [0.0, 0.0, 0.9, 1.0]


class Wandering(Drawing):
    count = 0

    def reset(self, **row: Any) -> str:
        type(self).count += 1
        return f"You are in room {self.count}."


def test_siblings_that_open_differently_are_refused(chat_policy: Any, tmp_path: Path) -> None:
    rows = Dataset.from_list([{"prompt": "Walk"}, {"prompt": "Run"}])
    parts = {"train_dataset": rows, "reward_funcs": lambda environments, **columns: [0.0] * len(environments)}
    with pytest.raises(ValueError, match="siblings open differently.*Give reset\\(\\) a parameter 'seed'"):
        trainer_of(chat_policy, tmp_path / "wandering", environment_factory=Wandering, **parts)
    plans = [["no"]] * 4
    trainer = trainer_of(chat_policy, tmp_path / "drawing", plans, environment_factory=Drawing, **parts)
    trainer.train()
    assert read_records(tmp_path / "drawing" / "trajectories").task_text.nunique() == 2


def test_an_environment_may_bring_its_own_tasks(chat_policy: Any, tmp_path: Path) -> None:
    trainer = trainer_of(chat_policy, tmp_path, [["no"]] * 4, environment_factory=Counter)
    trainer.train()
    assert read_records(tmp_path / "trajectories").task_text.iloc[0] == "The counter is at 0, bring it to 3."


def test_what_can_not_be_played_is_refused_at_once(chat_policy: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing rewards the episodes of Guessing: give it a method get_reward"):
        trainer_of(chat_policy, tmp_path, environment_factory=Guessing, train_dataset=guessing_rows())
    with pytest.raises(TypeError, match="made a dict, which has no reset"):
        trainer_of(chat_policy, tmp_path, environment_factory=dict, train_dataset=guessing_rows())
    with pytest.raises(TypeError, match="callable without arguments"):
        trainer_of(chat_policy, tmp_path, environment_factory=3, train_dataset=guessing_rows())
    for prompt, told in (([{"from": "human", "value": "go"}], "ShareGPT have from and value"), ([], "row 0 of column")):
        wrong = counter_rows().remove_columns("prompt").add_column("prompt", [prompt] * 4)
        with pytest.raises(ValueError, match=told):
            trainer_of(chat_policy, tmp_path, environment_factory=Counter, train_dataset=wrong)
    rows = counter_rows().add_column("image", [None] * 4)
    with pytest.raises(ValueError, match="column 'image'"):
        trainer_of(chat_policy, tmp_path, environment_factory=Counter, train_dataset=rows)


def test_a_column_of_messages_that_no_prompt_shows_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    args = AlignOPSDConfig(str(tmp_path), use_cpu=True)
    rows = counter_rows().rename_column("prompt", "conversations")
    adapted(Counter, None, rows, None, args)
    assert "a column 'conversations', which reset() gets and no prompt shows" in caplog.text
    caplog.clear()
    adapted(Counter, None, counter_rows(), None, args)
    assert not caplog.text


@pytest.mark.parametrize("success", [None, lambda environment, reward: reward > 0.8])
def test_evaluations_report_the_score_alone_where_success_is_unknown(chat_policy: Any, success: Any) -> None:
    rows = [{"task_id": f"count/{n}", "prompt": "Count.", "target": 1 + n, "category": "all"} for n in range(6)]
    model, tokenizer = chat_model(chat_policy[1]), chat_policy[1]
    panel = TaskPanel.of("counter", "test", rows)
    environment = ToolEnvironment(Counter, success=success)
    result, _ = evaluate(model, tokenizer, environment, panel, max_prompt_length=2048, max_completion_length=8)
    assert result.score.mean == pytest.approx(65.0)
    assert [one.won is None for one in result.outcomes] == [success is None] * 6
    assert ("success %" in result.table()) is (success is not None)
    content = plain(result.to_dict())
    assert content["success"]["mean"] == (None if success is None else pytest.approx(100 / 6))
    folder = type("Folder", (), {"path": Path("runs")})
    shown = closing(None, plain(result.to_dict(outcomes=True)), folder, "-")
    assert ("success" in shown) is (success is not None)


def test_the_teacher_reads_a_column_of_the_dataset(chat_policy: Any, tmp_path: Path) -> None:
    rows = counter_rows(2).add_column("solution", ["Add 2.", "Add 3."])
    parts = {"train_dataset": rows, "skill_bank": "solution", "method": "align_opsd", "max_completion_length": 16}
    trainer_of(chat_policy, tmp_path, environment_factory=Counter, **parts).train()
    turns = read_records(tmp_path / "trajectories")
    assert set(turns[turns.task_text.str.contains("to 2")].skill_text) == {"Add 2."}
    assert not turns.prompt.str.contains("Add ").any()


def test_evaluations_score_by_reward_functions_where_the_environment_has_no_number(
    chat_policy: Any, tmp_path: Path
) -> None:
    rows = [{"task_id": f"guess/{n}", "prompt": messages("Guess."), "secret": 3 + n % 2} for n in range(6)]
    plans = [*[[as_text("", [("guess", {"number": 3})])] for _ in range(4)]]
    parts = {"environment_factory": Guessing, "train_dataset": guessing_rows(2), "reward_funcs": guessing_reward}
    trainer = trainer_of(chat_policy, tmp_path, None, **parts, max_turns=1, per_device_eval_batch_size=4)
    script(trainer, plans, rounds_of=[4, 2])
    result = trainer.evaluate_panel(TaskPanel.of("guess", "test", rows))
    assert result.score.mean == pytest.approx(50.0) and [one.won for one in result.outcomes] == [None] * 6
    model = chat_model(chat_policy[1])
    with pytest.raises(ValueError, match="Guessing has no get_reward.*score=lambda environment"):
        evaluate(model, chat_policy[1], Guessing, TaskPanel.of("guess", "test", rows))
    environment = ToolEnvironment(Guessing, score=lambda environment: environment.reward)
    found, _ = evaluate(
        model, chat_policy[1], environment, TaskPanel.of("guess", "test", rows), max_completion_length=8
    )
    assert found.score.mean == 0.0


def test_what_reward_functions_return_in_an_evaluation_is_named_there_and_nowhere_else(
    chat_policy: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def odd(environments: list[Guessing], prompts: list[Any], **columns: Any) -> list[float | None]:
        values = {9: None, 10: float("nan")}
        return [values.get(one.secret, one.reward) for one in environments]

    plans = [[as_text("", [("guess", {"number": 3})])] for _ in range(4)]
    parts = {"environment_factory": Guessing, "train_dataset": guessing_rows(2), "reward_funcs": odd}
    trainer = trainer_of(chat_policy, tmp_path, plans, **parts, max_turns=1)
    rows = [{"prompt": messages("Guess."), "secret": secret} for secret in (3, 9, 4, 3)]
    assert (
        trainer.evaluate(Dataset.from_list(rows))["eval_success_or_score"]
        == trainer.evaluate(rows)["eval_episodes/score"]
    )
    assert (
        capsys.readouterr().out.count("evaluation: None was returned by reward function 'odd' for 1 of 4 episodes") == 2
    )
    with pytest.raises(RewardError, match=r"evaluation: reward function 'odd' returned nan .float. for row 1"):
        trainer.evaluate([rows[0], rows[0] | {"secret": 10}, *rows[2:]])
    trainer.train()
    log = trainer.state.log_history[-2]
    assert log["reward"] >= 0 and "rewards/odd/none" not in log


@pytest.mark.parametrize("form", ["text", "native"])
def test_tools_in_one_conversation(chat_policy: Any, tmp_path: Path, form: str) -> None:
    write = as_text if form == "text" else as_tool_calls
    plans = [[write("", [("increment", {"step": 1})]) for _ in range(3)] + ["done"] for _ in range(4)]
    environment = ToolEnvironment(Counter, format=form)
    parts = {"environment_factory": environment, "train_dataset": counter_rows(2), "history": "conversation"}
    trainer = trainer_of(chat_policy, tmp_path, plans, **parts, past_thinking="keep")
    trainer.train()
    turns = read_records(tmp_path / "trajectories")
    assert len(turns) == 16 and turns.stop.eq("done").all()
    logged = trainer.state.log_history[0]
    assert logged["conversation/broken_prefixes"] == 0 and logged["conversation/runs"] == 1
    last = trainer.seen_prompts[-1][0]
    assert last.count("increment(step=1)" if form == "text" else '"step": 1') >= 3
    assert last.count("<tool_response>") == (3 if form == "native" else 0)


def test_the_page_trains_as_it_stands(chat_policy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "your_own_task.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    first, second = [block for block in blocks if "Counter" in block]
    small = {"max_prompt_length": 1024, "max_completion_length": 8, "num_generations": 2}
    small |= {"per_device_train_batch_size": 4, "max_steps": 1, "use_cpu": True, "bf16": False, "report_to": "none"}
    for old, new in {
        "Qwen/Qwen3-0.6B": str(chat_policy[0]),
        "sentence-transformers/all-MiniLM-L6-v2": "lexical",
        'AlignOPSDConfig("outputs/counter")': f'AlignOPSDConfig("outputs/counter", **{small})',
    }.items():
        assert first.count(old) == 1, old
        first = first.replace(old, new)
    chat_policy[1].save_pretrained(chat_policy[0])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(first + second, "page", "exec"), names)
    assert names["trainer"].state.global_step == 1 and names["environment_factory"].prompt.native
    assert read_records("outputs/counter/trajectories").skill_text.str.fullmatch(r"Add \d at once.").all()


def test_the_viewer_shows_a_run_of_unknown_success(counted: Any) -> None:
    assert [curve.name for curve in episode_curves(counted)] == ["score, %", "turns an episode"]
    outcome = {"task_id": "one", "won": None, "score": 0.5, "category": ""}
    found = paired({"outcomes": [outcome]}, {"outcomes": [outcome | {"score": 0.75}]})
    assert found["score"]["mean"] == 25.0 and plain(found)["success"]["mean"] is None


class Table:
    """Keeps a connection that no other thread may use."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")

    def reset(self, **row: Any) -> None:
        self.connection.execute("create table if not exists seen (word text)")

    def add(self, word: str) -> int:
        """Add a word."""
        self.connection.execute("insert into seen values (?)", (word,))
        return self.connection.execute("select count(*) from seen").fetchone()[0]

    def get_reward(self) -> float:
        return float(self.connection.execute("select count(*) from seen").fetchone()[0])

    def close(self) -> None:
        """Close the table."""
        self.connection.close()


def test_an_environment_stays_on_the_thread_that_made_it() -> None:
    batch = open_batch(ToolEnvironment(Table), 8, 5.0)
    slots = list(range(8))
    assert all(isinstance(one, Opening) for one in batch.reset(slots, [{"seed": 1}] * 8))
    for number in (1, 2, 3):
        steps = batch.step(slots, ["add(word='a')"] * 8)
        assert [step.observation for step in steps] == [str(number)] * 8
    assert [ending.reward for ending in batch.finish(slots)] == [3.0] * 8
    batch.close()


def test_the_teacher_reads_native_calls(chat_policy: Any, tmp_path: Path) -> None:
    environment = ToolEnvironment(Counter, format="native", max_turns=3)
    parts = {"train_dataset": counter_rows(2), "method": "align_opsd"}
    plans = [[as_tool_calls("", [("increment", {"step": n + 1})], "up")] * 2 + ["done"] for n in range(4)]
    trainer = trainer_of(chat_policy, tmp_path, None, environment_factory=environment, **parts)
    rollout = [text for turn in range(3) for text in (plan[turn] for plan in plans)]
    said = iter([rollout[0:4], rollout[4:8], rollout[8:12], rollout])
    tokenizer, end = chat_policy[1], chat_policy[1].eos_token_id

    def respond(prompts: list[list[int]], *ignored: Any, **also: Any) -> tuple[list[list[int]], None]:
        texts = next(said)[: len(prompts)]
        return [[*tokenizer(text, add_special_tokens=False)["input_ids"], end] for text in texts], None

    answer_with(trainer, respond)
    trainer.train()
    turns = read_records(tmp_path / "trajectories")
    assert turns.thinking.tolist().count("up") == 8 and len(turns) == 12
    assert turns.credit_teacher_action.str.contains("increment").sum() > 0
