"""Plain imitation, the first baseline beside a distilled teacher: a shipped policy's own play with the skill in its
prompt, learnt without the skill in the prompt, for as many CPU seconds as another line trains.

    python -m research.imitation searchqa_hops --seed 30 --cpu_seconds 90 --output outputs/imitation.json
    python -m research.imitation searchqa_hops --seed 30 --cpu_seconds 90 --won --output outputs/imitation_won.json
    python -m research.imitation sums_smollm --won --tasks 6 --siblings 6 --rounds 10 --cpu_seconds 300 --output o.json

With ``--won`` it learns from won episodes alone, which makes the reward a filter. With ``--save FOLDER`` the policy
stays there, and another run can start from it. Rounds are those of training, 4 tasks x 8 siblings by default. An
update learns from as many turns as a round has on average. Adapters are trained where the recipe has them.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from alignopsd_trl.checks.loading import load_policy
from alignopsd_trl.commands.launch.presets import preset
from alignopsd_trl.commands.own_task.warm_start.supervised import IGNORED, loss_of
from alignopsd_trl.common.files import write_json
from alignopsd_trl.common.models import end_ids, resolve_model
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.environments.loading import load
from alignopsd_trl.results.play import evaluate, evaluating
from alignopsd_trl.rollout.episode import episode_seeds
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.sampling.loop import plain_sampler
from alignopsd_trl.skills import load_skills, skill_source
from alignopsd_trl.turns import Trajectory, Turn

FORWARD = 16
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}


def skilled_play(
    model: Any, tokenizer: Any, suite: Suite, settings: dict[str, Any], given: argparse.Namespace
) -> list[Trajectory]:
    """Plays training tasks with the skill in the prompt. A turn's ``prompt_ids`` are the prompt without it."""
    options, ends = PlayOptions(max_prompt_length=settings["max_prompt_length"]), end_ids(model, tokenizer.eos_token_id)
    bank = load_skills(suite.skill_bank or suite.name, load_encoder("lexical"), suite.tasks("train").column_names)
    count = given.tasks * given.siblings
    environments = open_batch(suite.factory, count, 60.0)
    player = Player.of(
        environments,
        plain_sampler(model, tokenizer, ends, SAMPLING, settings["max_completion_length"], count),
        tokenizer,
        ends,
        options,
        skills=skill_source(bank, tokenizer, settings["skill_tokens"]),
        privileged_siblings=given.siblings,
        sampling_seed=given.seed,
    )
    rows = [dict(row) for row in suite.tasks("train")]
    random.Random(given.seed).shuffle(rows)
    played: list[Trajectory] = []
    with closing(environments), evaluating(model, given.seed):
        for number in range(given.rounds):
            tasks = [rows[(given.tasks * number + one) % len(rows)] for one in range(given.tasks)]
            every = [(task, sibling) for task in tasks for sibling in range(given.siblings)]
            seeds = [episode_seeds(task["task_id"], number, sibling) for task, sibling in every]
            played += player.play([task for task, _ in every], seeds, [task["task_id"] for task, _ in every])
    return played


def padded(turns: Sequence[Turn]) -> dict[str, torch.Tensor]:
    """Returns turns as rows ``(B, T)``: the prompt without the skill, the response, and labels on the response."""
    rows = [turn.prompt_ids + turn.response_ids for turn in turns]
    shape = len(rows), max(map(len, rows))
    ids, mask = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    labels = torch.full(shape, IGNORED)
    for row, (turn, tokens) in enumerate(zip(turns, rows, strict=True)):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = torch.tensor(tokens), 1
        labels[row, len(turn.prompt_ids) : len(tokens)] = torch.tensor(turn.response_ids)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def batches(turns: Sequence[Turn], size: int, seed: int) -> Iterator[list[Turn]]:
    """Yields the turns in batches, in another order each epoch, without end."""
    draw = random.Random(seed)
    while True:
        order = draw.sample(list(turns), len(turns))
        yield from (order[first : first + size] for first in range(0, len(order) - size + 1, size))


def imitate(model: Any, turns: Sequence[Turn], size: int, rate: float, seed: int, until: float) -> int:
    """Trains the model on turns until the process has used ``until`` CPU seconds; returns the number of updates."""
    optimizer, updates = (
        torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=rate, weight_decay=0.0),
        0,
    )
    model.eval()  # no dropout, as in training
    for batch in batches(turns, size, seed):
        batch.sort(key=lambda turn: len(turn.prompt_ids) + len(turn.response_ids))
        tokens = sum(len(turn.response_ids) for turn in batch)
        for part in (batch[first : first + FORWARD] for first in range(0, len(batch), FORWARD)):
            inputs = padded(part)
            (loss_of(model, inputs, False) * (inputs["labels"] != IGNORED).sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        updates += 1
        if time.process_time() >= until:
            break
    return updates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("environment")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning_rate", type=float, default=2e-4)
    parser.add_argument("--rounds", type=int, default=12, help="of play")
    parser.add_argument("--tasks", type=int, default=4, help="of a round")
    parser.add_argument("--siblings", type=int, default=8, help="episodes of each")
    parser.add_argument("--cpu_seconds", type=float, required=True, help="of play and training together")
    parser.add_argument("--won", action="store_true", help="learn from won episodes alone")
    parser.add_argument("--limit", type=int, default=160, help="tasks of the test panel")
    parser.add_argument("--save", type=Path, help="a folder for the policy")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    settings, began = preset(given.environment), time.process_time()
    suite = load(settings["environment"])
    model, tokenizer = load_policy(resolve_model(settings["model_name_or_path"]))
    if settings.get("use_peft"):
        adapter = {"r": settings["lora_r"], "lora_alpha": settings["lora_alpha"], "target_modules": "all-linear"}
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **adapter))
    played = skilled_play(model, tokenizer, suite, settings, given)
    turns = [turn for one in played if one.won or not given.won for turn in one.turns]
    size = max(1, given.tasks * given.siblings * len(turns) // len(played))
    until = began + given.cpu_seconds
    updates = imitate(model, turns, size, given.learning_rate, given.seed, until)
    used = time.process_time() - began
    lengths = {name: settings[name] for name in ("max_prompt_length", "max_completion_length")}
    panel = suite.panel("test").head(given.limit)
    result, _ = evaluate(model, tokenizer, suite.factory, panel, temperature=1.0, seed=given.seed, **lengths)
    print(result.table())
    if given.save:
        model.save_pretrained(given.save)
        tokenizer.save_pretrained(given.save)
    facts = {name: value for name, value in vars(given).items() if name not in ("output", "save")}
    won = sum(bool(one.won) for one in played) / len(played)
    more = {"won_with_skill": won, "updates": updates, "cpu_seconds_used": used, "success": result.success}
    write_json(given.output, {**facts, "episodes": len(played), **more})


if __name__ == "__main__":
    main()
