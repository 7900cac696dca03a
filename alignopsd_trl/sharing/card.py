"""The model card of a run, from its ``results.json`` alone: how well, on what, how it was made, how to play it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, PackageLoader, StrictUndefined

_TEMPLATES = Environment(
    loader=PackageLoader("alignopsd_trl.sharing", "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_WITHOUT_MEANING = frozenset(  # where a run writes and what it is called: no settings of the method
    "output_dir run_name logging_dir report_to push_to_hub hub_model_id hub_token hub_strategy resume_from_checkpoint "
    "overwrite_output_dir model_init_kwargs disable_tqdm save_total_limit save_steps logging_steps".split()
)


def model_card(results: Mapping[str, Any], name: str, licence: str | None = None) -> str:
    """The text of ``README.md``, front matter included.

    Args:
        results (`dict`):
            Content of ``results.json``.
        name (`str`):
            Of the model.
        licence (`str`, *optional*):
            Licence id of the weights. Without it the card says that it is the base model's.
    """
    base = results["model"]["name"]
    data = ModelCardData(
        model_name=name,
        license=licence,
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=base if is_hub_id(base) else None,
        tags=["trl", "align-opsd", results["config"]["method"], results["recipe"]["environment"]],
        eval_results=list(evaluation_results(results)),
        ignore_metadata_errors=False,
    )
    body = _TEMPLATES.get_template("model_card.md.jinja").render(
        name=name,
        base=base,
        licence=licence,
        results=results,
        rows=list(result_rows(results)),
        settings=json.dumps(changed_settings(results["config"]), indent=2, sort_keys=True),
        command=evaluation_command(results, name),
        limits={key: results["config"][key] for key in ("max_prompt_length", "max_completion_length")},
    )
    return f"---\n{data.to_yaml()}\n---\n\n{body}"


def is_hub_id(name: str) -> bool:
    """Whether a model's name can be one on the Hub (``owner/name``), and is no folder of this machine."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()


def evaluation_results(results: Mapping[str, Any]) -> Iterator[EvalResult]:
    """Success and score after training, for the card's ``model-index``; panel and checksum go with them."""
    after = results["after"]
    facts = {"panel": after["panel"], "checksum": after["checksum"], "episodes": after["episodes"]}
    for kind in ("success", "score"):
        estimate = after[kind]
        yield EvalResult(
            task_type="reinforcement-learning",
            dataset_type=after["environment"],
            dataset_name=f"{after['environment']}, panel {after['panel']}",
            dataset_args=facts,
            metric_type="success_rate" if kind == "success" else "score",
            metric_name=f"{kind}, %{_interval(estimate)}",
            metric_value=round(estimate["mean"], 2),
        )


def result_rows(results: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """A row a category and one for all: success and score before and after, in percent with 95 % intervals."""
    before, after = results.get("before"), results["after"]
    for category in ("all", *after["categories"]):
        row = {"category": category, "episodes": str(_part(after, category)["success"]["episodes"])}
        for when, result in (("before", before), ("after", after)):
            part = _part(result, category) if result else None
            row |= {f"{kind}_{when}": _shown(part[kind]) if part else "not measured" for kind in ("success", "score")}
        yield row


def _part(result: Mapping[str, Any], category: str) -> Mapping[str, Any]:
    return result if category == "all" else result["categories"][category]


def _shown(estimate: Mapping[str, Any]) -> str:
    return f"{estimate['mean']:.1f}{_interval(estimate)}"


def _interval(estimate: Mapping[str, Any]) -> str:
    known = estimate.get("low") is not None and estimate.get("high") is not None
    return f" [{estimate['low']:.1f}, {estimate['high']:.1f}]" if known else ""


def changed_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that differ from the defaults of `AlignOPSDConfig`; never a token."""
    from alignopsd_trl.config import AlignOPSDConfig

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


def evaluation_command(results: Mapping[str, Any], name: str) -> str:
    """What plays the panel of the card again."""
    recipe, config, after = results["recipe"], results["config"], results["after"]
    parts = [
        f"python -m alignopsd_trl.evaluation --model {name} --environment {recipe['environment']}",
        f"--panel {recipe['panel']} --temperature {after['temperature']:g} --seed {after['seed']}",
        f"--max_prompt_length {config['max_prompt_length']} --max_completion_length {config['max_completion_length']}",
    ]
    if recipe.get("environment_options"):
        parts.append(f"--environment_options '{recipe['environment_options']}'")
    if recipe.get("panel_limit"):
        parts.append(f"--limit {recipe['panel_limit']}")
    if config.get("max_turns"):
        parts.append(f"--max_turns {config['max_turns']}")
    if after["skills"]:
        parts.append(f"--skills --encoder {recipe['encoder']}")
    return " \\\n    ".join(parts)
