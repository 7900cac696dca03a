"""The six task types and their names in tables."""

from __future__ import annotations

import re
from collections.abc import Mapping

TASK_TYPES: Mapping[int, str] = {
    1: "pick_and_place_simple",
    2: "look_at_obj_in_light",
    3: "pick_clean_then_place_in_recep",
    4: "pick_heat_then_place_in_recep",
    5: "pick_cool_then_place_in_recep",
    6: "pick_two_obj_and_place",
}
CATEGORIES: tuple[str, ...] = ("Pick", "Look", "Clean", "Heat", "Cool", "Pick2")
CATEGORY_OF: Mapping[str, str] = dict(zip(TASK_TYPES.values(), CATEGORIES, strict=True))
TASK_TYPE_OF: Mapping[str, str] = {category: kind for kind, category in CATEGORY_OF.items()}


def task_type_of(task_id: str) -> str:
    """Returns the task type of an official identity ``<task type>-<object>-...-<scene>/<trial>`` or of the path of a
    game's folder: the second-last name up to its first ``-``.

    Raises:
        ValueError: if that part is none of the six types.
    """
    parts = [part for part in re.split(r"[/\\]", task_id) if part]
    kind = parts[-2].split("-", 1)[0] if len(parts) > 1 else ""
    if kind not in CATEGORY_OF:
        raise ValueError(
            f"task_id {task_id!r} names no ALFWorld task type; expected '<type>-...-<scene>/<trial>' with one of "
            f"{', '.join(CATEGORY_OF)}"
        )
    return kind


def parse_task_type(name: str) -> str:
    """Parses a task type from its name, its category in any case (``heat``) or its number (``4``).

    Raises:
        ValueError: if there is no such type.
    """
    by_name = {category.lower(): kind for category, kind in TASK_TYPE_OF.items()}
    by_name |= {str(number): kind for number, kind in TASK_TYPES.items()}
    by_name |= {kind: kind for kind in CATEGORY_OF}
    if name.lower() not in by_name:
        raise ValueError(f"task type {name!r} is unknown; use one of {', '.join(c.lower() for c in CATEGORIES)}")
    return by_name[name.lower()]
