"""The model card of a run, from its ``results.json`` alone: results, settings, and the command that plays it; and its
trajectories as a data set with a card.

A trainer that was made in Python has no such file; `trainer_results` returns the same content, as far as it is known.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import textwrap
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from accelerate.utils import is_peft_model
from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, PackageLoader, StrictUndefined

from alignopsd_trl.common.command import words
from alignopsd_trl.common.files import plain, write_text
from alignopsd_trl.common.literals import literal
from alignopsd_trl.common.models import SHIPPED_MODELS
from alignopsd_trl.common.progress import escaped
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.environments.loading import loaded_as
from alignopsd_trl.results.summary import Estimate
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.runs.provenance import code_checksum, machine, model_name, versions, weights_checksum
from alignopsd_trl.runs.reading import records_of, results_of
from alignopsd_trl.skills import skill_budget

TEMPLATES = Environment(
    loader=PackageLoader("alignopsd_trl.results", "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters |= {"shown": escaped, "text": literal}
"""``shown``: foreign text in Markdown; ``text``: a string of Python, in code."""
_WITHOUT_MEANING = frozenset(  # paths, names and the machine of a run, and what a configuration makes: not the method's
    "output_dir run_name report_to push_to_hub hub_model_id hub_token hub_strategy resume_from_checkpoint "
    "overwrite_output_dir model_init_kwargs disable_tqdm logging_steps seed debug use_cpu accelerator_config "
    "dataloader_pin_memory include_for_metrics thinking_tags generation_batch_size".split()
)


def model_card(
    results: Mapping[str, Any],
    name: str,
    licence: str | None = None,
    place: str | None = None,
    base_model: str | None = None,
) -> str:
    """Returns the text of ``README.md``, front matter included.

    Args:
        licence: licence id of the weights; by default the run's ``licence``, and for a policy that comes with the
            package the package's. Without one the card names the base model's licence.
        place: source to load the model from, a repository's id or a folder; ``name`` by default.
        base_model: hub id of the base, where the run loaded it from a folder.
    """
    base = base_model or results["model"]["name"]
    checksum, on_hub = results["model"].get("checksum"), is_hub_id(base)
    licence = licence or results["recipe"].get("licence") or ("apache-2.0" if base in SHIPPED_MODELS else None)
    data = ModelCardData(
        model_name=name,
        license=licence,
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=base if on_hub else None,
        base_model_relation="adapter" if on_hub and results.get("adapter") else None,
        tags=["trl", "align-opsd", results["config"]["method"], *filter(None, [results["recipe"]["environment"]])],
        eval_results=list(evaluation_results(results)),
        ignore_metadata_errors=False,
    )
    body = TEMPLATES.get_template("model_card.md.jinja").render(
        name=name,
        place=place or name,
        base=base if on_hub else Path(base).name,  # a local folder's name, without its path
        own=", which comes with the package" if base in SHIPPED_MODELS else "",
        checksum=checksum if checksum != base else None,
        licence=licence,
        results=results,
        changed=results.get("changed") or {},
        rows=list(result_rows(results)) if results["after"] else [],
        settings=json.dumps(changed_settings(results["config"]), indent=2, sort_keys=True),
        command=evaluation_command(results, place or name),
        environment_options=_arguments(json.loads(results["recipe"].get("environment_options") or "{}")),
        panel=results["recipe"]["panel"] or "test",
        skills=skill_options(results),
        options=_arguments(play_options(results)),
        paper=paper(),
    )
    return f"---\n{data.to_yaml()}\n---\n\n{body}"


def paper() -> str:
    """Returns the method's paper as ``CITATION.cff`` has it: authors, title, year and, where known, the address."""
    found = yaml.safe_load((files("alignopsd_trl.results") / "CITATION.cff").read_text(encoding="utf-8"))
    cited = found["preferred-citation"]
    authors = ", ".join(f"{one['given-names']} {one['family-names']}" for one in cited["authors"])
    return ", ".join([authors, f"*{cited['title']}*", str(cited["year"]), *filter(None, [cited.get("url")])])


def _arguments(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={literal(value)}" for name, value in options.items())


def is_hub_id(name: str) -> bool:
    """Returns whether a model's name can be one on the Hub (``owner/name``) and is no local folder."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()


def evaluation_results(results: Mapping[str, Any]) -> Iterator[EvalResult]:
    """Yields success and score for the card's ``model-index``, after training and before, of all tasks and by category;
    each with panel (evaluation set) and checksum."""
    categories = ("all", *results["after"]["categories"]) if results["after"] else ()
    for category, when, kind in product(categories, ("after", "before"), ("success", "score")):
        result = results.get(when)
        if not result or math.isnan((estimate := _estimate(result, category, kind)).mean):
            continue
        one = f", {category}" if category != "all" else ""
        facts = {"panel": result["panel"], "checksum": result["checksum"], "episodes": estimate.episodes}
        yield EvalResult(
            task_type="reinforcement-learning",
            dataset_type=result["environment"],
            dataset_name=f"{result['environment']}, panel {result['panel']}{one}",
            dataset_config=category,
            dataset_args=facts,
            metric_type=("success_rate" if kind == "success" else "score") + ("_before" if when == "before" else ""),
            metric_name=f"{kind} {when} training, %{estimate.interval}",
            metric_value=round(estimate.mean, 2),
        )


def result_rows(results: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yields one row a category and one for all: success and score before and after, in percent with 95 % intervals."""
    for category in ("all", *results["after"]["categories"]):
        row = {"category": category, "episodes": str(_estimate(results["after"], category, "success").episodes)}
        for when, kind in product(("before", "after"), ("success", "score")):
            result = results.get(when)
            row[f"{kind}_{when}"] = str(_estimate(result, category, kind)) if result else "not measured"
        yield row


def _estimate(result: Mapping[str, Any], category: str, kind: str) -> Estimate:
    """Returns the estimate of ``success`` or ``score``, of all tasks or of one category."""
    return Estimate.of((result if category == "all" else result["categories"][category])[kind])


def changed_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a run that differ from the defaults of `AlignOPSDConfig`, without tokens."""
    defaults = {one.name: one.default for one in dataclasses.fields(AlignOPSDConfig)}
    return {
        name: value
        for name, value in config.items()
        if name in defaults
        and name not in _WITHOUT_MEANING
        and not name.endswith("_token")
        and value != defaults[name]
        and value not in (None, {})
    }


_AS_EVALUATED = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0} | PlayOptions.usual()
"""The defaults of `evaluate`."""


def play_options(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments that make `evaluate` play as the card's evaluation did; leaves out its defaults."""
    config, after = results["config"], results["after"]
    wanted = {
        "temperature": after["temperature"] if after else config.get("eval_temperature", 0.4),
        "seed": after["seed"] if after else 0,
        "max_prompt_length": config["max_prompt_length"],
        "max_completion_length": config["max_completion_length"],
    }
    changed = [name for name, usual in _AS_EVALUATED.items() if config.get(name, usual) not in (usual, {})]
    return wanted | {name: config[name] for name in changed}


def skill_options(results: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the arguments of `evaluate` for bank, budget and encoder of an evaluation with skills in its prompt."""
    if not (results["after"] and results["after"]["skills"]):
        return None
    recipe, config = results["recipe"], results["config"]
    bank = recipe.get("skill_bank") or results["skill_bank"]["name"]
    tokens = config.get("skill_tokens") or skill_budget(config["max_prompt_length"])
    return {"skill_bank": bank, "skill_tokens": tokens, "encoder": recipe["encoder"]}


def evaluation_command(results: Mapping[str, Any], place: str) -> str | None:
    """Returns the command that plays the card's panel again; `None` for an environment without a name."""
    recipe = results["recipe"]
    if not recipe["environment"]:
        return None
    given = {"model": place, "environment": recipe["environment"], "panel": recipe["panel"] or "test"}
    given |= play_options(results)
    more = {"environment_options": recipe.get("environment_options"), "limit": recipe.get("panel_limit")}
    given |= {name: value for name, value in more.items() if value}
    if skills := skill_options(results):
        given |= {"skills": (), **skills}
    parts = ["alignopsd evaluate", *(f"--{name} {shlex.join(words(value))}".rstrip() for name, value in given.items())]
    lines = textwrap.wrap(" ".join(parts), 108, break_long_words=False, break_on_hyphens=False)
    return " \\\n    ".join(lines)


EPISODE = ["step", "task", "task_id", "rollout", "category", "task_text", "reward", "won", "score", "stop", "message"]


def write_dataset(run: Path, target: Path) -> None:
    """Writes a run's trajectories for the Hub's viewer: ``turns`` and ``episodes`` as parquet, and ``README.md``."""
    results, frame = results_of(run), records_of(run)
    turns = frame[frame.turn.notna()]
    counts = frame.groupby(["step", "task", "rollout"]).turn.transform("count").rename("turns")
    episodes = frame[EPISODE].join(counts).drop_duplicates(["step", "task", "rollout"])
    for name, table in (("turns", turns), ("episodes", episodes)):
        (target / name).mkdir()
        table.to_parquet(target / name / "train.parquet", index=False)
    credit = [name for name in turns if name.startswith("credit_")]
    card = TEMPLATES.get_template("dataset_card.md.jinja").render(
        results=results,
        columns=[name for name in turns if name not in credit],
        credit=credit,
        turns=len(turns),
        episodes=len(episodes),
    )
    write_text(target / "README.md", card)


def facts_of(trainer: Any, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns model, method, privileged text, outcome, versions, machine and seconds of a trainer's run. ``before`` and
    ``after`` training: `EvaluationResult.to_dict` of the panel; `None` where it was not played."""
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
    """Returns the content of ``results.json`` for a trainer that was made in Python, from its ``environment_factory``
    (one of `alignopsd_trl.environments.load` is recognised) and the results of its evaluations, ``before`` its first
    update and the last one ``after``."""
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
