"""Makes a recipe's first policy: the scripted player demonstrates, and a warm start learns from it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from alignopsd_trl.commands.own_task.options import SCRIPTED, SKILLED_SHARE, WarmStartConfig
from alignopsd_trl.common.command import TRACEBACK
from alignopsd_trl.common.errors import setup
from alignopsd_trl.common.options import as_mapping
from alignopsd_trl.common.reporting import reported


def words_of(argv: Sequence[str] | None) -> tuple[list[str], set[str]]:
    """Returns the words of a recipe's command line, by default this process's, that its arguments take, and the flags
    among them."""
    words = [word for word in (sys.argv[1:] if argv is None else argv) if word not in (TRACEBACK, "--all")]
    return words, {word.partition("=")[0] for word in words}


def first_policy(
    task: str,
    folder: str | Path,
    argv: Sequence[str] | None = None,
    *,
    config: WarmStartConfig | None = None,
    episodes: int = SCRIPTED,
    player: str | None = None,
    won_only: bool = False,
    skilled_share: float = SKILLED_SHARE,
    preset: Mapping[str, Any] | None = None,
) -> None:
    """Makes the policy of a task in a folder that holds none. Does nothing if the command line gives another model or
    contains a help flag.

    Args:
        task: as in `alignopsd check TASK`.
        folder: the policy's folder.
        argv: the recipe's command line; by default that of this process.
        config: settings of the warm start; `tiny` by default.
        episodes: number of episodes that the scripted player demonstrates.
        player, won_only, skilled_share: as in `alignopsd demonstrate`.
        preset: the recipe's settings, by default those of the task's ``train.py``. Lengths and encoder count.
    """
    words, given = words_of(argv)
    if {"-h", "--help", "--model", "--model_name_or_path"} & given:
        return
    if (Path(folder) / "config.json").is_file():
        from alignopsd_trl.commands.own_task.warm_start.warm_start import effort_of

        by_minutes = config is None or config.max_steps < 0
        if by_minutes and (effort := effort_of(folder)) and effort.hardly:
            print(f"look: the policy in {folder} is {effort.hardly}, or remove the folder", flush=True)
        return
    with reported(task, quietly=argv is None, resumes=None), setup():
        if "--plan" in given or int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError(
                f"there is no policy in {folder} yet; make it with alignopsd demonstrate {task} and alignopsd "
                f"warm_start {task}, or start the recipe once as one process"
            )
        from alignopsd_trl.commands.launch.arguments import parse
        from alignopsd_trl.commands.own_task.demonstrations import demonstrate
        from alignopsd_trl.commands.own_task.playing import scripted
        from alignopsd_trl.commands.own_task.task import find_task
        from alignopsd_trl.commands.own_task.warm_start.warm_start import known_tokenizer, report, sample, warm_start
        from alignopsd_trl.methods import get_method

        config, options = config or WarmStartConfig(), (preset or {}).get("environment_options")
        known = find_task(task, as_mapping(options))
        preset = preset or known.preset
        recipe, args, _ = parse(task, words, preset)  # a mistake in the command line shows before minutes of work
        get_method(args.method)(args)
        known = replace(known, preset={**preset, "held_out": recipe.held_out})
        encoder = known.preset.get("encoder", "lexical")
        print(f"{folder} holds no policy: the scripted player demonstrates, {config.model} learns from it", flush=True)
        found = demonstrate(
            known,
            scripted(known.name, player, config.seed),
            episodes=episodes,
            tokenizer=known_tokenizer(config.model),
            encoder=encoder,
            won_only=won_only,
            skilled_share=skilled_share,
        )
        print(found.told(), flush=True)
        made = warm_start(found.rows, folder, config, settings=known.preset)
        print(f"training tasks, played by the first policy in {folder}:", flush=True)
        print(report(known, made, sample(known), found.rows, encoder=encoder), flush=True)
