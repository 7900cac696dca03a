"""Records rollouts of a policy with and without the skill in its prompt, for self-privileged pairs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from alignopsd_trl.chat.options import PlayOptions
from alignopsd_trl.checks.loading import load_policy
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.evaluation.play import ModelGenerator, evaluating
from alignopsd_trl.records import SCHEMA, turn_records, write_records
from alignopsd_trl.rollout import Player, episode_seeds, make_player
from alignopsd_trl.skills import load_skills, skill_budget, skill_source


def play_siblings(
    model: str,
    suite: Suite,
    folder: str | os.PathLike,
    tasks: int = 100,
    siblings: int = 4,
    *,
    panel: str = "test",
    skill_bank: str | Callable | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    max_prompt_length: int = 4096,
    max_completion_length: int = 512,
    skill_tokens: int | None = None,
    batch_size: int = 64,
    device: str = "cpu",
    progress: Callable[[int, int], None] = lambda ended, turns: None,
) -> tuple[Path, Path]:
    """Plays each task several times as the student and several times as the privileged view, each with its own actions.

    Args:
        model (`str`): hub id, path or shipped policy.
        suite ([`Suite`]): of `alignopsd_trl.environments.load`.
        folder: output folder of ``student/`` and ``privileged/``, with one parquet file each.
        tasks, siblings (`int`, defaults to 100 and 4, the paper's): number of the panel's first tasks, and of rollouts
            per task.
        panel, skill_bank, temperature, seed, max_prompt_length, max_completion_length, skill_tokens, batch_size: as in
            `alignopsd_trl.evaluation`; the paper samples at temperature 1.
        progress: function of the numbers of ended episodes and played turns.

    Returns:
        The two folders.
    """
    policy, tokenizer = load_policy(model, device=device)
    bank = load_skills(skill_bank or suite.skill_bank or suite.name, load_encoder("lexical"))
    skills = skill_source(bank, tokenizer, skill_tokens or skill_budget(max_prompt_length))
    rows = [row for row in suite.panel(panel).head(tasks).rows for _ in range(siblings)]
    slots = max(batch_size // siblings, 1) * siblings  # a task's siblings are adjacent, so that they get numbers
    sampler = ModelGenerator(policy, tokenizer, temperature, max_completion_length, batch_size)
    folders = Path(folder) / "student", Path(folder) / "privileged"
    for privileged, target in enumerate(folders):
        environments = open_batch(suite.factory, min(slots, len(rows)), time_limit=60.0)
        player = make_player(
            environments,
            tokenizer,
            sampler,
            sampler.end_ids,
            PlayOptions(max_prompt_length),
            skills=skills,
            skills_in_rollout=bool(privileged),
            progress=progress,
        )
        with closing(environments), evaluating(policy, seed + privileged):
            played = [one for first in range(0, len(rows), slots) for one in _play(player, rows[first : first + slots])]
        write_records(target / "rollouts.parquet", turn_records(played, step=0), SCHEMA)
    return folders


def _play(player: Player, rows: list) -> list:
    names = [row["task_id"] for row in rows]
    return player.play(rows, [episode_seeds(name, 0, 0) for name in names], names)
