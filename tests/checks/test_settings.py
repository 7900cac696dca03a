"""Settings of TRL and transformers that a run would meet only after it has played: refused or named before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from alignopsd_trl.checks.intended import Intended, check_settings
from alignopsd_trl.checks.tasks import trained_on
from alignopsd_trl.checks.unread import not_read
from alignopsd_trl.commands.launch.machine import usable_device
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods import get_method


def config(folder: Path, **given: Any) -> AlignOPSDConfig:
    return AlignOPSDConfig(str(folder), use_cpu=True, max_steps=3, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optim": "lomo"}, "optim='lomo': .*pip install lomo-optim"),
        ({"optim_args": "betas"}, "optim_args='betas': "),
        ({"lr_scheduler_type": "warmup_stable_decay"}, "num_decay_steps.*; give it in lr_scheduler_kwargs, as JSON"),
        ({"lr_scheduler_type": "cosine", "warmup_steps": 4}, "warmup_steps=4 is more than the run's 3 optimiser steps"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "lr_scheduler_type='cosine_with_min_lr': .*min_lr"),
        ({"dataloader_persistent_workers": True}, "dataloader_persistent_workers=True: .*num_workers"),
        ({"accelerator_config": {"dispatch_batches": True}}, "'dispatch_batches': true} would cut sibling groups"),
        ({"accelerator_config": {"even_batches": False}}, "'even_batches': false} changes nothing"),
        ({"fsdp": "full_shard"}, "needs several processes"),
        ({"sync_ref_model": True}, "sync_ref_model=True moves a reference model, which beta=0 has not"),
        ({"generation_kwargs": {"tempreature": 1}}, r"generation_kwargs\['tempreature'\] is no option"),
        ({"generation_kwargs": {"stop_strings": ["x"]}}, r"\['stop_strings'\] ends no response here"),
        ({"cache_implementation": "nonsense"}, "cache_implementation='nonsense': .*Choose one of"),
        ({"fp16": True, "bf16": False}, "fp16=True needs a GPU"),
        ({"metric_for_best_model": "loss"}, r"'loss' is no number of an evaluation; .*it is 'success_or_score'"),
        ({"metric_for_best_model": "eval_test_loss"}, "metric_for_best_model='eval_test_loss' is no number"),
        ({"metric_for_best_model": "episodes/sucess"}, "did you mean 'episodes/success'?"),
    ],
)
def test_what_training_would_refuse_at_its_start_is_refused_before_it_plays(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_settings(config(tmp_path, **given))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"optim": "adafactor"},
        {"generation_kwargs": {"no_repeat_ngram_size": 3}, "cache_implementation": "static"},
        {"optim": "sgd", "lr_scheduler_type": "cosine", "warmup_steps": 0.5},
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-6}},
        {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": '{"num_decay_steps": 1}'},
    ],
)
def test_what_training_takes_passes(tmp_path: Path, given: dict[str, Any]) -> None:
    check_settings(config(tmp_path, **given))
    args = config(tmp_path, **given)
    assert not_read(Intended(args, get_method(args.method)(args), "tiny", None)) == ""


def test_a_plan_for_another_machine_may_have_what_this_one_has_not(tmp_path: Path) -> None:
    check_settings(config(tmp_path, fp16=True, bf16=False), elsewhere=True)


def test_a_split_without_tasks_says_so() -> None:
    with pytest.raises(ValueError, match="it has no tasks; name a split with tasks"):
        trained_on(0, None)


def test_a_device_that_computes_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="--device meta"):
        usable_device("meta")


def test_a_method_that_yaml_read_as_no_text_says_so() -> None:
    with pytest.raises(ValueError, match="method=False must be text; in YAML write it in quotes"):
        get_method(False)  # type: ignore[arg-type]
