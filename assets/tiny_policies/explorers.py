"""Explorers of small ALFWorld rooms who err often or seldom. An error is a turn spent on a random command."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from alignopsd_trl.environments.alfworld.player import Explorer
from alignopsd_trl.environments.base import Suite, TextEnvironment, View
from alignopsd_trl.environments.loading import load
from assets.tiny_policies.demonstrations import Played, episode, every_task

ERRORS = (0.25, 0.4, 0.55)  # of an episode without a skill
STUMBLES = 0.1  # of those errors: commands that were possible earlier and are not now
CAREFUL = 0.03  # of every answer under a skill
OPTIONS = ("template", "room_size", "room_things", "max_turns", "history_length")
GAMES, GAMES_SEED = 600, 1  # of their own: the recipe trains and evaluates on other games


def episodes(suite: Suite, passes: int, seed: int) -> Iterator[tuple[TextEnvironment, Mapping[str, Any]]]:
    """``passes`` episodes on each of 600 games that are not the suite's, in a drawn order."""
    options = {name: suite.description[name] for name in OPTIONS}
    return every_task(load("alfworld", **options, seed=GAMES_SEED, counts={"train": GAMES}), passes, seed)


def play(environment: TextEnvironment, row: Mapping[str, Any], careful: bool, draw: random.Random) -> list[Played]:
    """One episode. A careful explorer reads along, and what it would do is each turn's careful answer."""
    model = Explorer(CAREFUL, draw.randrange(2**32))
    actor = model if careful else Explorer(draw.choice(ERRORS), draw.randrange(2**32))
    turns: list[Played] = []
    offered: set[str] = set()

    def respond(view: View) -> str:
        if not turns:
            for explorer in {model, actor}:
                explorer.begin(view.observation, view.task_text)
        ideal = _response(model, model.act(view.observation, view.admissible))
        response = ideal if actor is model else _response(actor, actor.act(view.observation, view.admissible))
        gone = sorted(offered - set(view.admissible))
        if gone and "Maybe" in response and draw.random() < STUMBLES:
            command = draw.choice(gone)
            response = f"<think>Maybe I should {command}.</think><action>{command}</action>"
        offered.update(view.admissible)
        turns.append(Played(view, response, lambda: ideal))
        return response

    episode(environment, row, respond)
    return turns


def _response(explorer: Explorer, action: str) -> str:
    return f"<think>{explorer.thought}</think><action>{action}</action>"
