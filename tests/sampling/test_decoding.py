"""The project's own sampling against transformers' ``generate`` and against scoring."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from counting import Operations
from fakes.models import CONFIGS, SHAPE, Counted
from fakes.tool_classes import chat_tokenizer
from fakes.toy import build_model, build_tokenizer
from fakes.trainers import make_trainer
from peft import LoraConfig, get_peft_model
from second_device import move, second_device
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from alignopsd_trl.rollout.reading import Reader
from alignopsd_trl.sampling import loop as decoding
from alignopsd_trl.sampling.backend import Snapshot
from alignopsd_trl.sampling.loop import LoopSampler
from alignopsd_trl.sampling.trl_engine import samples_plainly
from alignopsd_trl.scoring import prefix_cache
from alignopsd_trl.scoring.packing import PROVEN, Ragged
from alignopsd_trl.scoring.prefix_cache import PrefixCache
from alignopsd_trl.scoring.teacher_forcing import Forwards, score_pairs
from alignopsd_trl.scoring.trl_scoring import PolicyScorer
from alignopsd_trl.training.trl_policy import TrainedPolicy
from alignopsd_trl.turns import NO_THOUGHT, Thought, Trajectory, Turn, TurnBatch

PROMPTS = [[5, 6, 7, 8, 9], [11], [5, 6, 7, 8, 9], [4, 4, 12, 30, 31, 32, 33, 20], [40, 41], [11]]


def _most_likely(log_probs: torch.Tensor, place: torch.Tensor, step: int) -> torch.Tensor:
    return log_probs.argmax(-1)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", PROVEN)
@pytest.mark.parametrize("leave", [0.0, 1.0])
def test_greedy_tokens_are_those_of_generate(
    kind: str, attention: str, leave: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](**SHAPE), attn_implementation=attention).eval()
    monkeypatch.setattr(decoding, "draw", _most_likely)
    monkeypatch.setattr(decoding, "LEAVE", leave)
    ends = list(range(3, 53, 6))
    found, _ = LoopSampler(PrefixCache(model, 0), 1.0, 14, ends).sample(PROMPTS)
    for prompt, response in zip(PROMPTS, found, strict=True):
        whole = model.generate(
            torch.tensor([prompt]), max_new_tokens=14, do_sample=False, eos_token_id=ends, pad_token_id=0
        )
        assert response == whole[0, len(prompt) :].tolist()
    assert len({len(response) for response in found}) > 1


def test_tokens_follow_the_distribution_at_the_temperature() -> None:
    torch.manual_seed(0)
    model, count = build_model(build_tokenizer()).eval(), 20_000
    found, kept = LoopSampler(PrefixCache(model, 0), 0.7, 1, [2]).sample([[5, 9, 3]] * count)
    with torch.no_grad():
        expected = (model(torch.tensor([[5, 9, 3]])).logits[0, -1] / 0.7).log_softmax(-1)
    seen = torch.bincount(torch.tensor([response[0] for response in found]), minlength=len(expected)).double()
    likely = expected.exp().double() * count
    many = likely > 5
    statistic = ((seen - likely)[many] ** 2 / likely[many]).sum()
    assert statistic < int(many.sum()) + 5 * (2 * int(many.sum())) ** 0.5
    assert torch.allclose(torch.tensor(kept).squeeze(1), expected[[response[0] for response in found]], atol=1e-5)


def test_no_mass_no_token() -> None:
    log_probs = torch.full((50, 6), float("-inf"))
    log_probs[:, 2], log_probs[:, 4] = -0.1, -2.3
    drawn = decoding.draw(log_probs, torch.arange(50), 0)
    assert set(drawn.tolist()) <= {2, 4}


@pytest.mark.parametrize("options", [{}, {"lora": True}, {"gradient_checkpointing": True}])
def test_kept_log_probs_are_those_of_scoring(tmp_path: Path, options: dict) -> None:
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    parts = {"peft_config": config} if options.pop("lora", False) else None
    trainer = make_trainer(tmp_path, script=False, temperature=0.8, parts=parts, **options)
    trainer.model.train()
    assert samples_plainly(trainer) and TrainedPolicy(trainer).scores_as_sampled
    prompts = [[5 + row % 3, 9, 3, *[4] * (row % 7)] for row in range(40)]
    with trainer.backend.prefixes() as prefixes:
        responses, kept = trainer.backend.sampler(0.8, 12, prefixes).respond(prompts)
    rows = torch.arange(len(prompts))
    scores = score_pairs(
        PolicyScorer(trainer), Ragged.of(prompts), Ragged.of(responses), rows, rows,
        Forwards(pad_id=0, budget=900, shared=True),
    )  # fmt: skip
    for row, values in enumerate(kept):
        assert torch.allclose(scores[row, : len(values)], torch.tensor(values), atol=1e-5)
    assert len({len(response) for response in responses}) > 2


def test_thinking_takes_as_many_rows_as_have_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path, script=False, method="align_opsd")
    row = 2 * 2 * 32 * 4 * (3 + 12)  # keys and values of two layers, 32 wide, float32, for 3 + 12 tokens
    prompts = [[5, 6, 7], [5]]
    monkeypatch.setattr(prefix_cache, "CACHE", 20 * row + row // 2)
    trainer.model.train()
    assert trainer.backend.rows_at_once(prompts, limit=12, least=8) == 20
    assert trainer.backend.rows_at_once(prompts, limit=12, least=30) == 30
    trainer.model.eval()
    assert trainer.backend.rows_at_once(prompts, limit=12, least=8) == 8


RESPONSES = [
    "<think>go left</think><action>left</action>",
    "<think>left, or right, and then left</think> <action>right</action>",
    "</think><think>left</think><action>right</action>",
    "<think></think><think>left</think>",
    "<action>left</action><think>right</think>",
    "<think>no end",
    "left",
]


class Script:
    """Draws the tokens of texts, whoever is still in the batch."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: list[str]):
        ended = [tokenizer(text + tokenizer.eos_token, add_special_tokens=False)["input_ids"] for text in texts]
        self.width = max(map(len, ended))
        self.tokens = torch.tensor([[*ids, *[tokenizer.eos_token_id] * (self.width - len(ids))] for ids in ended])

    def __call__(self, log_probs: torch.Tensor, place: torch.Tensor, step: int) -> torch.Tensor:
        return self.tokens[place, step]


@pytest.mark.parametrize("opened", [False, True])
def test_a_response_that_ends_with_its_thinking_thinks_what_the_whole_one_does(
    opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = chat_tokenizer("qwen3_5_think") if opened else build_tokenizer()
    options = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "go"}], **options)["input_ids"]
    texts = [*RESPONSES, *(["go left</think>right", "</think>", "left</think> <think>right</think>"] if opened else [])]
    script, reader = Script(tokenizer, texts), Reader(tokenizer)
    monkeypatch.setattr(decoding, "draw", script)
    model, thoughts, lengths = build_model(tokenizer).eval(), [], []
    for until in (None, reader):
        sampler = LoopSampler(PrefixCache(model, 0), 1.0, script.width, [tokenizer.eos_token_id])
        found, kept = sampler.sample([prompt] * len(texts), until)
        decoded = tokenizer.batch_decode(found, skip_special_tokens=True)
        thoughts.append([reader.read(prompt, *one).thought.thinking for one in zip(found, decoded, strict=True)])
        lengths.append([len(one) for one in found])
        assert list(map(len, kept)) == lengths[-1]
    assert thoughts[0] == thoughts[1] and thoughts[0][0] == "go left"
    assert [short < whole for whole, short in zip(*lengths, strict=True)] == [bool(one) for one in thoughts[0]]


def test_thoughts_without_actions_are_sampled_until_they_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path, script=False, method="align_opsd")
    trainer.model.train()
    script = Script(trainer.processing_class, ["<think>go</think><action>left</action>"] * 2)
    monkeypatch.setattr(decoding, "draw", script)
    turns = [Turn(n, "", [5, 6], [5, 6, 7 + n], [8], "", NO_THOUGHT, "", True, "") for n in range(2)]
    batch = TurnBatch.of([Trajectory({}, "task", str(one.number), turns=[one]) for one in turns], 0)
    counted = Counted(trainer.model)
    for actions, thought, steps in ((True, Thought("go", "left"), script.width), (False, Thought("go", ""), 3)):
        with trainer.backend.prefixes() as prefixes:
            snapshot = Snapshot(
                trainer.backend.sampler(1.0, 12, prefixes), trainer.samplers.thinker(prefixes), prefixes, prefixes
            )
            teacher = trainer.scorer.teacher(snapshot, trainer.rollouts.reader)
            assert teacher.thoughts(batch, torch.arange(2), actions) == [thought] * 2
        assert counted.tokens == 2 + 2 * steps  # what both prompts begin with, and a token a step each
        counted.tokens = 0


def test_other_ways_to_sample_are_left_to_generate(tmp_path: Path) -> None:
    assert not samples_plainly(make_trainer(tmp_path / "k", script=False, top_k=5))
    assert not samples_plainly(make_trainer(tmp_path / "p", script=False, top_p=0.9))
    penalised = make_trainer(tmp_path / "r", script=False, repetition_penalty=1.1)
    with penalised.backend.prefixes() as prefixes:
        responses, kept = penalised.backend.sampler(1.0, 12, prefixes).respond([[5, 6], [7]])
    assert kept is None and len(responses) == 2


def _autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def _bfloat16(held: bool, steps: int) -> tuple[tuple, Operations, PrefixCache]:
    """Samples from float32 weights that compute in bfloat16, as Accelerate's mixed precision has it: each forward is
    under autocast. ``held``: so is the whole loop, and keys and values are kept in bfloat16."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(CONFIGS["qwen2"](**SHAPE)).eval()
    model.forward = _autocast()(model.forward)
    known = PrefixCache(model, 0, dtype=torch.bfloat16 if held else None)
    sampler = LoopSampler(known, 1.0, steps, [3])
    with Operations(model) as counted, _autocast() if held else contextlib.nullcontext():
        found = sampler.sample(PROMPTS)
    return found, counted, known


def test_autocast_around_the_loop_rounds_weights_once_and_halves_the_pool() -> None:
    found, counted, known = _bfloat16(held=True, steps=12)
    expected, before, wide = _bfloat16(held=False, steps=12)
    assert found == expected, "tokens and kept log-probs, bit by bit"
    assert {part.dtype for part in known._pool} == {torch.bfloat16}
    assert known._size == 2 * wide._size
    more, fewer = (_bfloat16(held, 8)[1] for held in (True, False))
    assert counted.weight_casts == more.weight_casts > 0, "no cast of a weight in the last four steps"
    assert before.weight_casts - fewer.weight_casts == 4 * (7 * SHAPE["num_hidden_layers"] + 1)
    assert counted.cast_bytes < before.cast_bytes / 4


def _adapted(whole: bool, steps: int) -> tuple[tuple, int]:
    """Responses of a model with an adapter, and the casts of weights. ``whole``: by the sampler, which keeps them."""
    torch.manual_seed(3)
    adapter = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    model = get_peft_model(AutoModelForCausalLM.from_config(CONFIGS["qwen2"](**SHAPE)), adapter).eval()
    trained = [value.requires_grad for value in model.parameters()]
    sampler = LoopSampler(PrefixCache(model, 0), 1.0, steps, [3], context=_autocast)
    with Operations(model) as counted:
        if whole:
            found = tuple(sampler.respond(PROMPTS))
        else:
            with _autocast():
                found = sampler.sample(PROMPTS)
    assert [value.requires_grad for value in model.parameters()] == trained
    return found, counted.weight_casts


def test_frozen_weights_under_an_adapter_are_rounded_once() -> None:
    (found, casts), (_, fewer) = (_adapted(whole=True, steps=steps) for steps in (12, 8))
    (expected, before), (_, less) = (_adapted(whole=False, steps=steps) for steps in (12, 8))
    assert found == expected, "tokens and kept log-probs, bit by bit"
    assert casts == fewer > 0
    assert before - less >= 4 * 7 * SHAPE["num_hidden_layers"]


def test_the_host_waits_once_for_each_sampled_token() -> None:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(CONFIGS["qwen2"](**SHAPE)).eval()
    options: dict[str, Any] = {"temperature": 1.0, "end_ids": list(range(3, 53, 3))}
    with second_device() as device:
        move(model)
        waits = []
        for steps in (6, 12):
            before, known = sum(device.waits.values()), PrefixCache(model, 0)
            found, _ = LoopSampler(known, max_tokens=steps, **options).sample(PROMPTS)
            waits.append(sum(device.waits.values()) - before - max(map(len, found)))
    assert waits[0] == waits[1] == 1, device.waits
