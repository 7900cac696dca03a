"""A first policy: TRL's `SFTTrainer` on demonstrations, and what the policy can do afterwards."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from alignopsd_trl.evaluation import evaluate
from alignopsd_trl.evaluation.summary import EvaluationResult
from alignopsd_trl.own_task.demonstrations import skills_of
from alignopsd_trl.own_task.options import WarmStartConfig
from alignopsd_trl.own_task.task import Task
from alignopsd_trl.own_task.tiny import tiny_model, tiny_tokenizer
from alignopsd_trl.policy.shipped import resolve_model
from alignopsd_trl.policy.tokenizer import load_tokenizer
from alignopsd_trl.rollout import no_skills
from alignopsd_trl.runs.files import replacing

PROMPTS_FIRST = 0.3  # of the updates of a fresh model


def warm_start(
    rows: Sequence[Mapping[str, Any]], output: str | Path, config: WarmStartConfig, extra_texts: Sequence[str] = ()
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Trains a model on demonstrations and saves it with its tokenizer, both whole or neither.

    Args:
        rows: of TRL's conversational prompt-completion form.
        output: folder of the policy.
        extra_texts: what a fresh tokenizer is to know beside the demonstrations.
    """
    model, tokenizer = _start(rows, config, extra_texts)
    longest = max(_lengths(tokenizer, rows))
    with replacing(output) as partial:
        for part in _parts(config, len(rows)):
            trainer = _trainer(model, tokenizer, rows, longest, partial, config, *part)
            trainer.train()
            model = trainer.model
        trained = trainer.accelerator.unwrap_model(trainer.model)
        trained = trained.merge_and_unload() if config.use_peft else trained
        trained.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        for weights in partial.glob("*.safetensors"):
            weights.chmod(0o644)  # safetensors writes them for their owner alone
    return trained.eval(), tokenizer


def _start(
    rows: Sequence[Mapping[str, Any]], config: WarmStartConfig, extra_texts: Sequence[str]
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model to train, and its tokenizer."""
    if config.fresh:
        texts = [str(one.get("content") or "") for row in rows for one in (*row["prompt"], *row["completion"])]
        tokenizer = tiny_tokenizer([*texts, *extra_texts])
        return tiny_model(tokenizer, config.layers, config.seed), tokenizer
    path = resolve_model(config.model)
    model = AutoModelForCausalLM.from_pretrained(path, dtype="auto" if torch.cuda.is_available() else torch.float32)
    return model, load_tokenizer(path, model)


def _parts(config: WarmStartConfig, rows: int) -> list[tuple[int, bool]]:
    """Updates of each part of training, and whether prompts are learnt in it too: a fresh model learns to copy there.
    One that knows a language learns the responses alone."""
    steps = config.max_steps if config.max_steps > 0 else math.ceil(config.epochs * rows / config.batch_size)
    first = math.ceil(PROMPTS_FIRST * steps) if config.fresh else 0
    return [part for part in ((first, True), (steps - first, False)) if part[0]]


def _lengths(tokenizer: PreTrainedTokenizerBase, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Tokens of each row's conversation."""
    whole = [[*row["prompt"], *row["completion"]] for row in rows]
    tools = rows[0].get("tools")
    options: dict[str, Any] = {"tools": tools} if tools else {}
    encoded: Any = tokenizer.apply_chat_template(whole, **options, return_dict=True)
    return [len(one) for one in encoded["input_ids"]]


def _trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Mapping[str, Any]],
    longest: int,
    folder: Path,
    config: WarmStartConfig,
    steps: int,
    with_prompts: bool,
) -> Any:
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    disable_progress_bar()
    disable_progress_bars()
    used = ("prompt", "completion", "tools") if rows[0].get("tools") else ("prompt", "completion")
    on_gpu = torch.cuda.is_available()
    args = SFTConfig(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=min(config.batch_size, len(rows)),
        learning_rate=config.rate,
        lr_scheduler_type="cosine",
        adam_beta2=0.98,
        warmup_steps=0.05,
        weight_decay=0.01,
        max_length=longest,
        completion_only_loss=not with_prompts,
        use_cpu=not on_gpu,
        bf16=on_gpu and torch.cuda.is_bf16_supported() and not config.fresh,
        gradient_checkpointing=False,
        train_sampling_strategy="group_by_length",
        seed=config.seed,
        save_strategy="no",
        report_to="none",
        logging_steps=20,
    )
    adapters = LoraConfig(r=config.lora_r, target_modules="all-linear", task_type="CAUSAL_LM")
    return SFTTrainer(
        model,
        args=args,
        train_dataset=Dataset.from_list([{name: row[name] for name in used} for row in rows]),
        processing_class=tokenizer,
        peft_config=adapters if config.use_peft else None,
    )


def what_it_can(
    task: Task,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    tasks: int,
    panel: str = "test",
    temperature: float = 0.4,
    skill_bank: Any = None,
    encoder: str = "lexical",
) -> dict[str, EvaluationResult]:
    """Plays the panel's first tasks, without the skill and, where the task has one, with it in the prompt."""
    limits: dict[str, Any] = {name: task.limit(name) for name in ("max_prompt_length", "max_completion_length")}
    skills = skills_of(task, tokenizer, limits["max_prompt_length"], skill_bank, encoder)
    rows = task.suite.panel(panel).head(tasks)
    views = {"without the skill": None} | ({} if skills is no_skills else {"with it": skills})
    return {
        name: evaluate(model, tokenizer, task.suite.factory, rows, skills=one, temperature=temperature, **limits)[0]
        for name, one in views.items()
    }


def tell(task: Task, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, given: Namespace) -> str:
    """What the policy can do, for people."""
    results = what_it_can(
        task,
        model,
        tokenizer,
        tasks=given.tasks,
        panel=given.panel,
        temperature=given.eval_temperature,
        skill_bank=given.skill_bank,
        encoder=given.encoder,
    )
    return "\n".join(f"{name}:\n{result.table()}" for name, result in results.items())
