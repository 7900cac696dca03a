"""The instrument on real models: as a command and inside training."""

from __future__ import annotations

import json
import re
import shlex
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from fakes import corridor
from fakes.own_task import fails
from fakes.trainers import make_trainer, rounds_of, trained
from transformers import AutoModelForCausalLM

from alignopsd_trl.commands.cli import main as alignopsd
from alignopsd_trl.commands.measure import measurement
from alignopsd_trl.commands.measure.commands import run_measure as main
from alignopsd_trl.commands.measure.training import FidelityCallback
from alignopsd_trl.commands.measure.variants import CachedTeacher, read_vary
from alignopsd_trl.rollout.monte_carlo.replays import ReplayError
from alignopsd_trl.scoring.model import ModelScorer
from alignopsd_trl.scoring.packing import Packed, TreeRow
from alignopsd_trl.scoring.teacher_forcing import Padded
from alignopsd_trl.scoring.trl_scoring import PolicyScorer


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corridor.save_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(autouse=True)
def _game(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "games", types.ModuleType("games"))
    monkeypatch.setitem(sys.modules, "games.corridor", corridor)


FLAGS = ["--environment", "games.corridor", "--methods", "grpo,align_opsd,rlsd", "--tasks", "6"]
LIMITS = ["--set", "max_prompt_length=400", "--set", "max_completion_length=14", "--set", "skill_tokens=20"]


def _command(policy: Path, output: Path, *more: str) -> dict:
    few = ["--rollouts", "6", "--seed", "1", "--quiet"]
    return main(["--model", str(policy), *FLAGS, *LIMITS, *few, "--output", str(output), *more])


@pytest.mark.full
def test_the_command_leaves_everything_and_goes_on_where_it_stopped(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    all_tasks = ["--tasks", "12"]
    varied = ("credit_temperature=1e-1,0.5", "rectify=false+allocation=turn", "rlsd.band=0.4")
    vary = [word for one in varied for word in ("--vary", one)]
    first = _command(policy, tmp_path, *all_tasks, *vary)
    assert {path.name for path in tmp_path.iterdir()} >= {"fidelity.json", "report.md", "turns.parquet"}
    assert "r_within" in capsys.readouterr().out
    labels = set(first["figures"])
    assert labels >= {"grpo", "align_opsd", "rlsd", "align_opsd credit_temperature=0.1", "rlsd band=0.4"}
    assert "align_opsd rectify=False allocation=turn" in labels
    turns = pd.read_parquet(tmp_path / "turns.parquet")
    assert len(turns) == first["turns"] and int(turns.a_mc.notna().sum()) == first["measured_turns"] > 0
    whole = turns.groupby(["task", "rollout"]).agg(
        total=("a_mc", "sum"), won=("won", "first"), start=("value_before", "first")
    )
    known = turns.groupby(["task", "rollout"]).a_mc.apply(lambda column: column.notna().all())
    assert np.allclose((whole.total - whole.won + whole.start)[known], 0, atol=1e-9)  # advantages telescope
    assert np.allclose(turns["credit grpo"], turns.outcome_advantage, atol=1e-5)

    for part in sorted((tmp_path / "parts").glob("rollouts_2*"))[:1]:
        part.unlink()
    again = _command(policy, tmp_path, *all_tasks)
    assert {name: again[name] for name in ("success", "walks", "reliability")} == {
        name: first[name] for name in ("success", "walks", "reliability")
    }
    assert again["figures"]["align_opsd"] == first["figures"]["align_opsd"]
    assert json.loads((tmp_path / "fidelity.json").read_text())["figures"].keys() == {"grpo", "align_opsd", "rlsd"}
    with pytest.raises(ValueError, match="rollouts=6, this one has 8; choose another"):
        _command(policy, tmp_path, *all_tasks, "--rollouts", "8")


@pytest.mark.full
def test_the_distribution_loss_changes_no_credit_and_has_the_trainers_tokens(policy: Path, tmp_path: Path) -> None:
    loss = ["--vary", "auxiliary_loss=distribution", "--set", "distribution_size=7"]
    found = _command(policy, tmp_path / "out", "--methods", "align_opsd", "--rollouts", "2", *loss)
    turns = pd.read_parquet(tmp_path / "out" / "turns.parquet")
    plain, varied = (turns[f"credit align_opsd{name}"] for name in ("", " auxiliary_loss=distribution"))
    assert found["measured_turns"] > 0 and plain.any() and plain.equals(varied)

    trainer = make_trainer(tmp_path)
    rows = Packed.of([TreeRow(list(range(5, 13)), [(4, 4)]), TreeRow.behind([5, 6, 7, 8], [[9], [10, 11, 12]])], 0)
    for views, mix in ((1, None), (2, lambda rows, logits: logits.softmax(-1).mean(1).log())):
        both = (ModelScorer(trainer.model, 1.0), PolicyScorer(trainer))
        states = [one.states(rows) for one in both]
        torch.testing.assert_close(*states, atol=1e-5, rtol=0)
        pairs = zip(both, states, strict=True)
        (ids, values), (others, wanted) = (one.largest(some.unflatten(0, (-1, views)), 7, mix) for one, some in pairs)
        assert ids.shape == (2 // views, 7, 7) and torch.equal(ids, others)
        torch.testing.assert_close(values, wanted, atol=1e-5, rtol=0)


@pytest.mark.full
def test_measurements_of_other_tasks_are_pooled(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--tasks", "4", "--rollouts", "2", "--methods", "grpo,rlsd"]
    parts = [_command(policy, tmp_path / str(seed), *few, "--seed", str(seed)) for seed in (1, 2)]
    found = main(["--pool", str(tmp_path / "1"), str(tmp_path / "2"), "--output", str(tmp_path / "both")])
    assert found == json.loads((tmp_path / "both" / "pooled.json").read_text())
    for count in ("measured_turns", "measured_tasks"):
        assert found[count] == sum(part[count] for part in parts) > 0
    assert found["figures"].keys() == {"grpo", "rlsd"} and "| rlsd |" in capsys.readouterr().out
    _command(policy, tmp_path / "3", *few[:-1], "grpo", "--seed", "3")
    for folder, message in (("3", "the first one has rlsd; measure both"), ("none", "no finished measurement there")):
        with pytest.raises(ValueError, match=message):
            main(["--pool", str(tmp_path / "1"), str(tmp_path / folder), "--output", str(tmp_path / "both")])


@pytest.mark.full
def test_a_folder_is_used_again_only_for_what_the_same_policy_plays(policy: Path, tmp_path: Path) -> None:
    bank = Path(measurement.__file__).parents[2] / "data" / "skills" / "webshop.json"
    own = tmp_path / "bank.json"
    own.write_bytes(bank.read_bytes())
    few = ["--tasks", "4", "--rollouts", "2", "--skill_bank", str(own), "--methods"]
    first = _command(policy, tmp_path / "out", *few, "grpo,align_opsd")
    for more, differs in (
        (["skill_grpo"], "skills_in_rollout=False, this one has True"),
        (["grpo", "--skill_bank", "webshop"], "skill_bank='.*bank.json', this one has None"),
        (["grpo,align_opsd", "--set", "repetition_penalty=3.0"], "repetition_penalty=1.0, this one has 3.0"),
        (["grpo,align_opsd", "--set", "min_p=0.2"], "min_p=None, this one has 0.2"),
        (["grpo,align_opsd", "--set", "thinking_tags=[<a>, </a>]"], "thinking_tags=.*'</a>'"),
        (["grpo,align_opsd", "--set", "chat_template_kwargs={a: 1}"], "chat_template_kwargs=.*'a': 1"),
        (["grpo,align_opsd", "--seed", "2", "--enough", "0.9"], "seed=1, .* 2; enough=None, .* 0.9"),
    ):
        with pytest.raises(ValueError, match=f"holds a measurement with {differs}.*choose another --output"):
            _command(policy, tmp_path / "out", *few, *more)
    again = _command(policy, tmp_path / "out", *few, "gigpo,align_opsd", "--encoder", "lexical", "--batch_size", "9")
    assert again["figures"]["align_opsd"] == first["figures"]["align_opsd"] and again["walks"] == first["walks"]
    own.write_text(own.read_text().replace("the", "a"))
    with pytest.raises(ReplayError, match="played beside the skills .* bank or encoder"):
        _command(policy, tmp_path / "out", *few, "grpo,align_opsd")


def test_a_command_that_was_cut_off_goes_on_and_the_page_can_be_pasted(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = '{"tasks": 9}'
    few = ["--tasks", "4", "--rollouts", "2", "--environment_options", tasks, "--methods", "grpo"]

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(measurement, "assign_credit", killed)
        _command(policy, tmp_path, *few)
    with monkeypatch.context() as patched:
        patched.setattr(measurement, "play_groups", killed)
        found = _command(policy, tmp_path, *few)
    assert found["cpu_seconds"] > 0 and found["walks"] > 0
    page = (tmp_path / "report.md").read_text()
    line = next(line for line in page.splitlines() if "alignopsd measure" in line)
    assert shlex.split(line)[-3:] == [tasks, "--methods", "grpo"]


def test_schedules_are_asked_at_the_step_that_is_given(policy: Path, tmp_path: Path) -> None:
    few = ["--tasks", "4", "--rollouts", "2", "--methods", "grpo,rlsd"]
    credit = {}
    for step in ("0", "100000"):
        assert _command(policy, tmp_path, *few, "--step", step)["step"] == int(step)
        credit[step] = pd.read_parquet(tmp_path / "turns.parquet")
    assert not np.allclose(credit["0"]["credit rlsd"], credit["0"]["credit grpo"])
    assert np.allclose(credit["100000"]["credit rlsd"], credit["100000"]["credit grpo"], atol=1e-6)


@pytest.mark.full
def test_an_environment_that_does_not_say_who_won_is_measured_by_its_rewards(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewarded = ["--value", "reward"]
    silent = _command(policy, tmp_path / "silent", "--environment_options", '{"silent": true}', *rewarded)
    said = capsys.readouterr().out
    assert (
        silent["success"] is None
        and f"mean reward {silent['reward']:.3g}" in said
        and said.endswith(f"figures, turns and page are in {tmp_path / 'silent'}\n")
    )
    telling = _command(policy, tmp_path / "telling", *rewarded)
    assert telling["success"] == telling["reward"] == silent["reward"] and silent["figures"] == telling["figures"]


def test_what_cannot_be_measured_is_refused(policy: Path, tmp_path: Path) -> None:
    for flags, message in (
        (["--methods", "grpo,skill_grpo"], "skill_grpo play with the skill in the policy's own prompt"),
        (["--methods", "vanilla"], "trains nothing"),
        (["--set", "nonsense=1"], "'nonsense' is no field"),
        (["--vary", "nonsense=1"], "'nonsense' is nothing that changes credit alone"),
        (["--vary", "max_turns=1"], "'max_turns' is nothing .* --set it .* varied: METHOD.OPTION, rectify, "),
        (["--vary", "rectify=false+temperature=0.1"], "'temperature' is nothing that changes credit alone"),
        (["--vary", "rectify=maybe"], "rectify='maybe' must be true or false"),
        (["--vary", "rlsd.band=wide"], "'band'.*='wide' of method 'rlsd' must be a number"),
        (["--vary", "allocation=turn,word"], "allocation='word': choose one of"),
        (["--set", "alpha_max=yes"], "alpha_max=True must be a number"),
        (["--set", "num_generations=2.5"], "num_generations=2.5 must be a whole number"),
        (["--set", "max_turns=few"], "max_turns='few' must be a whole number or null"),
        (["--methods", "grpo", "--vary", "credit_temperature=1"], "not among the methods"),
        (["--tasks", "99"], "more than the 12 tasks"),
    ):
        with pytest.raises(ValueError, match=message):
            _command(policy, tmp_path / "refused", *flags)
    assert read_vary("a=1,2+b=x") == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    with pytest.raises(ValueError, match="NAME=VALUE"):
        read_vary("credit_temperature")


def test_bad_input_ends_in_a_sentence(policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the other commands end: status 2, what was wrong and what to do, no traceback."""
    flags = ["--model", str(policy), *FLAGS, *LIMITS, "--rollouts", "2", "--quiet", "--output", str(tmp_path / "out")]
    for more, message in (
        (["--methods", "nonsense"], "nonsense"),
        (["--methods", "grpo,monte_carlo"], "'monte_carlo' is what the others are measured against"),
        (["--environment", "nowhere"], "environment='nowhere' is unknown"),
        (["--environment_options", "{silent"], "environment_options=.* is no JSON .*write a mapping"),
        (["--environment_options", '{"silent": true}'], "does not say who won .*--value reward"),
        (["--environment_options", '{"broken": true}'], "every episode failed; the first: .*the door is stuck"),
        (["--environment_options", '{"noisy": true}', "--everywhere"], "not deterministic: after . replayed action"),
        (["--model", str(tmp_path / "none")], str(tmp_path / "none")),
        (["--tasks", "99"], "more than the 12 tasks of the split; ask for fewer"),
        (["--set", "max_turns"], "--set max_turns is not NAME=VALUE"),
        (["--set", "nope.x=1"], "--set nope.x: 'nope' is not among the methods grpo, align_opsd"),
        (["--set", "beta=0", "--set", "beta=1"], "--set beta=0 --set beta=1 sets a field twice"),
        (["--episodes", "5"], "--episodes 5 is read with --each_skill alone"),
        (["--set", "method=rlsd"], "--set method is not read; use --methods"),
        (["--seed", str(2**70)], r"must be 0 or more, and below 2\*\*32"),
        (["--set", "credit_temperature=0"], "credit_temperature"),
        (["--skill_bank", "no_such_bank"], "no_such_bank"),
        (["--environment_options", '{"unskilled": true}'], "'corridor' has no skills.* --skill_bank"),
        (["--device", "abacus"], "--device abacus"),
        (["--rollouts", "0"], "--rollouts 0 must be 1 or more"),
        (["--slots", "4"], "slots=4 can't hold a sibling group.* take 8 .* or more"),
        (["--set", "max_turns=["], r"--set max_turns=\[: .* can't be read"),
        (["--vary", "rectify=["], r"--vary rectify=\[: .* can't be read"),
        (["--dtype", "int9"], "--dtype: invalid choice: 'int9' .*float32"),
        (["--model", "outputs/gone"], "--model outputs/gone is no folder and no shipped policy .*, and as a Hub id: "),
        (["--model", "/nonexistent/x"], "model='/nonexistent/x' is no folder, no shipped policy .* and no Hub id"),
        (["--seed", "-1"], "--seed -1 must be 0 or more"),
        (["--enough", "7"], "--enough 7 must lie above 0 and be 1 at most"),
        (["--enough", "-1"], "--enough -1 must lie above 0"),
    ):
        output = str(tmp_path / "_".join(more).replace("/", ""))
        said = fails(["measure", *flags, "--output", output, *more], capsys=capsys, lines=9)
        assert re.search(message, said), said
    (tmp_path / "file").touch()
    flags = ["measure", *flags]
    fails([*flags, "--output", str(tmp_path / "file")], "file is a file; choose another folder", capsys=capsys)
    alignopsd(flags)
    fails([*flags, "--seed", "1"], "seed=0, this one has 1; choose another --output", capsys=capsys, lines=9)


def test_scores_are_the_models_own(policy: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(policy).eval()
    prompt = Padded(torch.tensor([[0, 5, 6], [7, 8, 9]]), torch.tensor([[0, 1, 1], [1, 1, 1]]))
    response = Padded(torch.tensor([[5, 6], [7, 0]]), torch.tensor([[1, 1], [1, 0]]))
    scorer = ModelScorer(model, 0.7)
    plain = scorer.plain(prompt, response)
    packed = scorer.shared(Packed.of([TreeRow.behind([5, 6], [[5, 6]]), TreeRow.behind([7, 8, 9], [[7], [5, 6]])], 0))
    with torch.no_grad():
        logits = model(torch.tensor([[7, 8, 9, 7]])).logits[0, 2] / 0.7
    assert plain[1, 0].item() == pytest.approx(logits.log_softmax(-1)[7].item(), abs=1e-5)
    assert torch.allclose(plain[response.mask.bool()], packed[packed != 0][[0, 1, 2]], atol=1e-5)


def test_the_teacher_is_asked_once() -> None:
    class Teacher:
        def __init__(self):
            self.pairs, self.thought = [], 0

        def score(self, batch, source, target):
            self.pairs += list(zip(source.tolist(), target.tolist(), strict=True))
            return torch.stack([source, target], 1).float()

        def thoughts(self, batch):
            self.thought += 1
            return [object()]

    class Batch:
        policy_mask = torch.ones(4, 2)

        def __init__(self):
            self.turns = []

    inner, batch = Teacher(), Batch()
    teacher = CachedTeacher(inner)
    first = teacher.score(batch, torch.tensor([0, 1, 0]), torch.tensor([2, 2, 2]))
    second = teacher.score(batch, torch.tensor([0, 3]), torch.tensor([2, 1]))
    assert first.tolist() == [[0, 2], [1, 2], [0, 2]] and second.tolist() == [[0, 2], [3, 1]]
    assert inner.pairs == [(0, 2), (1, 2), (3, 1)]
    assert teacher.thoughts(batch) is teacher.thoughts(batch) and inner.thought == 1


# Training


@pytest.mark.full
def test_training_logs_fidelity_and_is_not_changed_by_it(tmp_path: Path) -> None:
    runs = []
    for every in (0, 2):
        folder = tmp_path / str(every)
        parts = {"callbacks": [FidelityCallback(every, rollouts=4)] if every else []}
        trainer = trained(folder, script=False, max_steps=3, seed=1, parts=parts)
        runs.append(trainer)
    logs = [[entry for entry in one.state.log_history if "reward" in entry] for one in runs]
    assert [entry["reward"] for entry in logs[0]] == [entry["reward"] for entry in logs[1]]
    assert ["fidelity/tasks" in entry for entry in logs[1]] == [True, False, True]
    assert not any("fidelity/tasks" in entry for entry in logs[0])
    with pytest.raises(ValueError, match="every=-1 must be 1 or more"):
        FidelityCallback(-1)
    talks = make_trainer(tmp_path / "talks", history="conversation", parts={"callbacks": [FidelityCallback(1)]})
    with pytest.raises(ValueError, match="make no conversation, but history='conversation'; use history='window'"):
        talks.train()


def test_monte_carlo_trains_on_what_the_walks_say(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, method="monte_carlo", method_options={"walks": 4}, script=False)
    rounds = rounds_of(trainer)
    trainer.train()
    batch, credit = rounds[0].batch, rounds[0].credit
    known = batch.turn_advantages.isfinite()
    assert ((credit.advantages != 0).any(1) <= known).all()
    for task in batch.task.unique():
        rows = (batch.task == task) & known
        if rows.any():
            first = torch.tensor([True] + (batch.rollout[1:] != batch.rollout[:-1]).tolist())
            rewards = batch.reward[(batch.task == task) & first]
            expected = batch.turn_advantages[rows] / (rewards.double().std() + 1e-6)
            assert torch.allclose(credit.advantages[rows, 0].double(), expected, atol=1e-5)
    assert trainer.state.log_history
    with pytest.raises(ValueError, match="own reward alone"):
        make_trainer(tmp_path / "more", method="monte_carlo", parts={"reward_funcs": lambda trajectory, **more: [0.0]})


@pytest.mark.full
def test_the_command_of_the_page_on_the_shipped_policy(tmp_path: Path) -> None:
    """`docs/fidelity.md`: no limit of a prompt or a response need be given, and a variant walks nowhere."""
    flags = "--model tiny --environment webshop_tiny --methods grpo,align_opsd --tasks 4 --rollouts 2".split()
    result = main([*flags, "--vary", "rectify=false", "--quiet", "--output", str(tmp_path)])
    assert result["rollouts"] == 32 and result["measured_turns"] > 20
    assert result["identity"]["max_completion_length"] == 40 and result["encoder"] == "lexical"
    assert result["figures"]["grpo"]["r_within"]["value"] is None
    assert -1.5 < result["figures"]["align_opsd rectify=False"]["r_within"]["value"] < 1.5
