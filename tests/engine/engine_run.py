"""Run by `check_vllm.py`: three rounds of AlignOPSD with vLLM's real engine, and how far sampler and trainer are apart.

python tests/engine/engine_run.py FOLDER [--fsdp] [--lora] [--merged] [--base] [--siblings] [--sleep]
    [--continuous] [--smollm2]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from fsdp_on_cpu import assert_sharded, shard

FLAGS = set(sys.argv[2:])
if "--fsdp" in FLAGS:
    shard()

from fakes.trainers import variety  # noqa: E402
from peft import LoraConfig  # noqa: E402
from trl.generation import vllm_generation  # noqa: E402

from alignopsd_trl import AlignOPSDConfig, AlignOPSDTrainer  # noqa: E402
from alignopsd_trl.common.models import resolve_model  # noqa: E402
from alignopsd_trl.environments import load  # noqa: E402
from alignopsd_trl.experimental.config import ContinuousConfig  # noqa: E402
from alignopsd_trl.experimental.trainer import ContinuousTrainer  # noqa: E402
from alignopsd_trl.sampling.trl_engine import EngineSampler, awake  # noqa: E402
from alignopsd_trl.scoring.packing import Ragged  # noqa: E402
from alignopsd_trl.scoring.teacher_forcing import Forwards, score_pairs  # noqa: E402
from alignopsd_trl.scoring.trl_scoring import PolicyScorer  # noqa: E402

ROUNDS = 3
CONTINUOUS = "--continuous" in FLAGS
TEACHER: dict[str, Any] = {"teacher_model_kind": "base"} if "--base" in FLAGS else {}
OWN = {"enable_lora": False} if "--merged" in FLAGS else {}
WHOLE_PROMPTS = {"max_num_batched_tokens": 65536} if CONTINUOUS else {}  # on a CPU seeds need them
MODEL, TURNS, BATCH = ("smollm2", 2, 8) if "--smollm2" in FLAGS else ("tiny", 4, 16)


def make(folder: Path) -> AlignOPSDTrainer:
    suite = load("webshop_tiny")
    config = (ContinuousConfig if CONTINUOUS else AlignOPSDConfig)(
        str(folder / "run"),
        use_cpu=True,
        bf16=False,
        use_vllm=True,
        vllm_engine_options={"dtype": "float32", "enforce_eager": True} | OWN | WHOLE_PROMPTS,
        **TEACHER,
        privileged_siblings=2 if "--siblings" in FLAGS else 0,
        vllm_enable_sleep_mode="--sleep" in FLAGS,
        method="align_opsd",
        action_filter="webshop",
        per_device_train_batch_size=BATCH,
        max_steps=ROUNDS,
        max_turns=TURNS,
        learning_rate=1e-2,
        max_prompt_length=384,
        max_completion_length=40,
        skill_tokens=64,
        tokens_per_forward=8192,
        gradient_checkpointing=False,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        save_trajectories=False,
    )
    return (ContinuousTrainer if CONTINUOUS else AlignOPSDTrainer)(
        resolve_model(MODEL),
        config,
        environment_factory=suite.factory,
        train_dataset=suite.tasks("train"),
        skill_bank="webshop",
        encoder="lexical",
        reward_funcs=variety,
        peft_config=adapter() if "--lora" in FLAGS else None,
    )


def adapter() -> LoraConfig:
    """One that three updates move far enough for the control to see."""
    return LoraConfig(r=4, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")


def keep(trainer: AlignOPSDTrainer) -> list[dict[str, torch.Tensor]]:
    rounds, inner = [], trainer._generate_and_score_completions

    def watched(inputs: Any) -> dict[str, torch.Tensor]:
        rounds.append(inner(inputs))
        return rounds[-1]

    trainer._generate_and_score_completions = watched
    return rounds


def furthest(rows: dict[str, torch.Tensor]) -> float:
    """The largest difference of trainer and sampler over a round's trained tokens."""
    gap = (rows["old_per_token_logps"] - rows["sampling_per_token_logps"]).abs().nan_to_num(0.0)  # privileged siblings
    return float(gap[(rows["completion_mask"] * rows["tool_mask"]).bool()].max())


def keep_teacher(trainer: AlignOPSDTrainer) -> list[float]:
    """The largest difference of the teacher as it samples and as it scores, in each round after its play."""
    found, inner = [], trainer.scorer.self_check

    def watched(batch: Any, teacher: Any, *rest: Any) -> Any:
        found.append(apart(trainer, teacher.model, [turn.privileged_ids for turn in batch.turns[:8]], teacher.sampler))
        return inner(batch, teacher, *rest)

    trainer.scorer.self_check = watched
    return found


def apart(trainer: AlignOPSDTrainer, model: Any, prompts: list[Any], sampler: Any) -> float:
    """The largest difference of fresh responses' log-probs, as sampled and as scored."""
    responses, sampled = sampler.respond(prompts)
    every = torch.arange(len(prompts))
    forwards = Forwards(pad_id=trainer.processing_class.pad_token_id, budget=100_000, agree=trainer.processes.agree)
    scores = score_pairs(model, Ragged.of(prompts), Ragged.of(responses), every, every, forwards)
    return max(
        float((scores[row, : len(values)] - torch.tensor(values)).abs().max()) for row, values in enumerate(sampled)
    )


def now(trainer: AlignOPSDTrainer, rows: dict[str, torch.Tensor]) -> float:
    """The same for fresh responses of the policy as it is after its last update."""
    shown = zip(rows["prompt_ids"][:16], rows["prompt_mask"][:16], strict=True)
    prompts = [ids[mask.bool()].tolist() for ids, mask in shown]
    sampler = EngineSampler(trainer, trainer.temperature, trainer.max_completion_length)
    return apart(trainer, PolicyScorer(trainer), prompts, sampler)


def without_sleep() -> list[str]:
    """vLLM can't sleep on CPU: its two calls are noted, and the weights thrown away as it would do."""
    calls, engine = [], vllm_generation.LLM

    def awake_engine(**options: Any) -> Any:
        assert options.pop("enable_sleep_mode")
        llm = engine(**options)

        def sleep(level: int) -> None:
            calls.append("sleep")
            if level == 1:
                return
            with torch.no_grad():
                for value in llm.llm_engine.model_executor.driver_worker.model_runner.model.parameters():
                    value.zero_()

        llm.sleep, llm.wake_up = sleep, lambda tags=None: calls.append("wake")
        return llm

    vllm_generation.LLM = awake_engine
    return calls


def note_calls(trainer: AlignOPSDTrainer) -> tuple[list[int], list[int]]:
    """How many prompts each call of the sampler has, and before which calls the weights are pushed."""
    sizes, pushes, engine = [], [], trainer.vllm_generation
    generate, push = engine.generate, engine.sync_weights

    def generated(prompts: Any, *rest: Any, **options: Any) -> Any:
        sizes.append(len(prompts))
        return generate(prompts, *rest, **options)

    def pushed() -> None:
        pushes.append(len(sizes))
        push()

    engine.generate, engine.sync_weights = generated, pushed
    return sizes, pushes


def main(folder: Path) -> None:
    calls = without_sleep() if "--sleep" in FLAGS else []
    trainer = make(folder)
    rounds, teacher = keep(trainer), keep_teacher(trainer)
    sizes, pushes = note_calls(trainer)
    trainer.train()
    if "--fsdp" in FLAGS:
        assert_sharded(trainer)
    with awake(trainer):
        trainer._last_loaded_step = trainer.state.global_step  # the control: TRL believes that it has pushed
        stale = now(trainer, rounds[-1])
        trainer._last_loaded_step = -1
        fresh = now(trainer, rounds[-1])
    evaluated = trainer.evaluate_panel(load("webshop_tiny").panel("test").head(12))
    engine = trainer.vllm_generation.llm.llm_engine
    scheduler = engine.vllm_config.scheduler_config
    result = {
        "processes": trainer.accelerator.num_processes,
        "continuous": isinstance(trainer, ContinuousTrainer),
        "furthest_by_round": [furthest(rows) for rows in rounds],
        "furthest_of_teacher": teacher,
        "teacher": bool(TEACHER),
        **{name: f"--{name}" in FLAGS for name in ("lora", "merged")},
        "served": getattr(trainer.vllm_generation, "serves", False),
        "furthest_after": fresh,
        "furthest_without_push": stale,
        "largest_advantage_by_round": [float(rows["advantages"].abs().max()) for rows in rounds],
        "share_with_advantage_by_round": [
            float(rows["advantages"].abs().amax(1)[rows["tool_mask"].any(1)].gt(0).float().mean()) for rows in rounds
        ],
        "turns_by_round": [int(rows["tool_mask"].any(1).sum()) for rows in rounds],
        "prompts_by_call": sizes,
        "left_in_engine": engine.get_num_unfinished_requests(),
        "pushes_before_call": pushes,
        "sleep_calls": calls,
        "evaluated": evaluated.episodes,
        "sequences_at_once": scheduler.max_num_seqs,
        "tokens_a_step": scheduler.max_num_batched_tokens,
        "gradient_norms": [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry],
    }
    text = json.dumps(result, indent=2, default=float)
    (folder / f"result_{os.environ.get('RANK', '0')}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
