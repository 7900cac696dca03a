"""Keys and values of prompts, encoded once, against plain forwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.models import CONFIGS, SHAPE, Counted
from fakes.sweeps import mostly_full
from fakes.trainers import make_trainer, trained
from transformers import AutoModelForCausalLM

from alignopsd_trl.scoring import prefix_cache, teacher
from alignopsd_trl.scoring.packing import PROVEN, Ragged
from alignopsd_trl.scoring.prefix_cache import PrefixCache
from alignopsd_trl.scoring.teacher_forcing import Forwards, score_pairs
from alignopsd_trl.scoring.trl_scoring import PolicyScorer
from alignopsd_trl.training import scorer
from alignopsd_trl.training.trl_policy import TrainedPolicy


def _prompts(count: int, seed: int) -> list[list[int]]:
    """Prompts of four tasks, which go on from their task's beginning and from one another."""
    draw = torch.Generator().manual_seed(seed)
    tasks = [torch.randint(3, 50, (9,), generator=draw).tolist() for _ in range(4)]
    made = list(tasks)
    for row in range(count):
        before = made[-4] if row % 3 else tasks[row % 4]
        tail = torch.randint(3, 50, (int(torch.randint(0, 6, (1,), generator=draw)),), generator=draw).tolist()
        made.append((before + tail)[:24])
    return [*made, made[5], made[7][:6], []]


def _check(model: torch.nn.Module, known: PrefixCache, texts: Sequence[Sequence[int]]) -> None:
    cache = known.cache(texts, room=3)
    for row, text in enumerate(texts):
        if not text:
            continue
        with torch.no_grad():
            alone = model(input_ids=torch.tensor([text]), use_cache=True).past_key_values
        for layer, expected in zip(cache.layers, alone.layers, strict=True):
            assert torch.allclose(layer.keys[row, :, : len(text)], expected.keys[0], atol=1e-5)
            assert torch.allclose(layer.values[row, :, : len(text)], expected.values[0], atol=1e-5)
            assert layer.keys.isfinite().all() and layer.values.isfinite().all()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", PROVEN)
def test_keys_and_values_are_those_of_plain_forwards(kind: str, attention: str) -> None:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](**SHAPE), attn_implementation=attention).eval()
    known = PrefixCache(model, 0, budget=64)
    for seed in (0, 1, 0):
        _check(model, known, _prompts(45, seed))
    _check(model, PrefixCache(model, 0), [[], []])


@pytest.mark.parametrize("room", [10, 60, 150])
def test_a_pool_that_is_too_small_forgets(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"](**SHAPE)).eval()
    token = prefix_cache.token_bytes(model.config, 4)
    monkeypatch.setattr(prefix_cache, "POOL", room * token)
    known = PrefixCache(model, 0)
    for seed in (0, 0, 1, 2, 0):
        _check(model, known, _prompts(20, seed))


def test_what_begins_alike_goes_through_the_model_once() -> None:
    model = AutoModelForCausalLM.from_config(CONFIGS["qwen2"](**SHAPE)).eval()
    stem = list(range(3, 33))
    texts = [[*stem, *([first] * 3), second] for first in range(34, 42) for second in range(3, 11)]
    known, seen = PrefixCache(model, 0), Counted(model)
    known.cache(texts, room=1)
    tree = 30 + 8 * 3 + 64
    assert tree <= seen.tokens < 0.25 * sum(map(len, texts))
    seen.tokens = 0
    known.cache([*texts[::-1], stem], room=1)
    assert seen.tokens == 0
    known.cache([[*text, 44, 45] for text in texts], room=1)
    assert seen.tokens <= 64 * 2 + 16


def test_of_the_last_layer_keys_and_values_are_all_that_is_computed() -> None:
    model = AutoModelForCausalLM.from_config(CONFIGS["qwen3"](**SHAPE)).eval()
    rows: list[list[int]] = [[] for _ in model.model.layers]
    for layer, seen in zip(model.model.layers, rows, strict=True):
        layer.mlp.register_forward_pre_hook(lambda module, arguments, seen=seen: seen.append(len(arguments[0])))
    known = PrefixCache(model, 0)
    known.cache([[3, 4, 5], [3, 4, 6]], room=1)
    known.cache([[3, 4, 5, 7]], room=1)
    assert len(rows) > 1 and rows[-1] == [] and all(len(seen) >= 2 for seen in rows[:-1])


def test_little_is_encoded_for_padding() -> None:
    model = AutoModelForCausalLM.from_config(CONFIGS["qwen2"](**SHAPE)).eval()
    texts = [[3 + row, *[3 + row % 7] * (4 + 5 * row)] for row in range(40)]
    known, seen = PrefixCache(model, 0), Counted(model)
    known.cache(texts, room=1)
    assert sum(map(len, texts)) <= seen.tokens < 1.3 * sum(map(len, texts))


def test_scores_behind_known_prompts_are_those_of_each_pair_alone(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, script=False, temperature=0.8)
    vocabulary = trainer.model.config.vocab_size
    prompts = [[token % vocabulary for token in prompt] or [5] for prompt in _prompts(30, 4)]
    responses = [prompt[: 1 + row % 5] for row, prompt in enumerate(prompts)]
    responses[-1] = []
    prompt_rows, response_rows = (torch.randint(0, len(prompts), (90,)) for _ in range(2))
    known = PrefixCache(trainer.model, 0)

    def scores(**options) -> torch.Tensor:
        return score_pairs(
            PolicyScorer(trainer), Ragged.of(prompts), Ragged.of(responses), prompt_rows, response_rows,
            Forwards(pad_id=0, **options),
        )  # fmt: skip

    alone = scores(budget=64, shared=False)
    seen = Counted(trainer.model)
    assert torch.allclose(scores(budget=4096, shared=True, prefixes=known), alone, atol=1e-5)  # it knows none of them
    whole = seen.tokens
    known.cache([prompt[:-1] for prompt in prompts], room=1)
    for budget in (200, 4096):
        seen.tokens = 0
        assert torch.allclose(scores(budget=budget, shared=True, prefixes=known), alone, atol=1e-5)
        assert 0 < seen.tokens < whole
    assert torch.allclose(scores(budget=1, shared=True, prefixes=known), alone, atol=1e-5)
    assert int((alone != 0).sum()) > 100


@pytest.mark.parametrize("kind", ["live", "base"])
def test_scoring_reads_responses_behind_the_prompts_of_play_and_thinking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(TrainedPolicy, "scores_as_sampled", False)  # as in bfloat16
    options = {"method": "align_opsd", "auxiliary_loss": "distribution", "teacher_model_kind": kind}
    trainer = make_trainer(tmp_path, script=False, max_steps=1, self_check=False, tokens_per_forward=1, **options)
    seen, calls = Counted(trainer.model), []

    def counted(call: Callable[..., Any], *given: Any, **options: Any) -> Any:
        before = seen.tokens
        found = call(*given, **options)
        responses, rows = given[2], given[4]
        calls.append((seen.tokens - before, int(responses.length[rows].sum())))
        return found

    for module in (scorer, teacher):
        monkeypatch.setattr(module, "score_pairs", partial(counted, module.score_pairs))
    trainer.train()
    (own, most), (views, most_views) = calls
    assert 0 < own <= most and 0 < views <= most_views


@pytest.mark.parametrize("method", mostly_full(["align_opsd", "rlsd"]))
def test_gradient_checkpointing_keeps_no_cache_and_changes_nothing(tmp_path: Path, method: str) -> None:
    gradients = []
    for checkpointing in (False, True):
        folder = tmp_path / str(checkpointing)
        folder.mkdir()
        trainer = trained(folder, method=method, gradient_checkpointing=checkpointing)
        gradients.append(trainer.seen_gradients[0])
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=1e-6), name
    assert any(gradient.any() for gradient in gradients[0].values())
