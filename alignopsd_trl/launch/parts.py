"""What a plan looks at as a run would, without weights: method, bank, encoder, tasks, folder; and its settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl import ModelConfig

from alignopsd_trl.checks.intended import Intended, check, check_hub
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.encoder import check_encoder
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.environments.shipped import SHIPPED
from alignopsd_trl.launch.values import named, policy_of
from alignopsd_trl.methods import Method, get_method
from alignopsd_trl.runs.files import plain
from alignopsd_trl.runs.folder import RunFolderError, configuration_of, look
from alignopsd_trl.runs.provenance import weights_checksum
from alignopsd_trl.skills import SkillBank, load_skills
from alignopsd_trl.skills.loading import Skills

if TYPE_CHECKING:
    from alignopsd_trl.launch.arguments import RecipeArguments


def needs_skills(method: type[Method], args: AlignOPSDConfig) -> bool:
    asked = method(args).needs_teacher or method.skills_in_rollout or method.skills_in_evaluation
    return asked or args.privileged_siblings > 0


def bank_of(recipe: RecipeArguments, suite: Suite) -> str:
    return recipe.skill_bank or suite.skill_bank or suite.name


def foreign_bank(bank: Skills, suite: Suite) -> str:
    """What to say of a bank that was written for another environment; nothing of one that was not."""
    family = (suite.name, suite.name.partition("_")[0], suite.skill_bank)  # searchqa_hops is a variant of searchqa
    if not isinstance(bank, SkillBank) or bank.environment in family:
        return ""
    own = f"its own is {suite.skill_bank!r}" if suite.skill_bank else "it has none of its own"
    return f"skill bank of {bank.environment!r} is used for environment {suite.name!r}; {own}"


def run_configuration(
    recipe: RecipeArguments, args: AlignOPSDConfig, model: ModelConfig, suite: Suite, panel: TaskPanel, tasks: Any
) -> dict[str, Any]:
    """What decides what a recipe's run computes, for ``run.json``."""
    return configuration_of(
        args,
        tasks,
        **vars(recipe),
        **vars(model),
        environment_facts=dict(suite.description),
        panel_checksum=panel.checksum,
        weights=weights_checksum(policy_of(model)),
    )


def check_parts(
    recipe: RecipeArguments,
    args: AlignOPSDConfig,
    model: ModelConfig,
    suite: Suite,
    panel: TaskPanel,
    groups: int | None = None,
) -> Any:
    """Asks the list of `alignopsd_trl.checks`, as the trainer will.

    Args:
        groups: tasks of one round; by default of this launch.

    Returns:
        The tasks to train on.

    Raises:
        ValueError: for whatever would keep the run from ending well.
    """
    tasks = named("train_split", recipe.train_split, lambda: suite.tasks(recipe.train_split))
    method = get_method(args.method)(args)
    skilled = needs_skills(type(method), args)
    bank, encoder = (bank_of(recipe, suite), recipe.encoder) if skilled else (None, None)
    own = None if recipe.environment in SHIPPED else panel
    check(
        Intended(
            args,
            method,
            model.model_name_or_path,
            tasks,
            bank,
            encoder,
            groups=groups,
            factory=suite.factory,
            panel=own,
        )
    )
    if recipe.trajectories_hub_repo:
        check_hub(args.hub_token, f"trajectories_hub_repo={recipe.trajectories_hub_repo!r}")
    return tasks


def part_facts(
    recipe: RecipeArguments, args: AlignOPSDConfig, model: ModelConfig, suite: Suite, panel: TaskPanel, tasks: Any
) -> dict[str, str]:
    """What a plan says of skill bank, encoder and output folder.

    Raises:
        RunFolderError: if the folder holds what this run can't go on with.
    """
    found = {}
    if needs_skills(get_method(args.method), args):
        bank = load_skills(bank_of(recipe, suite), columns=tasks.column_names)
        found["skill bank"] = f"{bank.environment}, version {bank.version or '-'}, checksum {bank.checksum}"
        if strange := foreign_bank(bank, suite):
            found["NOTE"] = strange
        found["encoder"] = check_encoder(recipe.encoder)
    left, now = look(Path(args.output_dir)), plain(run_configuration(recipe, args, model, suite, panel, tasks))
    if left.run:  # a plan is drawn up where it will not run
        now |= {name: left.run["configuration"].get(name) for name in ("use_cpu", "plan")}
    problem = None if args.overwrite_output_dir else left.refusal(now, args.resume_from_checkpoint)
    if problem:
        raise RunFolderError(problem)
    return found | {"output folder": f"{args.output_dir}, {'holds a run' if left.anything else 'free'}"}
