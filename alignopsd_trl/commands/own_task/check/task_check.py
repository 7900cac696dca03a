"""Checks a task, without a policy, for problems that would ruin a run."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from alignopsd_trl.checks.tasks import FAILED_RESET, Finding, look, starts
from alignopsd_trl.commands.own_task.check import agent, contest, outcomes, starting, wording
from alignopsd_trl.commands.own_task.check.contest import PLAYER, RANDOM
from alignopsd_trl.commands.own_task.demonstrations import bank_of, skills_of, texts_of
from alignopsd_trl.commands.own_task.options import TIME_LIMIT
from alignopsd_trl.commands.own_task.playing import CUT, Actor, AtRandom, PlayerError, check_room, play, scripted
from alignopsd_trl.commands.own_task.task import Task, find_task
from alignopsd_trl.commands.own_task.warm_start.agreement import VIEWS
from alignopsd_trl.commands.own_task.warm_start.tiny import WordCount, tiny_tokenizer
from alignopsd_trl.environments.base import Opening
from alignopsd_trl.environments.loading import find_module
from alignopsd_trl.rollout.episode import Episode, SkillSource, no_skills
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.renderer import Renderer, text_of
from alignopsd_trl.skills import SkillBank
from alignopsd_trl.turns import Trajectory

OPENED = 128  # tasks whose skills are looked up in a bank
SECONDS, SIBLINGS, AFTERWARDS, LEAST = 16.0, 2.0, 6.0, 2.0
"""Of a check on an idle machine, whose imports take four more; after which no more siblings are opened; left for what
follows play; and for play at least."""


@dataclass
class Report:
    """The findings of a check, and the facts that it prints."""

    findings: list[Finding] = field(default_factory=list)
    success: dict[str, str] = field(default_factory=dict)
    rewards: str = ""
    environment: str = ""
    reset: float = 0.0
    agent: str = ""
    prompt: str = ""
    taught: str = ""
    answer: str = ""
    tokens: dict[str, int] = field(default_factory=dict)
    max_prompt_length: int = 0

    @property
    def ruined(self) -> bool:
        return any(one.ruins for one in self.findings)

    def told(self) -> str:
        """Returns the report as text: the first prompt, the results of play, one line per finding."""
        lines = []
        if self.prompt:
            lines += ["A first prompt, as the policy will read it:", self.prompt, ""]
            lines += ["and what the teacher's prompt has in addition:", self.taught, ""] if self.taught else []
            lines += ["and the answer:", self.answer, ""] if self.answer else []
            shown = sum(self.tokens.values()) - self.tokens["answer"]
            listed = ", ".join(f"{name} {count}" for name, count in self.tokens.items() if count)
            lines += [f"{shown} tokens of max_prompt_length={self.max_prompt_length}: {listed}"]
        lines += [f"{who}: {what}" for who, what in self.success.items()]
        lines += [f"an environment: {self.environment}"] if self.environment else []
        lines += [f"the agent: {self.agent}"] if self.agent else []
        lines += [f"rewards of one episode: {self.rewards}"] if self.rewards else []
        return "\n".join([*lines, *map(str, self.findings), *([] if self.findings else ["nothing found"])])


def check_task(
    task: str | Task,
    *,
    episodes: int | None = None,
    player: str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_prompt_length: int | None = None,
    max_completion_length: int | None = None,
    skill_bank: Any = None,
    encoder: str = "lexical",
    time_limit: float = TIME_LIMIT,
    stage: Callable[[str], None] = lambda name: None,
) -> Report:
    """Checks a task by random play and its scripted player, if there is one, until their difference is known. Raises
    `ValueError` if the task can't be checked.

    Args:
        task: a task, or its name as on the command line.
        episodes: smallest number of episodes of each player, however long they take; by default 16, or as many as
            16 seconds of the check allow.
        player: ``MODULE:FUNCTION``; by default ``<task>_player:play`` if it exists.
        tokenizer: the policy's; by default that of a `tiny` policy for the task's words.
        max_prompt_length, max_completion_length: the policy's limits in tokens; by default the recipe's.
        time_limit: seconds that one call of the environment may take.
        stage: called with the name of each stage when it begins.
    """
    over = time.monotonic() + SECONDS
    task = find_task(task) if isinstance(task, str) else task
    rows, report = task.rows, Report()
    add, shuffled = report.findings.extend, random.Random(0).sample(rows, len(rows))
    check_room(task.suite.factory, shuffled[: episodes or contest.FIRST], time_limit)
    stage("rows and resets")
    add(_splits(task, rows))
    if not agent.is_program(task):
        report.environment, report.reset = starting.cost(task, shuffled[0], time_limit)
        add(starts(task.suite.factory, shuffled, time_limit, SIBLINGS))
        add(starting.unknown_actions(task, shuffled[0], time_limit))
    limit = report.max_prompt_length = task.limit("max_prompt_length", max_prompt_length)
    skills, bank = _skills(task, tokenizer, limit, skill_bank, encoder, report)
    actors = _actors(task, player, report)

    def part(who: str, some: Sequence[Any], seconds: float) -> list[Episode]:
        stage(who)
        try:
            return play(task.suite.factory, some, actors[who], skills=skills, time_limit=time_limit, seconds=seconds)
        except PlayerError as error:
            report.findings.append(Finding("player", str(error)))
        return []

    most, seconds = max(episodes or 0, contest.MOST), max(over - AFTERWARDS - time.monotonic(), LEAST)
    played = contest.play_on(part, list(actors), shuffled[:most], episodes, seconds)
    seen = [one for part in played.values() for one in part]
    stage("findings and replays")
    _judge(task, played, seen, time_limit, report)
    stage("openings and skills")
    opened = starting.open_all(task, shuffled, time_limit, over)
    report.success["tasks"] = f"{len(opened)} of {len(rows)} were opened"
    add(starting.faults(rows, opened, no_skills if isinstance(bank, SkillBank) else skills))  # a bank's code is ours
    if bank is not None:
        add(outcomes.retrieval(task, bank, seen, [one for _, one in opened if isinstance(one, Opening)][:OPENED]))
    if begun := [one.trajectory for one in seen if one.trajectory.turns]:
        stage("prompts")
        tokenizer = tokenizer or tiny_tokenizer(texts_of(task, begun))
        answer = task.limit("max_completion_length", max_completion_length)
        scripted = [one.trajectory for one in played.get(PLAYER, ()) if one.trajectory.turns]
        renderer = Renderer(tokenizer, task.declared.prompt, PlayOptions(limit))
        add(outcomes.prompts(renderer, scripted or begun, answer))
        add(wording.unshown(renderer, scripted))
        add(wording.uncopied(renderer, scripted))
        add(wording.other_form(scripted))
        _show(renderer, (scripted or begun)[0], report)
        if agent.is_agent(task):
            stage("an agent's requests")
            actor = actors.get(PLAYER) or actors[RANDOM]
            report.agent, found = agent.look_at(task, shuffled[0], actor, time_limit, renderer)
            add(found)
    report.findings = list(dict.fromkeys(report.findings))
    return report


def _splits(task: Task, rows: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yields findings about repeated training tasks, and tasks of the panel (evaluation set) among them, which an
    adapted class may have in common."""
    try:
        panel = list(task.suite.panel(task.preset.get("panel", "test")))
    except Exception as error:  # foreign code
        yield Finding("panel", f"panel('test') failed with {type(error).__name__}: {error}; mend panel()")
        return
    names = [row["task_id"] for row in rows]
    if twice := len(names) - len(set(names)):
        yield Finding("tasks", f"{twice} of {len(names)} task_ids occur twice in tasks('train'); give each row its own")
    adapted = task.name == task.suite.name and not task.preset
    known = set() if adapted and names == [row["task_id"] for row in panel] else {starting.content(row) for row in rows}
    if same := sum(starting.content(row) in known for row in panel):
        yield look("panel", f"{same} of {len(panel)} tasks of the panel are trained on too; keep them apart")


def _judge(task: Task, played: contest.Played, episodes: Sequence[Episode], time_limit: float, report: Report) -> None:
    """Adds the results of play, and findings about all episodes, to the report."""
    report.success = {who: success_of([one.trajectory for one in part], who == PLAYER) for who, part in played.items()}
    if (found := contest.difference(played)) and not math.isnan(found.low):
        report.success["difference in reward"] = f"{found:+.3g}"
    report.rewards = outcomes.told(played.get(PLAYER) or played[RANDOM])
    report.findings += [
        *outcomes.failures(episodes),
        *outcomes.rewards(episodes),
        *outcomes.victories(played[RANDOM]),
        *outcomes.paid_twice(episodes),
        *contest.findings(played),
        *outcomes.ends(episodes, task.declared.max_turns),
        *outcomes.seconds(episodes, time_limit, task.declared.concurrent),
        *outcomes.actions(played),
    ]
    faulty = any(one.about in ("siblings", "reset", FAILED_RESET, "failure") for one in report.findings)
    if not faulty and not agent.is_program(task):
        report.findings += starting.repeats(task, episodes, time_limit, report.reset)


def _skills(
    task: Task, tokenizer: Any, limit: int, skill_bank: Any, encoder: str, report: Report
) -> tuple[SkillSource, Any]:
    """Returns the skill source and the bank; `no_skills` and `None` if there is no bank or it can't be read."""
    try:
        bank = bank_of(task, skill_bank, encoder)
    except ValueError as error:
        report.findings.append(Finding("skill", str(error).replace("\n", "; ")))
        return no_skills, None
    if bank is None:
        text = "the task names no skill bank; methods with a teacher need one (grpo needs none)"
        report.findings.append(look("skill", text))
    return skills_of(task, bank, tokenizer or WordCount(), limit), bank


def _actors(task: Task, player: str | None, report: Report) -> dict[str, Actor]:
    actors: dict[str, Actor] = {RANDOM: AtRandom(random.Random(0))}
    if player is None and find_module(f"{task.name}_player") is None:
        return actors
    try:
        actors[PLAYER] = scripted(task.name, player)
    except PlayerError as error:
        report.findings.append(Finding("player", str(error)))
    return actors


def success_of(played: Sequence[Trajectory], reads: bool) -> str:
    """Returns what a player won and earned, in words, and if it ``reads`` also with and without the text. Episodes that
    time cut short don't count."""
    episodes = [one for one in played if one.message != CUT]
    if not episodes:
        return f"none of {len(played)} episodes was over in time" if played else "not played"
    won = "unknown how many" if all(one.won is None for one in episodes) else sum(bool(one.won) for one in episodes)
    kinds = {name: [one.reward for one in episodes if one.privileged is kind] for name, kind in VIEWS.items()}
    apart = ", ".join(f"{statistics.mean(part):.3g} {name}" for name, part in kinds.items() if part)
    apart = f" ({apart})" if reads and any(one.skill_text for one in episodes) else ""
    return (
        f"{won} of {len(episodes)} won, reward {statistics.mean(one.reward for one in episodes):.3g} on average{apart}"
    )


def _show(renderer: Renderer, episode: Trajectory, report: Report) -> None:
    """Adds the first prompt, the teacher's further lines, the answer, and their tokens with the skill to the report."""
    turn = episode.turns[0]
    report.prompt, report.answer = text_of(renderer.show(turn.shown.view, "")), turn.response_text
    known, read = report.prompt.splitlines(), text_of(renderer.show(turn.shown.view, episode.skill_text)).splitlines()
    report.taught = "\n".join(line for line in read if line not in known)
    report.tokens = wording.parts(renderer, episode, turn)
