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


def finding(content: Mapping[str, Any], rows: pd.DataFrame) -> Finding:
    """Draws ``rows``, one a skill and category, and keeps them and the JSON's ``content`` beside the figure."""
    drawn = rows[rows.category == EVERYTHING].iloc[::-1] if len(rows) else rows
    figure, (axis,) = panels(1, width=6.0, height=1.2 + 0.28 * len(drawn))
    for place, one in enumerate(drawn.to_dict("records")):
        colour = COLOURS[one["verdict"]]
        axis.plot([one["low"], one["high"]], [place, place], color=colour, linewidth=1.6)
        axis.plot([one["lift"]], [place], "o", color=colour, ms=4)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(drawn)), list(drawn.skill) if len(drawn) else [])
    unit = f"{content['value']} with the skill minus without (95 %)"
    label(axis, "Blue helps, orange harms, grey can't be told from no skill", unit, "")
    return Finding("skills", content, {"worth": rows}, figure)
