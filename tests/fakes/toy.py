"""A game, a tokenizer and a policy so small that a whole training run takes seconds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from alignopsd_trl.environments.base import Opening, Projection, Step, TextEnvironment, View
from alignopsd_trl.rollout.sampler import Responses

if TYPE_CHECKING:  # a test of a prompt needs neither, and both take seconds to import
    from datasets import Dataset
    from transformers import Qwen2ForCausalLM

WORDS = (
    "user assistant . : , you are at of go for seek skill hint always pick the largest number history action "
    "think left right up down stay zero one two three four five six seven eight nine"
).split()
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ACTIONS = ("left", "right", "up", "down", "stay")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per word, space or line break; decoding gives the text back."""
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    tags = ["<think>", "</think>", "<action>", "</action>", " ", "\n", "<unk>"]
    vocabulary = {token: number for number, token in enumerate([*special, *tags, *dict.fromkeys(WORDS)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"</?\w+>|\w+|\s|[^\w\s]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        padding_side="left",
        chat_template=TEMPLATE,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0, positions: int = 512) -> Qwen2ForCausalLM:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.2,
    )
    return Qwen2ForCausalLM(config)


class ToyPrompt:
    name = "toy"

    def render(self, view: View, skill: str = "") -> str:
        lines = ["you seek " + view.task_text]
        if skill:
            lines.append(skill)
        lines += [f"history : {record.action} , {record.result}" for record in view.history]
        return "\n".join([*lines, "you are at " + view.observation])


class ToyEnvironment(TextEnvironment):
    """Walks over the numbers zero to nine; won on reaching the target. The start, and so the number of turns, differs
    from task to task and from sibling to sibling."""

    prompt = ToyPrompt()
    history_length = 2
    max_turns = 5
    openings_may_differ = True

    def reset(self, task_id: str, target: str, dynamics_seed: int, **columns: Any) -> Opening:
        self._place, self._target, self._won, self._turns = dynamics_seed % 10, NUMBERS.index(target), False, 0
        self._limit = 1 + dynamics_seed % self.max_turns
        return Opening(NUMBERS[self._place], target, category="odd" if NUMBERS.index(target) % 2 else "even")

    def step(self, action: str) -> Step:
        self._turns += 1
        self._place = (self._place + {"left": -1, "right": 1, "up": 3, "down": -3}.get(action, 0)) % 10
        self._won = self._place == self._target
        distance = abs(self._place - self._target)
        done = self._won or self._turns >= self._limit
        return Step(NUMBERS[self._place], float(self._won) if done else 0.0, done, self._won, 1 - distance / 10)

    def project(self, response: str, admissible: Any = None) -> Projection:
        start, end = response.find("<action>"), response.find("</action>")
        if start < 0 or end < start:
            return Projection("", False)
        return Projection(response[start + 8 : end].strip(), True)


def toy_dataset(count: int = 16) -> Dataset:
    from datasets import Dataset

    return Dataset.from_list([{"task_id": f"toy/{number}", "target": NUMBERS[number % 10]} for number in range(count)])


class Scripted:
    """A sampler that answers by a function of the prompts."""

    def __init__(self, function: Callable[[Any], tuple[list[list[int]], Any]]):
        self._function = function

    def respond(self, prompts: Any, until: Any = None) -> Responses:
        return Responses(*self._function(prompts))


def answer_with(trainer: Any, function: Callable[[Any], tuple[list[list[int]], Any]]) -> None:
    """A function of the prompts takes the place of a trainer's sampling, of ours or of TRL's own trainer."""
    if hasattr(trainer, "backend"):
        trainer.backend.sampler = lambda *settings, **options: Scripted(function)
    else:
        trainer._generate_single_turn = function


def scripted(trainer: Any) -> None:
    """Replaces the sampling of a trainer by responses that are a function of the prompt alone, so that runs on any
    number of processes play the same episodes."""
    tokenizer = trainer.processing_class

    def respond(prompt_ids: list[list[int]]) -> tuple[list[list[int]], None]:
        calls.append(len(prompt_ids))
        return [toy_response(tokenizer, ids) for ids in prompt_ids], None

    calls: list[int] = []
    trainer.generation_calls = calls
    answer_with(trainer, respond)


def toy_response(tokenizer: PreTrainedTokenizerFast, prompt: list[int]) -> list[int]:
    """Thinking and an action, mostly, that depend on some numbers alone."""
    digest = hashlib.sha256(str(prompt).encode()).digest()
    action, word = ACTIONS[digest[0] % len(ACTIONS)], NUMBERS[digest[1] % 3]
    thinking = f"<think>go {word} {action}</think>" if digest[2] % 8 else ""
    text = f"{thinking}<action>{action}</action>" if digest[3] % 10 else f"{thinking}{action}"
    return [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
