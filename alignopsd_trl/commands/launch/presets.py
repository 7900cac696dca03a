"""Settings that all benchmarks share: the paper's, the published launchers' and a laptop's; and a round's shape in TRL.

A preset is a plain mapping from field names (of the recipe's arguments or of `AlignOPSDConfig`) to values; flags and
YAML files override it. A benchmark's own settings are in the ``shipped.toml`` of its folder. Sources: the paper's
tables of protocol, rectification and credit; method facts H.
"""

from __future__ import annotations

import math
import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from alignopsd_trl.common.options import near
from alignopsd_trl.environments.loading import find_module, importable
from alignopsd_trl.environments.shipped import BENCHMARKS


@dataclass(frozen=True)
class Backbone:
    """A language model's shape, for memory estimates without its weights. Source: the published config files."""

    hub_id: str
    parameters: int
    layers: int
    hidden: int
    kv_width: int  # key and value channels per token and layer
    vocabulary: int
    intermediate: int  # channels of a token inside a layer; of a mixture, in the experts that it visits
    heads: int = 0  # of queries; 0 where a config file says it
    caches: tuple[tuple[int, int], ...] = ()  # per layer: kv_width, and the tokens that it keeps (0: all)
    uncounted: str = ""  # a state that no estimate has

    def row(self, tokens: int) -> int:
        """Returns how many numbers the keys and values of a row of that many tokens are."""
        layers = self.caches or ((self.kv_width, 0),) * self.layers
        return sum(width * min(tokens, window or tokens) for width, window in layers)


BACKBONES = {
    "0.5b": Backbone("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768, 24, 896, 2 * 2 * 64, 151_936, 4864, 14),
    "1.5b": Backbone("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304, 28, 1536, 2 * 2 * 128, 151_936, 8960, 12),
    "3b": Backbone("Qwen/Qwen2.5-3B-Instruct", 3_085_938_688, 36, 2048, 2 * 2 * 128, 151_936, 11_008, 16),
    "7b": Backbone("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512, 28, 3584, 2 * 4 * 128, 152_064, 18_944, 28),
    "qwen3-0.6b": Backbone("Qwen/Qwen3-0.6B", 596_049_920, 28, 1024, 2 * 8 * 128, 151_936, 3072, 16),
    "qwen3-1.7b": Backbone("Qwen/Qwen3-1.7B", 1_720_574_976, 28, 2048, 2 * 8 * 128, 151_936, 6144, 16),
    "qwen3-4b": Backbone("Qwen/Qwen3-4B", 4_022_468_096, 36, 2560, 2 * 8 * 128, 151_936, 9728, 32),
}

_SHARED: dict[str, Any] = {
    "method": "align_opsd",
    "encoder": "Qwen/Qwen3-Embedding-0.6B",
    "num_generations": 8,
    "rounds": 150,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "constant",
    "weight_decay": 0.01,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "eval_temperature": 0.4,
    "max_completion_length": 512,
    "epsilon": 0.2,
    "max_grad_norm": 1.0,
    "num_iterations": 1,
    "gradient_checkpointing": True,
    "save_rounds": 25,
    "save_total_limit": 2,
    "logging_steps": 1,
}
"""Settings of the paper's tables; others, which it leaves open, are the launchers'. docs/method.md lists both."""

_RELEASED_SHARED: dict[str, Any] = {
    "valid_profiles": "matched",
    "group_statistics": "turn",
    "teacher_max_completion_length": 2048,
    "delta": 3.0,
    "entropy_coef": 0.001,
}

LAPTOP: dict[str, Any] = {
    "method": "align_opsd",
    "valid_profiles": "matched",  # as in the rows on record
    "encoder": "lexical",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "num_generations": 8,
    "tasks_per_round": 8,
    "learning_rate": 3e-4,
    "lr_scheduler_type": "constant",
    "temperature": 1.0,
    "top_k": 0,
    "eval_temperature": 0.4,
    "skill_tokens": 64,
    "beta": 0.0,
    "tokens_per_forward": 4096,
    "save_rounds": 6,
    "save_total_limit": 2,
    "logging_steps": 1,
    "report_to": "none",
}
"""Settings for a laptop: policies of a million parameters on embedded data. The method's settings are the paper's, but
for the profiles that count. A user's recipe may extend it: ``{**LAPTOP, "environment": "my_module", ...}``."""

SMOLLM2: dict[str, Any] = {
    **LAPTOP,
    "use_peft": True,
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_target_modules": ["all-linear"],
    "learning_rate": 5e-4,
    "updates_per_round": 8,  # a rule that differs by category is learnt after some 20 steps
    "spread_categories": True,
    "teach_solved": False,  # in late rounds most groups win, and their teacher may win less often
    "scale_steps": True,  # a step for one group that still differs would be as long as one for all
    "num_generations": 4,
    "tasks_per_round": 6,
    "eval_temperature": 1.0,  # that of rounds: at 0.4 a slight preference of the first policy decides most episodes
    "tokens_per_forward": 1024,
    "save_rounds": 1,  # a round takes half a minute or more, a checkpoint of adapters 60 MB
}
"""Settings for SmolLM2-135M on a laptop: adapters, and steps that are large enough to be seen after two rounds.
Forwards of 1,024 tokens take 3 GB where those of 4,096 take 4.5 in the same time."""

ONE_GPU: dict[str, Any] = {
    "method": "align_opsd",
    "valid_profiles": "matched",  # as in the rows on record
    "encoder": "lexical",
    "dtype": "bfloat16",  # of the frozen weights; computes in bfloat16 where the GPU has it
    "gradient_checkpointing": True,
    "use_peft": True,
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.0,
    "lora_target_modules": ["all-linear"],
    "learning_rate": 1e-5,
    "lr_scheduler_type": "constant",
    "beta": 0.0,
    "temperature": 1.0,
    "top_k": 0,
    "eval_temperature": 1.0,  # that of rounds
    "num_iterations": 4,  # passes over a round, as `alignopsd measure` advises
    "updates_per_round": 1,
    "save_rounds": 5,
    "save_total_limit": 2,
    "logging_steps": 1,
    "report_to": "none",
    "teacher_model_kind": "base",
    "auxiliary_loss": "distribution",
    "distribution_coefficient": 10.0,
}
"""Settings for a model from the Hub on one GPU: an adapter, beside the teacher that stands still. No GPU has run them.
docs/launch.md says where each number comes from."""

RECIPE = "train.py"
"""File name of the recipe beside a user's task."""

_RECIPES = {f"{name}_{backbone}": name for name, one in BENCHMARKS.items() for backbone in one.released}
_TINY = {name: settings for one in BENCHMARKS.values() for name, settings in one.variants.items()}
_SCRIPTS = {path.stem for path in (Path(__file__).parents[2] / "recipes").glob("*.py")} - {*_RECIPES, *_TINY}


def preset_names() -> list[str]:
    return sorted({*_RECIPES, *_TINY, *_SCRIPTS})


def shipped_name(name: str) -> str:
    """Returns the name of a shipped recipe that is given by its file, its module or with a point in its size, such as
    ``webshop_1.5b``; any other name as it is."""
    plain = name.removeprefix("alignopsd_trl.recipes.").removeprefix("recipes/").removesuffix(".py").replace(".", "_")
    return plain if plain in preset_names() else name


def script_of(name: str) -> str:
    """Returns the module of a shipped recipe with a preset of its own; an empty text for any other name."""
    return f"alignopsd_trl.recipes.{name}" if name in _SCRIPTS else ""


def preset(
    name: str, kind: str = "paper", method: str = "align_opsd", method_options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the defaults of a recipe. Raises `ValueError` for an unknown name or kind, with the known ones.

    Args:
        name: ``<benchmark>_<backbone>``, such as ``webshop_7b``, ``<benchmark>_tiny``, another shipped recipe, or a
            user's module with a mapping ``PRESET`` in it or in a ``train.py`` beside it.
        kind: ``"paper"``, or ``"released"`` for the published launcher's settings.
        method, method_options: method to train. The default of ``opsd`` has no KL to the initial policy, except in
            the form of the published figures.
    """
    if name in _TINY:
        return own_preset({**LAPTOP, "environment": name, **_TINY[name]}, name, kind)
    if name not in _RECIPES:
        return own_preset(_of_module(name), name, kind)
    if kind not in ("paper", "released"):
        raise ValueError(f"preset={kind!r} is unknown; choose 'paper' or 'released'")
    benchmark, backbone = BENCHMARKS[_RECIPES[name]], name.rpartition("_")[2]
    released = {**_RELEASED_SHARED, **benchmark.released[backbone]} if kind == "released" else {}
    return {
        **_SHARED,
        "environment": _RECIPES[name],
        "model_name_or_path": BACKBONES[backbone].hub_id,
        **benchmark.preset,
        **released,
        **({"beta": 0.0} if method == "opsd" and (method_options or {}).get("form") != "gated" else {}),
    }


def own_preset(content: Any, name: str, kind: str) -> dict[str, Any]:
    """Returns a user's preset. Raises `ValueError` if it is no mapping with environment and model, or not "paper"."""
    if not isinstance(content, Mapping):
        kind_of = type(content).__name__
        raise ValueError(f"the preset of recipe {name!r} is a {kind_of}; write a mapping from argument to value")
    if missing := [key for key in ("environment", "model_name_or_path") if not content.get(key)]:
        raise ValueError(f"the preset of recipe {name!r} does not set {missing[0]!r}; add it")
    if kind != "paper":
        raise ValueError(f"recipe {name!r} has no preset {kind!r}; only 'paper'")
    return dict(content)


def _of_module(name: str) -> Any:
    known = f"known are {', '.join(preset_names())}, and modules of your own with a mapping PRESET"
    module = find_module(script_of(name) or importable(name))
    if module is None:
        raise ValueError(f"recipe {name!r} is unknown; {near(name, preset_names())}{known}")
    if hasattr(module, "PRESET"):
        return module.PRESET
    if found := recipe_beside(module).get("PRESET"):
        return found
    place = module.__file__
    raise ValueError(f"recipe {name!r} is the module {place}, with no PRESET in it or in a {RECIPE} beside it; {known}")


def recipe_beside(module: ModuleType | None) -> Mapping[str, Any]:
    """Returns the names of the recipe in the folder of a task's module; empty if there is none."""
    file = getattr(module, "__file__", None)
    recipe = Path(file).with_name(RECIPE) if file else None
    return runpy.run_path(str(recipe), run_name="_recipe_of_a_task") if recipe and recipe.is_file() else {}


def divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def optimiser_steps(rows: int | None, tasks: int, siblings: int, max_turns: int | None, processes: int) -> int:
    """Returns the optimiser steps of a round, so that each has about ``rows`` turn rows; one step a round without
    ``rows`` or a limit of turns.

    The number of turns of a round is unknown beforehand. The estimate for an episode is (2 + ``max_turns``) / 2 turns,
    which gives 12 to 17 of the launchers' mini-batches a round on all three benchmarks. TRL cuts a round into equal
    parts of whole trajectories, so the result divides a process's trajectories. Among the divisors it is the one whose
    steps are nearest to ``rows`` in size, the smaller steps if two are equally near.
    """
    local = tasks // processes * siblings
    if rows is None or max_turns is None or local == 0:
        return 1
    wanted = tasks * siblings * (2 + max_turns) / 2 / rows
    return min(divisors(local), key=lambda number: (abs(math.log(number / wanted)), -number))


def round_shape(tasks: int, siblings: int, updates: int, processes: int) -> dict[str, int]:
    """Returns TRL's batch arguments for a round of so many tasks over all processes, in whole sibling groups. Raises
    `ValueError` if they can't be divided evenly, with numbers that work."""
    if tasks % processes:
        near = max(processes, round(tasks / processes) * processes)
        raise ValueError(f"tasks_per_round={tasks} can't be spread over {processes} processes; use {near}")
    local = tasks // processes * siblings
    if local % updates:
        raise ValueError(
            f"updates_per_round={updates} does not divide the {local} trajectories of a process; "
            f"use one of {divisors(local)}"
        )
    return {
        "per_device_train_batch_size": local // updates,
        "steps_per_generation": updates,
        "gradient_accumulation_steps": 1,
    }
