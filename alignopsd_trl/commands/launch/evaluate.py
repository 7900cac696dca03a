"""The command that plays a panel with a policy and prints a table.

alignopsd evaluate --model PATH --environment webshop --panel test [--skills]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from alignopsd_trl.commands.launch.values import environment_options, json_mapping
from alignopsd_trl.common.command import CommandParser, place
from alignopsd_trl.common.errors import setup
from alignopsd_trl.common.files import check_folder
from alignopsd_trl.common.models import SHIPPED_MODELS
from alignopsd_trl.common.progress import Bar
from alignopsd_trl.common.reporting import reported
from alignopsd_trl.environments.loading import load
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.runs.owned import owned, refuse
from alignopsd_trl.runs.sizes import USUAL, choose_sizes
from alignopsd_trl.runs.state import broken_off

if TYPE_CHECKING:
    from alignopsd_trl.results.summary import EvaluationResult

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(prog="alignopsd evaluate", description=__doc__.split("\n")[0])
    shipped = ", ".join(SHIPPED_MODELS)
    parser.add_argument("--model", required=True, help=f"hub id or path; shipped are {shipped}")
    parser.add_argument("--environment", required=True, help="webshop, webshop_tiny, alfworld, searchqa or a module")
    parser.add_argument("--environment_options", help="JSON, handed to its suite()")
    parser.add_argument("--panel", default="test", help="name of a panel of the environment")
    parser.add_argument("--limit", type=int, help="only the first tasks of the panel")
    parser.add_argument("--skills", action="store_true", help="put the retrieved skill into the policy's prompt")
    parser.add_argument("--skill_bank", help="shipped name, path or module:function; the environment's own by default")
    parser.add_argument("--encoder", default="lexical", help="ranks skills: 'lexical', an id or a path")
    parser.add_argument("--top_p", type=float, default=1.0, help="as the trainer's; so are the next three")
    parser.add_argument("--top_k", type=int, default=0, help="0: all tokens")
    parser.add_argument("--min_p", type=float)
    parser.add_argument("--repetition_penalty", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    trained = parser.add_argument_group("by default as the policy was trained (recipe.json beside it)")
    trained.add_argument("--temperature", dest="eval_temperature", type=float, help="0 decodes greedily; 0.4")
    trained.add_argument("--max_completion_length", type=int)
    trained.add_argument("--skill_tokens", type=int, help="budget of the skill block; min(512, max_prompt_length // 4)")
    for option in fields(PlayOptions):
        trained.add_argument(f"--{option.name}", **option.metadata)
    parser.add_argument("--batch_size", type=int, default=64, help="episodes side by side")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--device", help="by default the GPU, or the CPU where there is none")
    parser.add_argument("--output", type=place, help="folder for results.json and trajectories")
    given = parser.parse_args(argv)
    parser.at_least(given, {"limit": 1})
    parser.read_with(given, "skills", "skill_bank", "encoder", "skill_tokens")
    with setup():
        if given.output:
            check_folder(str(given.output), "output")
            refuse([given.output / name for name in (RESULTS, RECORDS)], "evaluate")
        given.environment_options = environment_options(given.environment_options)
        given.chat_template_kwargs = json_mapping("chat_template_kwargs", given.chat_template_kwargs)
        named = {name: getattr(given, name) for name in USUAL if getattr(given, name) not in (None, {})}
        given.sizes, given.told = choose_sizes(given.model, named)
        given.temperature = given.sizes.pop("eval_temperature")
        del given.eval_temperature  # greedy decoding is no temperature of training
    return given


def _check(given: argparse.Namespace) -> PlayOptions:
    """Checks the options by the rules of training; decoding may also be greedy."""
    from alignopsd_trl.common.options import PositiveCount, Temperature, hints_of, settled
    from alignopsd_trl.config import INHERITED_RULES, AlignOPSDConfig

    hints = hints_of(AlignOPSDConfig, INHERITED_RULES) | {"batch_size": PositiveCount}
    hints["temperature"] = Temperature if given.temperature else float
    settled(vars(given) | given.sizes, hints)
    return PlayOptions(**{name: given.sizes[name] for name in PlayOptions.names()})  # raises for invalid tags


RESULTS, RECORDS = "results.json", "trajectories/evaluation.parquet"


def command(argv: Sequence[str] | None = None) -> None:
    """Calls `main`; an error that the user can fix ends it with a few lines."""
    with reported("alignopsd evaluate", resumes=None):
        main(argv)


def main(argv: Sequence[str] | None = None) -> EvaluationResult:
    """Plays the panel (evaluation set), prints its table and returns the result; with ``--output`` it is also in
    ``results.json`` there, with the trajectories."""
    arguments = _arguments(argv)  # before PyTorch is imported
    from alignopsd_trl.checks.loading import beyond_positions, load_policy
    from alignopsd_trl.checks.tasks import check_prompts
    from alignopsd_trl.commands.launch.machine import usable_device
    from alignopsd_trl.common.files import write_json
    from alignopsd_trl.encoder import load_encoder
    from alignopsd_trl.records import SCHEMA, turn_records, write_records
    from alignopsd_trl.results.play import evaluable, evaluate
    from alignopsd_trl.skills import foreign_bank, load_skills, skill_budget, skill_source

    for folder in (Path(arguments.model), Path(arguments.model).parent):  # the folder above a checkpoint
        if told := broken_off(folder):
            print(told, file=sys.stderr)
    sizes = arguments.sizes
    with setup():
        options = _check(arguments)
        device = usable_device(arguments.device)
        suite = load(arguments.environment, **arguments.environment_options)
        panel = suite.panel(arguments.panel)
        panel = panel.head(arguments.limit) if arguments.limit else panel
        model, tokenizer = load_policy(arguments.model, arguments.dtype, device)
        factory = evaluable(suite.factory)
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if told := beyond_positions(positions, argparse.Namespace(**sizes, teacher_max_completion_length=None)):
            print(f"note: {told}", file=sys.stderr, flush=True)
        check_prompts(factory, panel.rows, tokenizer, options)  # that the policy can read the first, as in training
        skills = None
        if arguments.skills:
            named, columns = arguments.skill_bank or suite.skill_bank or suite.name, tuple(panel.rows[0])
            bank = load_skills(named, load_encoder(arguments.encoder), columns)
            skills = skill_source(bank, tokenizer, sizes["skill_tokens"] or skill_budget(sizes["max_prompt_length"]))
            if strange := foreign_bank(bank, suite):
                print(f"WRONG {strange}", file=sys.stderr, flush=True)
    print(arguments.told, file=sys.stderr, flush=True)
    settings = {name: getattr(arguments, name) for name in (*SAMPLING, "seed", "batch_size")}
    settings |= {name: value for name, value in sizes.items() if name != "skill_tokens"}
    with Bar(len(panel), f"{suite.name} {panel.name}", most_turns=sizes["max_turns"]) as bar:
        result, played = evaluate(model, tokenizer, factory, panel, skills=skills, progress=bar, **settings)
    print(result.table())
    if result.invalid_actions > 0.9:
        told = "an untrained policy writes so, or one with the tokenizer of another"
        print(f"note: {result.invalid_actions:.0%} of the actions are invalid; {told}", file=sys.stderr)
    if arguments.output:
        content = {**result.to_dict(outcomes=True), "model": arguments.model, "suite": dict(suite.description)}
        content["sampling"] = {name: getattr(arguments, name) for name in SAMPLING}
        with owned("evaluate", arguments.output / RESULTS, arguments.output / RECORDS):
            write_json(arguments.output / RESULTS, content)
            write_records(arguments.output / RECORDS, turn_records(played, step=0), SCHEMA)
    return result
