"""The picture of a checked bank: each skill's lift with its interval, harmful ones on top."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from alignopsd_trl.analysis.drawing import BLUE, GREY, ORANGE, label, panels
from alignopsd_trl.analysis.finding import Finding
from alignopsd_trl.measure.ranking import EVERYTHING
from alignopsd_trl.skill_work.worth import HARMS, HELPS, UNTOLD

COLOURS = {HARMS: ORANGE, UNTOLD: GREY, HELPS: BLUE}


def finding(content: Mapping[str, Any], rows: pd.DataFrame, value: str) -> Finding:
    """Draws ``rows``, one a skill and category, and keeps them and the JSON's ``content`` beside the figure."""
    drawn = rows[rows.category == EVERYTHING].iloc[::-1]
    figure, (axis,) = panels(1, width=6.0, height=1.2 + 0.28 * len(drawn))
    for place, one in enumerate(drawn.to_dict("records")):
        axis.plot([one["low"], one["high"]], [place, place], color=COLOURS[one["verdict"]], linewidth=1.6)
        axis.plot([one["value"]], [place], "o", color=COLOURS[one["verdict"]], ms=4)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(drawn)), list(drawn.skill))
    title = "Blue helps, orange harms, grey can't be told from no skill"
    label(axis, title, f"{value} with the skill minus without (95 %)", "")
    return Finding("skills", content, {"worth": rows}, figure)
