"""A recipe's arguments with their environment, and the checks that a plan and a run share."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trl import ModelConfig, get_peft_config, get_quantization_config

from alignopsd_trl.checks.intended import Intended, check, check_hub
from alignopsd_trl.checks.loading import beyond_positions, positions_of
from alignopsd_trl.checks.tasks import TRIED, refuse_stream, trained_on
from alignopsd_trl.checks.unread import unread
from alignopsd_trl.commands.launch import memory
from alignopsd_trl.commands.launch.arguments import ADAPTER, RecipeArguments, planned_launch
from alignopsd_trl.commands.launch.machine import Launch, check_launch
from alignopsd_trl.commands.launch.memory_plan import memory_facts
from alignopsd_trl.commands.launch.model_files import thinking
from alignopsd_trl.commands.launch.unsuited import unsuited
from alignopsd_trl.commands.launch.values import environment_options, named
from alignopsd_trl.common.files import check_folder, plain, whole_json
from alignopsd_trl.common.models import ADAPTER as ADAPTER_FILE
from alignopsd_trl.common.models import base_of, resolve_model
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.encoder import check_encoder
from alignopsd_trl.environments.base import UNMADE, Suite
from alignopsd_trl.environments.batch import declared_by
from alignopsd_trl.environments.loading import load, sketched
from alignopsd_trl.environments.panel import TaskPanel, trained_too
from alignopsd_trl.methods import get_method
from alignopsd_trl.results.card import changed_settings
from alignopsd_trl.runs.folder import look, strangers, wanted
from alignopsd_trl.runs.provenance import configuration_of, weights_checksum
from alignopsd_trl.runs.state import PREFIX, RunFolderError
from alignopsd_trl.skills import CONTEXT, foreign_bank, load_skills


@dataclass(frozen=True)
class Job:
    """The arguments of a recipe, with the suite and the panel (evaluation set) that they name. ``given`` are the names
    of the settings of flags and file, ``changed`` those that differ from the preset."""

    recipe: RecipeArguments
    args: AlignOPSDConfig
    model: ModelConfig
    suite: Suite
    panel: TaskPanel
    given: Collection[str] = ()
    changed: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, recipe: RecipeArguments, args: AlignOPSDConfig, model: ModelConfig, *given: Any) -> Job:
        """Loads the environment and at most ``panel_limit`` tasks of its panel; a plan makes the first tasks alone."""
        suite = load(recipe.environment, **environment_options(recipe.environment_options))
        suite = sketched(suite, TRIED) if recipe.plan else suite
        panel = named("panel", recipe.panel, lambda: suite.panel(recipe.panel))
        return cls(recipe, args, model, suite, panel.head(recipe.panel_limit) if recipe.panel_limit else panel, *given)

    @cached_property
    def tasks(self) -> Any:
        """Returns the tasks to train on."""
        split, held_out = self.recipe.train_split, self.recipe.held_out
        learnt = named("train_split", split, lambda: trained_on(len(self._split), held_out))
        return self._split.select(range(learnt)) if self.recipe.held_out else self._split

    @property
    def held_out(self) -> list[dict[str, Any]]:
        """Returns the last tasks of the split, which choose the weights that the run ends with."""
        return [dict(row) for row in self._split.select(range(len(self.tasks), len(self._split)))]

    @cached_property
    def _split(self) -> Any:
        found = named("train_split", self.recipe.train_split, lambda: self.suite.tasks(self.recipe.train_split))
        refuse_stream(found, f"tasks({self.recipe.train_split!r}) of {self.recipe.environment!r}")
        return found

    @property
    def policy(self) -> str:
        """Returns the policy's id or path, which every preset names."""
        return str(self.model.model_name_or_path)

    @property
    def loading(self) -> dict[str, Any]:
        """Returns the options of loading that TRL's model arguments name, without those left to their defaults."""
        model, dtype = self.model, self.model.dtype if self.model.dtype != "auto" else None
        own = {"revision": model.model_revision, "attn_implementation": model.attn_implementation, "dtype": dtype}
        return {name: value for name, value in own.items() if value is not None}

    @property
    def quantization(self) -> Any:
        """Returns transformers' config of quantised weights; `None` for whole ones."""
        if self.model.load_in_4bit and self.model.dtype == "auto":
            raise ValueError("dtype='auto' with load_in_4bit=True: set --dtype bfloat16, or float32 on a CPU")
        return get_quantization_config(self.model)

    @property
    def peft_config(self) -> Any:
        """Returns PEFT's config of a new adapter; `None` without one, and for a policy that is an adapter already.
        Raises `ValueError` for settings that such an adapter was not made with."""
        if base_of(self.policy) is None:
            return get_peft_config(self.model)
        own, usual = whole_json(Path(resolve_model(self.policy)) / ADAPTER_FILE) or {}, ModelConfig()
        for name, key in ADAPTER.items():
            given, there = getattr(self.model, name), own.get(key)
            same = given == there if not isinstance(given, list) else set(given) == {*(there or ())}
            if given not in (getattr(usual, name), "all-linear") and not same:
                raise ValueError(
                    f"--{name} {given}: model={self.policy!r} is an adapter of {there}, which goes on training; leave "
                    "it out, or merge the adapter (peft's merge_and_unload) and name the whole model"
                )
        return None

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
        """Runs `alignopsd_trl.checks`, as the trainer does, for so many tasks in a round, by default this launch's."""
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
                adapter=self.peft_config,
                init=self.loading,
            )
        )
        if recipe.trajectories_hub_repo:
            check_hub(args.hub_token, f"trajectories_hub_repo={recipe.trajectories_hub_repo!r}")

    @cached_property
    def unread(self) -> str:
        """Returns a note about settings that the user gave and the run does not read; empty without any."""
        settings = {**vars(self.recipe), **vars(self.model), **vars(self.args)}
        skills = self.bank is not None or self.args.privileged is not None
        facts = {"_skills": skills, "_categories": "category" in self.tasks.column_names, "_tools": False}
        method = get_method(self.args.method)(self.args)
        return unread({name: settings[name] for name in self.given}, settings | facts, method)

    def unsuited(self) -> dict[str, str]:
        """Returns a plan's line about settings that do not suit a model of this size; empty without any."""
        config = memory.config_of(self.policy, self.args.trust_remote_code)
        parameters = memory.backbone(self.policy, self.args.trust_remote_code).parameters
        adapts = self.model.use_peft or base_of(self.policy) is not None
        told = unsuited(parameters, self.args, self.model, adapts, thinking(self.policy, config.model_type))
        return {"NOTE on the model": told} if told else {}

    def facts(self, launch: Launch) -> dict[str, str]:
        """Returns the lines that a plan and the first screen of a run share, by their labels."""
        args, panel = self.args, self.panel
        groups = args.per_device_train_batch_size * args.steps_per_generation * launch.processes // args.num_generations
        model, weights = self.policy, weights_checksum(self.policy)
        rounds = f"{args.max_steps / float(args.steps_per_round):g} rounds, {args.max_steps} updates"
        checksum = UNMADE if any(UNMADE in one for one in panel.task_ids) else f"checksum {panel.checksum}"
        length = rounds if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs"
        return {
            "method": f"{args.method}, preset {self.recipe.preset}, seed {args.seed}",
            "model": model if model == weights else f"{model} ({weights})",
            "environment": f"{self.suite.name}, {len(self.tasks)} training tasks",
            "panel": f"{panel.name}, {len(panel)} tasks, {checksum}",
            "round": f"{groups} tasks x {args.num_generations} rollouts, {length}",
            "launch": str(launch),
            **({"NOTE": self.unread} if self.unread else {}),
        }

    def part_facts(self) -> dict[str, str]:
        """Returns a plan's lines about skill bank, encoder and output folder. Raises `RunFolderError` as a run does."""
        args, found = self.args, {}
        if told := beyond_positions(positions_of(self.policy), args):
            found["NOTE on lengths"] = told
        if both := trained_too(self.tasks, self.panel.rows, f"panel {self.panel.name}"):
            found["NOTE on tasks"] = both
        if self.bank:
            bank = load_skills(self.bank, columns=self.tasks.column_names)
            found["skill bank"] = f"{bank.environment}, version {bank.version or '-'}, checksum {bank.checksum}"
            if strange := foreign_bank(bank, self.suite):
                found["WRONG"] = strange
            found["encoder"] = check_encoder(self.recipe.encoder)
        if self.recipe.plan_for is None and self.recipe.gpu_gib is None:
            check_folder(args.output_dir)
        left, now = look(Path(args.output_dir)), plain(self.configuration())
        if left.run:  # a plan may be for another machine
            now |= {name: left.run["configuration"].get(name) for name in ("use_cpu", "plan")}
        if problem := strangers(left.path):
            raise RunFolderError(problem)
        if wanted(args.resume_from_checkpoint) or not args.overwrite_output_dir:
            left.checkpoint(now, args.resume_from_checkpoint, lambda told: None)
        return found | {"output folder": f"{args.output_dir}, {'holds a run' if left.anything else 'free'}"}


def plan(job: Job, whole: bool = False) -> str:
    """Checks a run, then reports unusual settings (``whole``: all), a round's rows and tokens, memory, parts."""
    recipe, args, suite = job.recipe, job.args, job.suite
    launch = planned_launch(recipe.plan_for)
    check_launch(launch, args, installed=False)
    trajectories = args.per_device_train_batch_size * args.steps_per_generation * launch.processes
    job.check(trajectories // args.num_generations)
    turns = args.max_turns or declared_by(suite.factory).max_turns
    missing = "not installed here; the run needs pip install 'alignopsd-trl[vllm]'"
    facts = {
        **job.facts(launch),
        **({"vLLM": missing} if args.use_vllm and find_spec("vllm") is None else {}),
        "trajectories per round": f"{trajectories}, optimiser steps {args.steps_per_round}",
        "turn rows per round, at most": trajectories * turns,
        "tokens per turn, at most": args.max_prompt_length + args.max_completion_length,
        "trained tokens per round, at most": trajectories * turns * args.max_completion_length,
        **memory_facts(recipe, args, job.model, launch, turns * trajectories // launch.processes),
        **job.part_facts(),
        **job.unsuited(),
    }
    width = max(map(len, facts)) + 2
    lines = [_wrapped(f"{name:<{width}}", str(value)) for name, value in facts.items()]
    settings = ["all settings, and the environment's: --all"]
    if whole:
        names = sorted(one.name for one in fields(AlignOPSDConfig) if not one.name.endswith("_token"))
        settings = [f"  {name}: {getattr(args, name)}" for name in names]
        settings.append(f"  environment: {json.dumps(dict(suite.description), default=str)}")
    preset = {name: value for name, value in changed_settings(vars(args)).items() if name not in job.changed}
    unusual = [_settings("not as in the preset: ", job.changed), _settings("not as by default: ", preset)]
    return "\n".join([*unusual, "", *lines, "", *settings])


def _settings(label: str, settings: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name}={getattr(one, 'value', one)}" for name, one in settings.items())
    return _wrapped(label, shown or "nothing")


def _wrapped(label: str, text: str) -> str:
    return "\n".join(textwrap.wrap(text, 118, initial_indent=label, subsequent_indent="  ", break_on_hyphens=False))
