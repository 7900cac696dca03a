from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.toy import build_model, build_tokenizer
from fakes.trainers import make_trainer
from peft import LoraConfig, get_peft_model

from alignopsd_trl.scoring import teacher_forcing
from alignopsd_trl.scoring.packing import Ragged
from alignopsd_trl.scoring.teacher_forcing import Forwards, largest_logits, plan_chunks, score_pairs
from alignopsd_trl.scoring.trl_scoring import PolicyScorer, logits_at


def test_padding_on_both_sides() -> None:
    ids, mask = Ragged.of([[4], [1, 2, 3], [4], []]).padded(9, "left")
    assert ids.tolist() == [[9, 9, 4], [1, 2, 3], [9, 9, 4], [9, 9, 9]]
    assert mask.sum(1).tolist() == [1, 3, 1, 0]
    ids, mask = Ragged.of([[4], []]).padded(9, "right")
    assert ids.tolist() == [[4], [9]] and mask.tolist() == [[True], [False]]
    assert Ragged.of([]).padded(0, "left")[0].shape == (0, 1)


@pytest.mark.parametrize("budget", [1, 17, 100, 10_000])
def test_chunks_are_a_permutation_within_the_budget(budget: int) -> None:
    lengths = torch.randint(1, 40, (57,), generator=torch.Generator().manual_seed(0))
    chunks = plan_chunks(lengths, budget)
    assert sorted(torch.cat(chunks).tolist()) == list(range(57))
    for chunk in chunks:
        assert len(chunk) == 1 or len(chunk) * int(lengths[chunk].max()) <= budget
    if budget == 100:
        assert len(chunks) < 57


def _requests(seed: int = 0) -> tuple[Ragged, Ragged, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)

    def sequences(count: int, longest: int) -> list[list[int]]:
        lengths = torch.randint(1, longest, (count,), generator=draw).tolist()
        return [torch.randint(3, 40, (length,), generator=draw).tolist() for length in lengths]

    prompts, responses = sequences(6, 60), sequences(9, 12)
    pairs = [(p, r) for p in range(6) for r in range(9) if (p + r) % 2]
    prompt, response = torch.tensor(pairs).T
    return Ragged.of(prompts), Ragged.of(responses), prompt, response


def test_every_process_runs_as_many_forwards_as_the_busiest(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    scorer, calls = PolicyScorer(trainer), []
    inner = scorer.plain
    scorer.plain = lambda prompt, response: calls.append(1) or inner(prompt, response)
    nothing = torch.tensor([], dtype=torch.int64)
    forwards = Forwards(pad_id=0, budget=10, agree=lambda n: 3)
    scores = score_pairs(scorer, Ragged.of([]), Ragged.of([]), nothing, nothing, forwards)
    assert len(calls) == 3 and scores.shape == (0, 1)


def _mean(rows: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Adds up the views of each response, the first one counting double in even rows."""
    weight = torch.ones(logits.shape[:2])
    weight[:, 0] += 1.0 - rows % 2
    return (logits * weight.unsqueeze(-1)).sum(1)


@pytest.mark.parametrize("budget", [90, 100_000])
@pytest.mark.parametrize(
    ("shared", "kept"), [(False, "nothing"), (True, "nothing"), (True, "some views"), (True, "all views")]
)
@pytest.mark.parametrize("several", [False, True])
def test_largest_logits_are_those_of_each_response_alone(
    tmp_path: Path, budget: int, shared: bool, several: bool, kept: str
) -> None:
    trainer = make_trainer(tmp_path)
    prompts, responses, _, _ = _requests()
    responses = Ragged.of([responses.row(row) for row in range(6)])
    sources = torch.tensor([[1, 2], [-1, -1], [1, 5], [4, -1], [3, -1], [2, 0]])
    views: dict[str, Any] = {"sources": sources, "mix": _mean} if several else {}
    among = torch.tensor([True, True, True, False, True, True])
    scorer, forwards, known = PolicyScorer(trainer), Forwards(pad_id=0, budget=budget, shared=shared), {}
    if kept != "nothing":
        every = torch.cat([torch.arange(6)[:, None], sources], dim=1) if several else torch.arange(6)[:, None]
        row, slot = (every >= 0).nonzero()[: None if kept == "all views" else 3].T
        pairs = (prompts, responses, every[row, slot], row)
        scores = score_pairs(scorer, *pairs, forwards, keep=known)
        assert torch.allclose(scores, score_pairs(scorer, *pairs, forwards), atol=1e-5)
        assert known
    if kept == "all views":
        scorer.states = None  # no forward is needed
    ids, logits = largest_logits(scorer, prompts, responses, 5, forwards, among=among, **views, known=known)
    assert ids.shape == logits.shape == (6, int(responses.length.max()), 5) and not logits.requires_grad
    for row in range(6):
        whole = []
        for prompt in (row, *(sources[row].tolist() if several else [])):
            if prompt >= 0:
                context, answer = (torch.tensor([one]) for one in (prompts.row(prompt), responses.row(row)))
                with torch.no_grad():
                    found = trainer.model(torch.cat([context, answer], dim=1)).logits[0, context.size(1) - 1 : -1]
                whole.append(found)
        length = len(whole[0]) if among[row] else 0
        wanted = _mean(torch.full((len(whole[0]),), row), torch.stack(whole, 1)) if several else whole[0]
        assert torch.allclose(logits[row, :length], wanted[:length].topk(5).values, atol=1e-5)
        assert torch.allclose(wanted[:length].gather(1, ids[row, :length]), logits[row, :length], atol=1e-5)
        assert not logits[row, length:].any()


def test_too_many_hidden_states_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, responses, prompt, response = _requests()
    scorer, known = PolicyScorer(make_trainer(tmp_path)), {}
    forwards = Forwards(pad_id=0, budget=90, shared=True)
    monkeypatch.setattr(teacher_forcing, "KEPT_FROM_SCORING", len(prompt) * int(responses.length.max()) + 1)
    # another process has more, and all have to choose alike
    score_pairs(
        scorer, prompts, responses, prompt, response, replace(forwards, agree=lambda number: 10 * number), known
    )
    assert not known
    score_pairs(scorer, prompts, responses, prompt, response, forwards, known)
    assert known


@pytest.mark.parametrize("kind", ["plain", "biased", "adapted"])
def test_logits_at_some_tokens_are_those_of_the_head(kind: str) -> None:
    model = build_model(build_tokenizer())
    head = model.lm_head
    if kind == "biased":
        head.bias = torch.nn.Parameter(torch.randn(head.out_features))
    if kind == "adapted":
        model = get_peft_model(model, LoraConfig(target_modules=["lm_head"], init_lora_weights=False))
    ids = torch.randint(5, 20, (2, 7), generator=torch.Generator().manual_seed(0))
    tokens = torch.randint(0, head.out_features, (14, 4), generator=torch.Generator().manual_seed(1))
    wanted = model(ids).logits.flatten(0, 1).gather(-1, tokens)
    weight = next(one for one in model.get_output_embeddings().parameters() if one.requires_grad)
    (expected,) = torch.autograd.grad(wanted.square().sum(), weight)
    with logits_at(model, tokens):
        found = model(ids).logits.flatten(0, 1)
    assert torch.allclose(found, wanted, atol=1e-5)
    assert torch.allclose(torch.autograd.grad(found.square().sum(), weight)[0], expected, atol=1e-4)
