"""The run of a recipe, once its command line is checked: evaluate, train, evaluate, write ``results.json``."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from transformers import TrainerCallback
from transformers.utils.logging import disable_progress_bar

from alignopsd_trl.commands.launch.job import Job
from alignopsd_trl.commands.launch.keep_best import KeepBest
from alignopsd_trl.commands.launch.machine import check_launch, launched
from alignopsd_trl.commands.launch.memory import GIB
from alignopsd_trl.commands.launch.memory_plan import SLOW_SAMPLING
from alignopsd_trl.commands.viewer import view_run
from alignopsd_trl.common.errors import setup
from alignopsd_trl.common.files import plain, read_json, write_json, write_text
from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.common.options import as_mapping, path_as_given
from alignopsd_trl.common.progress import WIDE, cut
from alignopsd_trl.common.reporting import outlives_its_readers
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.methods import get_method
from alignopsd_trl.records import write_records
from alignopsd_trl.results.card import facts_of, model_card
from alignopsd_trl.results.hub import PushFailed, push_run, push_trajectories
from alignopsd_trl.results.summary import Estimate, mean_score
from alignopsd_trl.runs.files import LOG_FILE, SCHEMAS
from alignopsd_trl.runs.folder import TRAIN, RunFolder, claim_together, claimed
from alignopsd_trl.runs.owned import owned
from alignopsd_trl.runs.provenance import weights_checksum
from alignopsd_trl.runs.state import MARK, RESULTS_FILE, RUN_FILE
from alignopsd_trl.skills import foreign_bank
from alignopsd_trl.trainer import AlignOPSDTrainer
from alignopsd_trl.training.console import columns


def run(job: Job, machine: str = "") -> dict[str, Any]:
    """Evaluates, trains, evaluates again; leaves results, checkpoint, card and trajectories in the output folder.
    Raises `RunFolderError` for another's folder, and `PushFailed` for a finished run that could not be pushed."""
    args = job.args
    disable_progress_bar()  # bars of files; a run shows its own lines
    with setup():
        check_launch(launched(), args)
        job.check()
        resume = args.resume_from_checkpoint
        folder = claim_together(args.output_dir, job.configuration(), resume, args.overwrite_output_dir)
    readable = f"nobody reads this run's output any more; it goes on, and its numbers are in {folder.path / LOG_FILE}"
    with claimed(folder), outlives_its_readers(readable):
        config = args.to_dict()  # as the user set it: the trainer adds to it
        if folder.writes:
            said = opening_facts(job) | ({"machine": machine} if machine else {})
            print(opening(said, job.changed, folder), flush=True)
        push, args.push_to_hub = args.push_to_hub, False  # once, after the results, not transformers' two commits
        with setup():
            trainer = _trainer(job)
            skilled = get_method(args.method).skills_in_evaluation
            evaluations = Evaluations(job.panel, folder, trainer, skilled, job.recipe.evaluate_first)
        trainer.run_folder = folder
        trainer.add_callback(evaluations)
        if job.recipe.held_out:
            trainer.add_callback(KeepBest(trainer, job.held_out, skilled))
        trainer.train()
        evaluations.play("after")
        trainer.save_model(args.output_dir)
        results = _results(job, evaluations, config)
        if folder.writes:
            write_json(folder.path / RESULTS_FILE, results)
            name = args.hub_model_id or Path(args.output_dir).name
            place = args.hub_model_id or path_as_given(args.output_dir)
            with owned(TRAIN, folder.path / "README.md"):
                write_text(folder.path / "README.md", model_card(results, name, place=place))
            print(closing(results["before"], results["after"], folder, page_of(folder.path)), flush=True)
            _push(folder.path, name if push else None, job.recipe.trajectories_hub_repo, args)
    return results


def _push(folder: Path, model: str | None, trajectories: str | None, args: AlignOPSDConfig) -> None:
    """Pushes to both repositories, also if the first push fails."""
    failed = []
    for push, repository in ((push_run, model), (push_trajectories, trajectories)):
        try:
            if repository:
                print(push(folder, repository, args.hub_token, args.hub_private_repo), flush=True)
        except PushFailed as error:
            failed.append(str(error))
    if failed:
        raise PushFailed("\n".join(failed))


class Checked(AlignOPSDTrainer):
    """The trainer of a job, whose checks have run and whose notes are on the first screen."""

    def check_run(self, run: Any) -> None:
        pass


def _trainer(job: Job) -> AlignOPSDTrainer:
    args = job.args
    args.model_init_kwargs = as_mapping(args.model_init_kwargs) | job.loading
    evaluates = args.eval_strategy != "no" or args.eval_on_start
    trainer = Checked(
        resolve_model(job.policy),
        args,
        environment_factory=job.suite.factory,
        train_dataset=job.tasks,
        eval_dataset=Dataset.from_list([dict(row) for row in job.panel]) if evaluates else None,
        skill_bank=job.bank,
        encoder=job.encoder,
        peft_config=job.peft_config,
        quantization_config=job.quantization,
    )
    strange = foreign_bank(trainer.skill_bank, job.suite)
    if strange and trainer.is_world_process_zero():
        print(f"WRONG {strange}", flush=True)
    return trainer


def opening_facts(job: Job) -> dict[str, str]:
    """Returns the lines of the first screen, by their labels; those of a GPU where there is one."""
    args, said = job.args, job.facts(launched())
    if not torch.cuda.is_available():
        return said
    if args.use_cpu:
        return said | {"GPU": "left alone, as use_cpu=True asks: --use_cpu False takes it"}
    precision = "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32"
    said["GPU"] = f"{torch.cuda.get_device_name()}, {torch.cuda.mem_get_info()[0] / GIB:.0f} GiB free, {precision}"
    return said if args.use_vllm else said | {"sampling": f"{SLOW_SAMPLING}; --plan says if vLLM has room"}


class Evaluations(TrainerCallback):
    """Plays the panel before the first update, and again at the end. Each evaluation is a file, which names its run and
    its update: a resumed run keeps those that it has, and plays those that are missing."""

    def __init__(self, panel: TaskPanel, folder: RunFolder, trainer: AlignOPSDTrainer, skills: bool, first: bool):
        self.panel, self.folder, self.trainer, self.skills, self.first = panel, folder, trainer, skills, first
        self.results: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.panels.warn_of_trained(f"panel {self.panel.name}", self.panel.rows)
        if self.first and state.global_step == 0:
            self.play("before")
        elif self.first:
            self.results["before"] = kept = self._kept("before", 0)
            if kept is None and self.folder.writes:
                print(f"{self._path('before')} is gone, damaged or of another panel: there is no comparison with it")

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
        content = read_json(self._path(when)) if self.folder.writes else None
        wanted = {"run": self.folder.id, "update": update, "checksum": self.panel.checksum, "skills": self.skills}
        fits = isinstance(content, dict) and all(content.get(name) == value for name, value in wanted.items())
        return broadcast_object_list([content if fits else None])[0]

    def _path(self, when: str) -> Path:
        return self.folder.path / f"evaluation_{when}.json"


def _results(job: Job, evaluations: Evaluations, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of ``results.json``: outcome, provenance, seconds of all sessions, log of every update."""
    before, after = evaluations.results.get("before"), evaluations.results["after"]
    folder, trainer, name = evaluations.folder, evaluations.trainer, job.policy
    facts = facts_of(trainer, before, after)
    content = facts | {
        "schema": SCHEMAS[RESULTS_FILE],
        "run": folder.id,
        "sessions": folder.sessions,
        "model": {"name": name, "revision": job.model.model_revision, "checksum": weights_checksum(name)},
        "environment": dict(job.suite.description),
        "recipe": vars(job.recipe),
        "changed": dict(job.changed),
        "config": dict(config),
        "seconds": facts["seconds"] | {"evaluation": sum(one["seconds"] for one in (before, after) if one)},
        "history": [entry for entry in trainer.state.log_history if "train_runtime" not in entry],  # of all sessions
    }
    return plain(content)


_LABEL = 14
PAGE_BYTES = 32 << 20
"""Of trajectories, compressed, of which a page is written at the end of a run."""
_LEFT = {
    **{"results.json": "results.json", "checkpoints": f"checkpoint-*/{MARK}", "log.jsonl": "log.jsonl"},
    **{"trajectories/": "trajectories/*.parquet", "the model": "*.safetensors"},
}
"""What a run leaves -> the files that show that it is there."""


def opening(facts: Mapping[str, Any], changed: Mapping[str, Any], folder: RunFolder) -> str:
    width = min(columns() or WIDE, 120)
    rows = [one for name, value in facts.items() for one in _rows(name, value, width)]
    if changed:
        rows += _rows("not as preset", "  ".join(f"{name}={value}" for name, value in changed.items()), width)
    start = f"goes on from {folder.resume}" if folder.resume else "starts at update 0"
    again = f", session {folder.sessions}" if folder.sessions > 1 else ""
    return "\n".join(["", *rows, *_rows("run", f"{folder.id} in {folder.path}, {start}{again}", width), ""])


def closing(before: Mapping[str, Any] | None, after: Mapping[str, Any], folder: RunFolder, page: str) -> str:
    """Returns the screen at the end: the result by category, the paths, and in the last three lines before, after with
    the difference paired by task, and the run's page."""
    width = min(columns() or WIDE, WIDE)
    first = 14 if width < WIDE else 30

    def row(name: str, tasks: Any, old: str, new: str, difference: str) -> str:
        return cut(f"{name[: first - 1]:<{first}}{tasks:>5}  {old:<19}{new:<19}{difference}".rstrip(), width)

    def shown(result: Mapping[str, Any] | None, kind: str = "success") -> str:
        return str(Estimate.of(result[kind])) if result else "-"

    lines = [row("success %", "tasks", "before", "after", "difference by task")] if len(after["categories"]) > 1 else []
    for name, new in after["categories"].items() if lines else ():
        old = None if before is None else before["categories"].get(name)
        difference = _difference(before, after, name, "won")
        lines.append(row(name, new["success"]["episodes"], shown(old), shown(new), difference))
    if after["environment_errors"]:
        lines.append(f"{after['environment_errors']} episodes failed in their environment and count as not won")
    lines += [cut(line, width) for line in _lost(after["outcomes"])]
    lines.append(f"panel {after['panel']}, checksum {after['checksum']}, temperature {after['temperature']:g}")
    there = [name for name, pattern in _LEFT.items() if any(folder.path.glob(pattern))]
    lines.append(f"\n{', '.join(there) or 'no files'} are in {folder.path}")
    if not (folder.path / RUN_FILE).is_file():
        lines.append(f"{RUN_FILE} is gone: something removed files of this folder under way, and only these are left")
    results, known = [one for one in (before, after) if one], shown(after) != "unknown"
    kinds = ["success"] if known else []
    kinds += ["score"] if not known or any(shown(one) != shown(one, "score") for one in results) else []
    told = [", ".join(f"{kind} {shown(one, kind)} %" for kind in kinds) for one in results]
    gain = f"; by task {_difference(before, after, 'all', 'won' if known else 'score')}" if before else ""
    lines.append(f"\nbefore  {told[0] if before else 'not played (evaluate_first=False)'}")
    lines.append(f"after   {told[-1]}{gain}")
    return "\n".join(["", *lines, f"page    {page}"])


def page_of(run: Path) -> str:
    """Writes the page of a run that fits in memory, and returns its path; else the command that writes one, or why
    there is none."""
    sizes = [file.stat().st_size for file in run.glob("trajectories/*.parquet")]
    if not sizes:
        return "none: this run kept no trajectories (--save_trajectories True)"
    place = shlex.quote(path_as_given(run))
    if sum(sizes) > PAGE_BYTES:
        return f"alignopsd view {place} --step 0 writes one (the run is too large for one of all steps)"
    try:
        return path_as_given(view_run(run).save(run / "view.html"))
    except (OSError, ValueError) as error:  # the run itself has ended well
        return f"not written: {error}; then alignopsd view {place}"


def _lost(outcomes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns how many episodes each category lost, the most first, with their most frequent last actions."""
    lost = [one for one in outcomes if one["won"] is False and one.get("last_action")]
    lines = ["lost episodes, by their last action:"] if lost else []
    for name, number in Counter(one["category"] or "all" for one in lost).most_common(12):
        part = (one for one in lost if (one["category"] or "all") == name)
        ends = Counter(cut(" ".join(one["last_action"].split()), 32) for one in part).most_common(3)
        lines.append(f"{name}: {number}, of them {', '.join(f'{count} {action!r}' for action, count in ends)}")
    return lines


def _difference(before: Mapping[str, Any] | None, after: Mapping[str, Any], category: str, what: str) -> str:
    """Returns the mean difference over the tasks of a category that both played, in percentage points."""
    if before is None:
        return "-"
    old = {one["task_id"]: one[what] for one in before["outcomes"]}
    pairs = [(old.get(one["task_id"]), one[what]) for one in after["outcomes"] if category in ("all", one["category"])]
    differences = [float(new) - float(earlier) for earlier, new in pairs if earlier is not None and new is not None]
    if not differences:
        return "-"
    found = mean_score(differences)
    interval = f" [{found.low:+.1f}, {found.high:+.1f}]" if found.low == found.low else ""
    return f"{found.mean:+.1f}{interval}"


def _rows(name: str, value: Any, width: int) -> list[str]:
    text = f"{name:<{_LABEL}}{value}"
    lines = textwrap.wrap(text, width, subsequent_indent=" " * _LABEL, break_long_words=False, break_on_hyphens=False)
    return [cut(one, width) for one in lines]
