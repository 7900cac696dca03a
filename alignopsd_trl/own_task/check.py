"""`check_task`: what would ruin a run on a task, found without a policy."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from alignopsd_trl.checks.findings import Finding
from alignopsd_trl.checks.tasks import FAILED_RESET, splits, starts
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.environments.loading import find_module
from alignopsd_trl.own_task import outcomes, starting
from alignopsd_trl.own_task.demonstrations import skills_of
from alignopsd_trl.own_task.players import AtRandom, PlayerError, Scripted, scripted
from alignopsd_trl.own_task.playing import Actor, PlayedEpisode, check_room, play
from alignopsd_trl.own_task.task import Task, find_task
from alignopsd_trl.own_task.tiny import tiny_tokenizer
from alignopsd_trl.own_task.tokenizer import WordCount
from alignopsd_trl.prompts import Renderer, text_of
from alignopsd_trl.rollout import SkillSource, no_skills
from alignopsd_trl.skills import load_skills

OPENED = 128  # tasks that are asked for their skills
RANDOM, PLAYER = "random play", "scripted player"


@dataclass
class Report:
    """What a check found, and what it saw on the way."""

    findings: list[Finding] = field(default_factory=list)
    success: dict[str, str] = field(default_factory=dict)
    prompt: str = ""
    tokens: int = 0
    max_prompt_length: int = 0

    @property
    def ruined(self) -> bool:
        return any(one.ruins for one in self.findings)

    def told(self) -> str:
        """For people: the first prompt, what play came to, one line a finding."""
        lines = []
        if self.prompt:
            lines += ["The first prompt, as the policy will read it:", self.prompt, ""]
            lines += [f"{self.tokens} tokens of max_prompt_length={self.max_prompt_length}"]
        lines += [f"{who}: {what}" for who, what in self.success.items()]
        return "\n".join([*lines, *map(str, self.findings), *([] if self.findings else ["nothing found"])])

    def to_dict(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in ("success", "prompt", "tokens", "max_prompt_length")}
        return {**given, "findings": [one.to_dict() for one in self.findings]}


def check_task(
    task: str | Task,
    *,
    episodes: int = 16,
    player: str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_prompt_length: int | None = None,
    max_completion_length: int | None = None,
    skill_bank: Any = None,
    encoder: str = "lexical",
    time_limit: float = 20.0,
    seed: int = 0,
) -> Report:
    """Plays a task at random and with its scripted player, if there is one.

    Args:
        task: as on the command line, or found already.
        episodes: of each kind of play.
        player: ``MODULE:FUNCTION``; ``<task>_player:play`` by default, where it exists.
        tokenizer: the policy's; that of a `tiny` policy for these words by default.
        max_prompt_length, max_completion_length: of the policy; the recipe's by default.
        time_limit: seconds of one call of the environment.

    Raises:
        ValueError: for a task that can't be looked at.
    """
    task = find_task(task) if isinstance(task, str) else task
    task.require_text("check")
    rows, report = task.rows("train"), Report()
    chosen = starting.drawn(rows, episodes, seed)
    check_room(task.suite.factory, chosen, time_limit)
    add = report.findings.extend
    add(_splits(task, rows))
    add(starts(task.suite.factory, chosen, time_limit))
    add(starting.unknown_actions(task, chosen[0], time_limit))
    limit = report.max_prompt_length = task.limit("max_prompt_length", max_prompt_length)
    skills, bank = _skills(task, tokenizer, limit, skill_bank, encoder, report)
    played = {}
    for who, actor in _actors(task, player, seed, report).items():
        part = _play(task, chosen, actor, skills, time_limit, report)
        played[who], report.success[who] = part, _success(part)
    _judge(task, rows, played, time_limit, report)
    all_played = [one for part in played.values() for one in part]
    if bank is not None:
        opened = starting.openings(task, starting.drawn(rows, OPENED, seed), time_limit)
        add(outcomes.retrieval(task, bank, all_played, opened))
    seen = [one for one in all_played if one.turns]
    if seen:
        tokenizer = tokenizer or tiny_tokenizer(_texts(task, seen))
        answer = task.limit("max_completion_length", max_completion_length)
        add(outcomes.prompts(task, tokenizer, played.get(PLAYER) or seen, limit, answer))
        _show(task, tokenizer, seen[0], report)
    report.findings = list(dict.fromkeys(report.findings))
    return report


def _splits(task: Task, rows: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Training tasks and the panel. An adapted class, whose panel is its only rows, has none to keep apart."""
    try:
        panel = list(task.suite.panel(task.preset.get("panel", "test")))
    except Exception as error:  # foreign code
        yield Finding("panel", f"panel('test') failed with {type(error).__name__}: {error}; mend panel()")
        return
    adapted = task.name == task.suite.name and not task.preset
    same = adapted and [row["task_id"] for row in rows] == [row["task_id"] for row in panel]
    yield from splits(rows, () if same else panel)


def _judge(
    task: Task, rows: Sequence[Any], played: Mapping[str, list[PlayedEpisode]], time_limit: float, report: Report
) -> None:
    """What was played, looked at together."""
    episodes = [one for part in played.values() for one in part]
    add = report.findings.extend
    add(outcomes.failures(episodes))
    add(outcomes.rewards(episodes))
    add(outcomes.victories(dict(played)))
    add(outcomes.room(played))
    add(outcomes.ends(dict(played), task.suite.factory().max_turns))
    add(outcomes.seconds(episodes))
    add(outcomes.actions(dict(played)))
    if not any(one.about in ("siblings", "reset", FAILED_RESET, "failure") for one in report.findings):
        add(starting.repeats(task, episodes, time_limit))
        add(starting.alike(task, rows, episodes, time_limit))


def _skills(
    task: Task, tokenizer: Any, limit: int, skill_bank: Any, encoder: str, report: Report
) -> tuple[SkillSource, Any]:
    """Where skills come from, and the bank itself; none where it can't be read."""
    name = skill_bank or task.preset.get("skill_bank") or task.suite.skill_bank
    if not name:
        report.findings.append(
            Finding(
                "skill", "the task names no skill bank; methods with a teacher need one (grpo needs none)", ruins=False
            )
        )
        return no_skills, None
    try:
        bank = load_skills(name, load_encoder(encoder), task.rows("train")[0].keys())
        return skills_of(task, tokenizer or WordCount(), limit, name, encoder), bank
    except ValueError as error:
        report.findings.append(Finding("skill", str(error).replace("\n", "; ")))
        return no_skills, None


def _actors(task: Task, player: str | None, seed: int, report: Report) -> dict[str, Actor]:
    actors: dict[str, Actor] = {RANDOM: AtRandom(random.Random(seed))}
    if player is None and find_module(f"{task.name}_player") is None:
        return actors
    try:
        actors[PLAYER] = Scripted(scripted(task.name, player), random.Random(seed))
    except PlayerError as error:
        report.findings.append(Finding("player", str(error)))
    return actors


def _play(
    task: Task, rows: Sequence[Any], actor: Actor, skills: SkillSource, time_limit: float, report: Report
) -> list[PlayedEpisode]:
    """Episodes half of which read the skill; none where the player or the skills fail."""
    half: Callable[[int], bool] = lambda number: skills is not no_skills and number % 2 == 1  # noqa: E731
    try:
        return play(task.suite.factory, rows, actor, skills=skills, skilled=half, time_limit=time_limit)
    except PlayerError as error:
        report.findings.append(Finding("player", str(error)))
    except (ValueError, TypeError, KeyError) as error:  # of a skill function or a column
        report.findings.append(Finding("skill", f"{type(error).__name__}: {error}"))
    return []


def _success(episodes: Sequence[PlayedEpisode]) -> str:
    if not episodes:
        return "not played"
    won = "unknown how many" if all(one.won is None for one in episodes) else sum(bool(one.won) for one in episodes)
    mean = sum(one.reward for one in episodes) / len(episodes)
    return f"{won} of {len(episodes)} won, reward {mean:.3g} on average"


def _texts(task: Task, episodes: Sequence[PlayedEpisode]) -> list[str]:
    prompt = task.suite.factory().prompt
    turns = [(one, turn) for one in episodes for turn in one.turns]
    return [text for one, turn in turns for text in (text_of(prompt.render(turn.view, one.skill)), turn.response)]


def _show(task: Task, tokenizer: Any, episode: PlayedEpisode, report: Report) -> None:
    """The first prompt, and how long it is with the skill."""
    renderer = Renderer(tokenizer, task.suite.factory().prompt, report.max_prompt_length)
    view = episode.turns[0].view
    report.prompt = text_of(renderer.show(view, ""))
    report.tokens = len(renderer.encode([renderer.show(view, episode.skill)])[0])
