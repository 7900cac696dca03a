"""Environments as TRL's documentation describes them, a tokenizer whose template has tools, and a scripted policy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import trl
from datasets import Dataset
from fakes.toy import answer_with, build_model
from fakes.trainers import make_config
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from alignopsd_trl.environments import Failure, open_batch
from alignopsd_trl.trainer import AlignOPSDTrainer

TEMPLATES = Path(trl.__file__).parent / "chat_templates"


class Counter:
    """Two tools and a reward of its own."""

    def reset(self, **row: Any) -> str:
        self.value, self.target = 0, row.get("target", 3)
        return f" The counter is at 0, bring it to {self.target}."

    def increment(self, step: int) -> int:
        """Increase the counter.

        Args:
            step: By how much.

        Returns:
            Where the counter is now.
        """
        self.value += step
        return self.value

    def decrement(self, step: int = 1) -> int:
        """Decrease the counter.

        Args:
            step: By how much.

        Returns:
            Where the counter is now.
        """
        self.value -= step
        return self.value

    def get_reward(self) -> float:
        return 1.0 - abs(self.target - self.value) / 10


class Guessing:
    """Ends by itself; keeps its reward for a reward function to read."""

    def reset(self, secret: int, **row: Any) -> None:
        self.secret, self.reward, self.done, self.guesses = secret, 0.0, False, 0

    def guess(self, number: int) -> str:
        """Guess the secret number.

        Args:
            number: Between 1 and 10.

        Returns:
            Whether the secret is higher or lower.
        """
        if self.done:
            raise ValueError("Game over.")
        self.guesses += 1
        self.done = number == self.secret
        self.reward = 1.0 / self.guesses if self.done else 0.0
        return "Correct!" if self.done else "higher" if self.secret > number else "lower"


class Calculator:
    """A tool that raises, one that must be awaited, and a reward that must be awaited."""

    def reset(self, prompt: Any, answer: float) -> None:
        self.answer, self.last = answer, None

    def divide(self, a: float, b: float) -> float:
        """Divide two numbers.

        Args:
            a: The dividend.
            b: The divisor.

        Returns:
            The quotient.
        """
        self.last = a / b
        return self.last

    async def multiply(self, a: float, b: float) -> float:
        """Multiply two numbers.

        Args:
            a: One factor.
            b: The other.

        Returns:
            The product.
        """
        self.last = a * b
        return self.last

    async def get_reward(self) -> float:
        return float(self.last == self.answer)


def guessing_reward(environments: Sequence[Guessing], **columns: Any) -> list[float]:
    return [one.reward for one in environments]


def messages(text: str, system: str = "") -> list[dict[str, str]]:
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": text}]


def counter_rows(count: int = 4) -> Dataset:
    return Dataset.from_list([{"prompt": messages("Count.", "You count."), "target": 2 + row} for row in range(count)])


def guessing_rows(count: int = 4) -> Dataset:
    return Dataset.from_list([{"prompt": messages("Guess a number."), "secret": 3 + row} for row in range(count)])


def calculator_rows(count: int = 4) -> Dataset:
    rows = [{"prompt": messages(f"What is 6 / {number}?"), "answer": 6 / number} for number in range(1, count + 1)]
    return Dataset.from_list(rows)


def chat_tokenizer(template: str = "qwen3_instruct_2507") -> PreTrainedTokenizerFast:
    """A token a byte and one for each tag, under a chat template of TRL's that supports tools."""
    tags = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in special])
    tokenizer.add_tokens([AddedToken(one, normalized=False) for one in tags])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        padding_side="left",
        chat_template=(TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8"),
    )


def chat_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    return build_model(tokenizer, positions=8192)


Calls = Sequence[tuple[str, Mapping[str, Any]]]


def as_text(say: str, calls: Calls = (), thinking: str = "") -> str:
    lines = "\n".join(f"{name}({', '.join(f'{k}={v!r}' for k, v in given.items())})" for name, given in calls)
    return (f"<think>{thinking}</think>" if thinking else "") + say + (f"<action>{lines}</action>" if calls else "")


def as_tool_calls(say: str, calls: Calls = (), thinking: str = "") -> str:
    blocks = [json.dumps({"name": name, "arguments": dict(given)}) for name, given in calls]
    tagged = "\n".join(f"<tool_call>\n{block}\n</tool_call>" for block in blocks)
    return (f"<think>\n{thinking}\n</think>\n\n" if thinking else "") + (f"{say}\n" if say and calls else say) + tagged


def script(trainer: Any, plans: Sequence[Sequence[str]], rounds_of: Sequence[int] = ()) -> None:
    """Replaces sampling: episode number ``n`` of a round answers with the texts of ``plans[n]``, one a turn. An episode
    that ends before its plan, or goes on after it, fails an assertion. ``rounds_of``: rounds of fewer episodes."""
    everything, left = plans, list(rounds_of)
    tokenizer = trainer.processing_class
    turn = 0

    def respond(prompts: list[list[int]], *ignored: Any, **also: Any) -> tuple[list[list[int]], None]:
        nonlocal turn, plans
        turn = turn if any(len(plan) > turn for plan in plans) else 0
        if turn == 0 and left:
            plans = everything[: left.pop(0)]
        texts = [plan[turn] for plan in plans if len(plan) > turn]
        assert len(texts) == len(prompts), f"turn {turn}: {len(prompts)} episodes play, {len(texts)} were to"
        trainer.seen_prompts.append([tokenizer.decode(prompt) for prompt in prompts])
        turn += 1
        encoded = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        return [[*ids, tokenizer.eos_token_id] for ids in encoded], None

    trainer.seen_prompts = []
    answer_with(trainer, respond)


def hint(task_text: str, task_key: str | None, data_source: str | None) -> str:
    return "Do it in one call."


def trainer_of(policy: tuple[Path, Any], folder: Path, plans: list[list[str]] | None = None, **parts: Any) -> Any:
    """A trainer of one of these environments; ``plans`` replaces sampling (see `script`)."""
    names = ("environment_factory", "train_dataset", "reward_funcs", "tools", "skill_bank", "encoder", "peft_config")
    own = {"skill_bank": hint} | {name: parts.pop(name) for name in names if name in parts}
    options = {"max_prompt_length": 2048, "max_completion_length": 256, "skill_tokens": 60, "num_generations": 2}
    options |= {"per_device_train_batch_size": 4, "save_trajectories": True, "shuffle_dataset": False} | parts
    model, tokenizer = policy
    own = {"processing_class": tokenizer, "encoder": "lexical"} | own
    trainer = AlignOPSDTrainer(str(model), make_config(folder, **options), **own)
    if plans is not None:
        script(trainer, plans)
    return trainer


def played(environment: Any, row: Mapping[str, Any], *responses: str, limit: float = 5.0) -> tuple[Any, list[Any], Any]:
    """One episode alone: what its reset, its steps and its end gave; no end after a failure."""
    with closing(open_batch(environment, 1, limit)) as batch:
        opening = batch.reset([0], [{"seed": 7, **row}])[0]
        steps = [batch.step([0], [batch.project(response).action])[0] for response in responses]
        failed = any(isinstance(one, Failure) for one in (opening, *steps))
        return opening, steps, None if failed else batch.finish([0])[0]
