"""The results of a recipe's run: the evaluations of its panel (evaluation set), and ``results.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from alignopsd_trl.common.files import plain, read_json, write_json
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.launch.job import Job
from alignopsd_trl.records import write_records
from alignopsd_trl.results.facts import facts_of
from alignopsd_trl.runs.folder import RunFolder
from alignopsd_trl.runs.provenance import weights_checksum

if TYPE_CHECKING:
    from alignopsd_trl.trainer import AlignOPSDTrainer

SCHEMA = 2


class Evaluations(TrainerCallback):
    """Plays the panel before the first update, and again at the end.

    Each evaluation is a file of its own, which names its run and its update. A resumed run keeps the evaluations that
    it has and plays those that are missing.
    """

    def __init__(self, panel: TaskPanel, folder: RunFolder, trainer: AlignOPSDTrainer, skills: bool, first: bool):
        self.panel, self.folder, self.trainer, self.skills, self.first = panel, folder, trainer, skills, first
        self.results: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.panels.warn_of_trained(f"panel {self.panel.name}", self.panel.rows)
        if self.first and state.global_step == 0:
            self.play("before")
        elif self.first:
            self.results["before"] = self._kept("before", 0)

    def play(self, when: str) -> None:
        """Plays the panel, or loads the evaluation that this run has already made of these weights."""
        update = self.trainer.state.global_step
        self.results[when] = self._kept(when, update) or self._play(when, update)

    def _play(self, when: str, update: int) -> dict[str, Any]:
        before = self.trainer.seconds["evaluation"]
        result = self.trainer.evaluate_panel(self.panel, skills=self.skills)
        own = {"run": self.folder.id, "update": update, "seconds": self.trainer.seconds["evaluation"] - before}
        content = plain(own | result.to_dict(outcomes=True))
        if self.folder.writes:
            success = str(result.success)
            found = f"success {success} %, " if success != "unknown" else ""
            sampled = f"temperature {result.temperature:g} (the updates' rounds: {self.trainer.args.temperature:g})"
            print(f"{when} training: {found}score {result.score} %, {result.turns:.1f} turns, {sampled}", flush=True)
            write_records(self._path(when).with_suffix(".parquet"), result.records)
            write_json(self._path(when), content)
        return content

    def _kept(self, when: str, update: int) -> dict[str, Any] | None:
        """Returns the first process's saved evaluation, if it belongs to this run, this update and this panel."""
        from accelerate.utils import broadcast_object_list

        content = read_json(self._path(when)) if self.folder.writes else None
        wanted = {"run": self.folder.id, "update": update, "checksum": self.panel.checksum, "skills": self.skills}
        fits = isinstance(content, dict) and all(content.get(name) == value for name, value in wanted.items())
        return broadcast_object_list([content if fits else None])[0]

    def _path(self, when: str) -> Any:
        return self.folder.path / f"evaluation_{when}.json"


def run_results(
    job: Job,
    folder: RunFolder,
    trainer: AlignOPSDTrainer,
    evaluations: Evaluations,
    config: Mapping[str, Any],
    changed: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the content of ``results.json``: outcome, provenance, seconds of all sessions, log of every update."""
    before, after = evaluations.results.get("before"), evaluations.results["after"]
    facts, name = facts_of(trainer, before, after), job.policy
    content = facts | {
        "schema": SCHEMA,
        "run": folder.id,
        "sessions": folder.sessions,
        "model": {"name": name, "revision": job.model.model_revision, "checksum": weights_checksum(name)},
        "environment": dict(job.suite.description),
        "recipe": vars(job.recipe),
        "changed": dict(changed),
        "config": dict(config),
        "seconds": facts["seconds"] | {"evaluation": sum(one["seconds"] for one in (before, after) if one)},
        "history": [entry for entry in trainer.state.log_history if "train_runtime" not in entry],  # of all sessions
    }
    return plain(content)
