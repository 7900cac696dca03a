"""The self-check: sound runs pass and log it, runs with a corrupt signal stop in their first round and say which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.sweeps import mostly_full
from fakes.toy import build_model, build_tokenizer
from fakes.trainers import losses, make_trainer, trained, with_sampler

from alignopsd_trl.scoring.prefix_cache import PrefixCache
from alignopsd_trl.scoring.self_check import SelfCheckError, bound
from alignopsd_trl.scoring.trl_scoring import PolicyScorer
from alignopsd_trl.trainer import AlignOPSDTrainer

OPTIONS = {"method": "align_opsd", "beta": 0.05, "max_steps": 3}


def _logged(trainer: AlignOPSDTrainer, round: int) -> dict[str, float]:
    entry = [entry for entry in trainer.state.log_history if "loss" in entry][round]
    return {name: value for name, value in entry.items() if name.startswith("self_check/")}


def test_a_sound_run_passes_and_logs_the_cheap_checks_in_every_round(tmp_path: Path) -> None:
    trainer = trained(tmp_path, **OPTIONS)
    names = {"batching", "encoder", "reference", "empty_skill", "shared_prefix"}
    assert set(_logged(trainer, 0)) == {f"self_check/{name}" for name in names}
    assert all(value < 1e-5 for value in _logged(trainer, 0).values())
    assert set(_logged(trainer, 1)) == set(_logged(trainer, 2)) == {"self_check/encoder"}
    assert trainer.state.log_history[0]["seconds/self_check"] > 0


@pytest.mark.parametrize("method", mostly_full(["align_opsd", "grpo"]))
@pytest.mark.full
def test_the_check_changes_nothing(tmp_path: Path, method: str) -> None:
    runs = []
    for wanted in (True, False):
        trainer = trained(tmp_path / str(wanted), method=method, self_check=wanted, script=False)
        runs.append(losses(trainer))
        assert bool(_logged(trainer, 0)) == (wanted and method == "align_opsd") or wanted
    assert runs[0] == runs[1]


def _other_reference(trainer: AlignOPSDTrainer, patch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        for value in trainer.ref_model.parameters():
            value.zero_()


def _zero_encoder(trainer: AlignOPSDTrainer, patch: pytest.MonkeyPatch) -> None:
    trainer.encoder._encode = lambda texts: torch.zeros(len(texts), 1024)


def _wrong_cache(trainer: AlignOPSDTrainer, patch: pytest.MonkeyPatch) -> None:
    inner = PolicyScorer.shared
    patch.setattr(PolicyScorer, "shared", lambda *arguments: inner(*arguments) - 0.12)


def _other_prompts_kept(trainer: AlignOPSDTrainer, patch: pytest.MonkeyPatch) -> None:
    inner = PrefixCache.cache
    patch.setattr(PrefixCache, "cache", lambda self, texts, room: inner(self, [one[::-1] for one in texts], room))


def _other_teacher(trainer: AlignOPSDTrainer, patch: pytest.MonkeyPatch) -> None:
    inner = trainer.scorer.teacher

    def teacher(*arguments: Any) -> Any:
        made = inner(*arguments)
        score = made.score
        made.score = lambda *parts: score(*parts) - 0.12
        return made

    trainer.scorer.teacher = teacher


def _padding_seen(trainer: AlignOPSDTrainer, patch: pytest.MonkeyPatch) -> None:
    """A model whose log-probs depend on how much longer another row of the batch is."""
    inner = PolicyScorer.plain

    def plain(self: PolicyScorer, prompt: Any, response: Any) -> torch.Tensor:
        return inner(self, prompt, response) - 0.01 * (prompt.mask == 0).sum(1, keepdim=True)

    patch.setattr(PolicyScorer, "plain", plain)


def _old_sampler(trainer: AlignOPSDTrainer, patch: pytest.MonkeyPatch) -> None:
    with_sampler(trainer, offset=0.5)


CORRUPTIONS = [
    (_other_reference, "reference: .* by [0-9.]+ on process 0 .*path of its weights"),
    (_zero_encoder, "encoder: .* by 1 on process 0"),
    (_wrong_cache, r"shared_prefix: .* by 0\.12 on process 0 .*share_prefixes=False"),
    (_other_prompts_kept, r"shared_prefix: .* on process 0 .*share_prefixes=False"),
    (_other_teacher, r"empty_skill: .* by 0\.1[0-9]* on process 0"),
    (_padding_seen, r"batching: .*padded.* on process 0 .*positions that do not depend"),
    (_old_sampler, r"sampler: .* by 0\.5 on process 0 .*trained weights"),
]


@pytest.mark.full
def test_a_sampler_that_gets_no_weights_stops_the_second_round(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=4)
    sampler = with_sampler(trainer, offset=0.0)
    sampler.sync_weights = lambda: setattr(sampler, "offset", 0.5 * (trainer.state.global_step > 0))
    with pytest.raises(SelfCheckError, match="sampler"):
        trainer.train()
    assert trainer.state.global_step == 1


def test_bounds_in_bfloat16_grow_with_the_difference_by_batching() -> None:
    assert [bound("empty_skill", False, one) for one in (0.0, 0.01, 1.0)] == pytest.approx([0.02, 0.05, 0.1])
    assert bound("empty_skill", True, 0.01) == 1e-4


def test_bounds_leave_room_for_rounding_and_none_for_another_prompt() -> None:
    for exact, noise in ((True, 5e-6), (False, 5e-4)):
        for name in ("reference", "shared_prefix", "empty_skill"):
            assert 10 * noise < bound(name, exact) < 0.12 / 5


@pytest.mark.full
def test_bfloat16_passes(tmp_path: Path) -> None:
    trainer = trained(tmp_path, **OPTIONS, model_init_kwargs={"dtype": "bfloat16"})
    assert 0 < max(_logged(trainer, 0).values()) < 1e-2


def _coarse(folder: Path) -> dict[str, Any]:
    """Options of a bfloat16 policy whose log-probs rounding moves as far as those of a deep model."""
    model = build_model(build_tokenizer())
    with torch.no_grad():
        model.model.norm.weight.mul_(8.0)
    model.save_pretrained(folder / "coarse")
    return OPTIONS | {"policy": folder / "coarse", "model_init_kwargs": {"dtype": "bfloat16"}}


def test_bounds_grow_with_the_rounding_of_a_coarse_policy(tmp_path: Path) -> None:
    trainer = trained(tmp_path, **_coarse(tmp_path) | {"max_steps": 1})
    found = _logged(trainer, 0)
    assert 5e-3 < found["self_check/shared_prefix"] < 0.1
    assert 0 < found["self_check/batching"] < found["self_check/shared_prefix"]  # hardly any where bfloat16 is emulated


COARSE = [(*case, True) for case in CORRUPTIONS[:-1]]


@pytest.mark.parametrize(
    ("corrupt", "message", "coarse"), [*((*case, False) for case in CORRUPTIONS), *mostly_full(COARSE, quick=1)]
)
def test_a_corrupt_signal_stops_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corrupt: Any, message: str, coarse: bool
) -> None:
    trainer = make_trainer(tmp_path, **_coarse(tmp_path) if coarse else OPTIONS)
    corrupt(trainer, monkeypatch)
    with pytest.raises(SelfCheckError, match=message.partition(":")[0] if coarse else message):
        trainer.train()
    assert trainer.state.global_step == 0 and not losses(trainer)
