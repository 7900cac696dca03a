"""The facts of a trainer's run in the form of ``results.json``, from which a card is made with or without a recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from accelerate.utils import is_peft_model

from alignopsd_trl.common.files import plain
from alignopsd_trl.environments.loading import loaded_as
from alignopsd_trl.runs.provenance import code_checksum, machine, model_name, versions, weights_checksum


def facts_of(trainer: Any, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns model, method, privileged text, outcome, versions, machine and seconds of a trainer's run.

    Args:
        trainer: trainer in its present state.
        before, after: `EvaluationResult.to_dict` of the panel before and after training; `None` where it was not
            played.
    """
    bank, encoder, updates = trainer.skill_bank, trainer.encoder, trainer.state.global_step
    name, training = model_name(trainer.model), trainer.seconds["training"]
    return {
        "model": {"name": name, "revision": None, "checksum": weights_checksum(name)},
        "adapter": is_peft_model(trainer.accelerator.unwrap_model(trainer.model)),
        "skill_bank": bank and {"name": bank.environment, "version": bank.version, "checksum": bank.checksum},
        "encoder": encoder and {"name": encoder.name, "checksum": encoder.revision},
        "before": before,
        "after": after,
        "seed": trainer.args.seed,
        "versions": versions(),
        "code": code_checksum(),
        "machine": machine() | {"processes": trainer.accelerator.num_processes},
        "updates": updates,
        "seconds": {
            "training": training,
            "evaluation": trainer.seconds["evaluation"],
            "phases": dict(trainer.phases.total),
            "per_update": training / max(updates, 1),
        },
    }


def trainer_results(trainer: Any, factory: Callable[[], Any], results: Mapping[str, Mapping[str, Any]]) -> dict:
    """Returns the content of ``results.json`` for a trainer that was made in Python.

    Args:
        trainer: trainer in its present state.
        factory: its ``environment_factory``; a factory of `alignopsd_trl.environments.load` is recognised.
        results: the trainer's evaluations, ``before`` its first update and the last one ``after``.
    """
    before, after = results.get("before"), results.get("after")
    if before and after and any(before[key] != after[key] for key in ("checksum", "skills")):
        before = None
    facts = plain(facts_of(trainer, before, after))
    bank, encoder = facts["skill_bank"], facts["encoder"]
    recipe = {
        "skill_bank": bank and bank["name"],
        "encoder": encoder and encoder["name"],
        "factory": f"{factory.__module__}.{getattr(factory, '__qualname__', type(factory).__qualname__)}",
        **_environment(factory, after or before),
    }
    return facts | {"run": trainer.run_id or "", "config": plain(trainer.args.to_dict()), "recipe": recipe}


def _environment(factory: Callable[[], Any], result: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns name, options and panel that load the environment again; `None` if they are unknown."""
    loaded = loaded_as(factory)
    if loaded is None or plain(loaded.options) != loaded.options:
        return {"environment": None, "environment_options": None, "panel": None, "panel_limit": None}
    played = result["panel"] if result else ""
    whole = played.partition("[:")[0]
    return {
        "environment": loaded.name,
        "environment_options": json.dumps(loaded.options) if loaded.options else None,
        "panel": loaded.panels.get(whole),
        "panel_limit": result["episodes"] if result and whole != played else None,
    }
