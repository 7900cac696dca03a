"""A recipe's arguments with their environment, and the checks that a plan and a run share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trl import ModelConfig, get_quantization_config

from alignopsd_trl.checks.intended import Intended, changes_nothing, check, check_hub
from alignopsd_trl.checks.loading import beyond_positions, positions_of
from alignopsd_trl.checks.tasks import refuse_stream
from alignopsd_trl.common.files import plain
from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.encoder import check_encoder
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.loading import load
from alignopsd_trl.environments.panel import TaskPanel, trained_too
from alignopsd_trl.launch.arguments import RecipeArguments
from alignopsd_trl.launch.machine import Launch
from alignopsd_trl.launch.values import environment_options, named
from alignopsd_trl.methods import get_method
from alignopsd_trl.runs.folder import look, strangers
from alignopsd_trl.runs.provenance import configuration_of, weights_checksum
from alignopsd_trl.runs.state import PREFIX, RunFolderError
from alignopsd_trl.skills import CONTEXT, foreign_bank, load_skills


@dataclass(frozen=True)
class Job:
    """The arguments of a recipe, with the suite and the panel (evaluation set) that they name."""

    recipe: RecipeArguments
    args: AlignOPSDConfig
    model: ModelConfig
    suite: Suite
    panel: TaskPanel

    @classmethod
    def of(cls, recipe: RecipeArguments, args: AlignOPSDConfig, model: ModelConfig) -> Job:
        """Loads the environment and at most ``panel_limit`` tasks of its panel."""
        suite = load(recipe.environment, **environment_options(recipe.environment_options))
        panel = named("panel", recipe.panel, lambda: suite.panel(recipe.panel))
        return cls(recipe, args, model, suite, panel.head(recipe.panel_limit) if recipe.panel_limit else panel)

    @cached_property
    def tasks(self) -> Any:
        found = named("train_split", self.recipe.train_split, lambda: self.suite.tasks(self.recipe.train_split))
        refuse_stream(found, f"tasks({self.recipe.train_split!r}) of {self.recipe.environment!r}")
        return found

    @property
    def policy(self) -> str:
        """Returns the policy's id or path, which every preset names."""
        assert self.model.model_name_or_path is not None, "presets are checked for model_name_or_path"
        return self.model.model_name_or_path

    @property
    def quantization(self) -> Any:
        """Returns transformers' config of quantised weights; `None` for whole ones."""
        if self.model.load_in_4bit and self.model.dtype == "auto":
            raise ValueError("dtype='auto' with load_in_4bit=True: set --dtype bfloat16, or float32 on a CPU")
        return get_quantization_config(self.model)

    @property
    def bank(self) -> str | None:
        """Returns the name of the skill bank; `None` if nothing in the run reads skills."""
        method = get_method(self.args.method)(self.args)
        reads_bank = method.needs_teacher and self.args.privileged is None
        asked = reads_bank or method.skills_in_rollout or method.skills_in_evaluation
        if not asked and not self.args.privileged_siblings:
            return None
        named = self.recipe.skill_bank or self.suite.skill_bank
        return named or (CONTEXT if CONTEXT in self.tasks.column_names else self.suite.name)

    @property
    def encoder(self) -> str | None:
        return self.recipe.encoder if self.bank or self.args.privileged else None

    def configuration(self) -> dict[str, Any]:
        """Returns the settings that decide what the run computes, for ``run.json``."""
        return configuration_of(
            self.args,
            self.tasks,
            **vars(self.recipe),
            **vars(self.model),
            environment_facts=dict(self.suite.description),
            panel_checksum=self.panel.checksum,
            weights=weights_checksum(self.policy),
        )

    def check(self, groups: int | None = None) -> None:
        """Runs the checks of `alignopsd_trl.checks`, as the trainer does.

        Args:
            groups: number of tasks in one round; by default that of this launch.

        Raises:
            ValueError: if the run can't succeed.
        """
        args, recipe, method = self.args, self.recipe, get_method(self.args.method)(self.args)
        model, output = Path(resolve_model(self.policy)).resolve(), Path(args.output_dir).resolve()
        if model == output or (model.parent == output and model.name.startswith(PREFIX)):
            raise ValueError(f"output_dir={args.output_dir!r} holds the model that the run starts from; name another")
        check(
            Intended(
                *(args, method, self.model.model_name_or_path, self.tasks, self.bank, self.encoder),
                groups=groups,
                factory=self.suite.factory,
                elsewhere=recipe.plan_for is not None or recipe.gpu_gib is not None,
                quantization=self.quantization,
                adapter=self.model.use_peft,
            )
        )
        if recipe.trajectories_hub_repo:
            check_hub(args.hub_token, f"trajectories_hub_repo={recipe.trajectories_hub_repo!r}")

    def facts(self, launch: Launch) -> dict[str, str]:
        """Returns the lines that a plan and the first screen of a run share, by their labels."""
        args, panel = self.args, self.panel
        groups = args.per_device_train_batch_size * args.steps_per_generation * launch.processes // args.num_generations
        model, weights = self.policy, weights_checksum(self.policy)
        rounds = f"{args.max_steps / float(args.steps_per_round):g} rounds, {args.max_steps} updates"
        length = rounds if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs"
        return {
            "method": f"{args.method}, preset {self.recipe.preset}, seed {args.seed}",
            "model": model if model == weights else f"{model} ({weights})",
            "environment": f"{self.suite.name}, {len(self.tasks)} training tasks",
            "panel": f"{panel.name}, {len(panel)} tasks, checksum {panel.checksum}",
            "round": f"{groups} tasks x {args.num_generations} rollouts, {length}",
            "launch": str(launch),
        }

    def part_facts(self) -> dict[str, str]:
        """Returns a plan's lines about skill bank, encoder and output folder.

        Raises:
            RunFolderError: if the folder holds a run that this one can't continue.
        """
        args, found = self.args, {}
        if notes := [*filter(None, (beyond_positions(positions_of(self.policy), args), changes_nothing(args)))]:
            found["NOTE"] = "; ".join(notes)
        if both := trained_too(self.tasks, self.panel.rows, f"panel {self.panel.name}"):
            found["NOTE on tasks"] = both
        if self.bank:
            bank = load_skills(self.bank, columns=self.tasks.column_names)
            found["skill bank"] = f"{bank.environment}, version {bank.version or '-'}, checksum {bank.checksum}"
            if strange := foreign_bank(bank, self.suite):
                found["WRONG"] = strange
            found["encoder"] = check_encoder(self.recipe.encoder)
        left, now = look(Path(args.output_dir)), plain(self.configuration())
        if left.run:  # a plan may be for another machine
            now |= {name: left.run["configuration"].get(name) for name in ("use_cpu", "plan")}
        refused = None if args.overwrite_output_dir else left.refusal(now, args.resume_from_checkpoint)
        if problem := strangers(left.path) or refused:
            raise RunFolderError(problem)
        return found | {"output folder": f"{args.output_dir}, {'holds a run' if left.anything else 'free'}"}
