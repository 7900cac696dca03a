"""The scripted shopper of mixed care (`alignopsd_trl.environments.webshop.player`) as demonstrations are made from."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import Any

from alignopsd_trl.environments.base import TextEnvironment, View
from alignopsd_trl.environments.webshop.player import CAREFUL, HABITS, ScriptedShopper
from assets.tiny_policies.demonstrations import Played, episode


def play(environment: TextEnvironment, row: Mapping[str, Any], careful: bool, draw: random.Random) -> list[Played]:
    """One episode of a shopper who is careful at nearly every decision, or at about half of them."""
    model = ScriptedShopper(CAREFUL, draw)
    shopper = model if careful else ScriptedShopper(draw.choice(HABITS), draw)
    views, responses, _ = episode(environment, row, partial(_text, shopper))
    return [
        Played(view, response, partial(_text, model, view)) for view, response in zip(views, responses, strict=True)
    ]


def _text(shopper: ScriptedShopper, view: View) -> str:
    return shopper.answer(view).text
