"""Multi-turn collection: render the prompts of all live episodes, generate for all at once, step, repeat.

One round asks each live episode for one turn. Every process plays the same number of rounds and asks for equally many
responses in each (`agree`), so that generation may run collectives. A failing environment ends its own episode only.
Turns are counted here and nowhere else, so that a turn limit means the same on every benchmark.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from alignopsd_trl.conversations import Conversation, oldest_to_drop
from alignopsd_trl.environments.base import (
    Ending,
    EnvironmentsDown,
    Failure,
    Opening,
    Projection,
    Record,
    Rendered,
    Step,
    View,
)
from alignopsd_trl.environments.batch import ValidatedBatch
from alignopsd_trl.prompts import Fitted, Renderer, text_of
from alignopsd_trl.reading import Reader, reader_for
from alignopsd_trl.turns import Seeds, StopReason, Trajectory, Turn, parse_response

Generate = Callable[[list[list[int]]], tuple[list[list[int]], list[list[float]] | None]]
"""Prompts to sampled responses (with the end token, if there is one) and the sampler's log-probs, if it gives them."""


class SkillSource(Protocol):
    """Privileged text of a task: retrieved once per task, the same for all its turns and siblings. With an attribute
    ``reads_row`` that is true, its dataset row comes as a fourth argument."""

    def __call__(self, task_text: str, task_key: str | None, data_source: str | None) -> tuple[str, tuple[str, ...]]:
        """The text of the skill block and the identifiers of its skills."""


def no_skills(task_text: str, task_key: str | None, data_source: str | None) -> tuple[str, tuple[str, ...]]:
    return "", ()


def generate_sorted(generate: Generate, prompts: list[list[int]], size: int) -> tuple[list[list[int]], None]:
    """Responses to prompts of mixed length, ``size`` at a time: neighbours in length go together, so that little is
    computed for padding, and no more caches are held than ``size`` prompts need. Equally many prompts make equally many
    calls."""
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
    responses: list[list[int]] = [[] for _ in prompts]
    for first in range(0, len(order), size):
        rows = order[first : first + size]
        sampled, _ = generate([prompts[row] for row in rows])
        for row, response in zip(rows, sampled, strict=True):
            responses[row] = response
    return responses, None


def episode_seeds(task_id: str, step: int, sibling: int) -> Seeds:
    """Seeds of an episode: functions of the task and the training step, and the second one of the sibling index too."""
    return Seeds(episode_seed(task_id, step, 0), episode_seed(task_id, step, sibling))


def episode_seed(task_id: str, step: int, sibling: int) -> int:
    """A number that is a function of the task, the training step and the sibling index, and of nothing else."""
    digest = hashlib.sha256(f"{task_id}\x1f{step}\x1f{sibling}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def siblings_before(task_ids: Sequence[Sequence[str]], process: int) -> list[int]:
    """For each row of a process, how many rows of its task come earlier, on this process or one before it: a sibling
    index that no way of cutting the rows into batches and processes can move."""
    seen = Counter(identity for ids in task_ids[:process] for identity in ids)
    places = []
    for identity in task_ids[process]:
        places.append(seen[identity])
        seen[identity] += 1
    return places


class SiblingsDiffer(ValueError):
    """Siblings of a task that do not start in the same state: what they did can't be held against each other."""


def check_openings(openings: Sequence[Opening | Failure], tasks: Sequence[str], environment: str) -> None:
    """Holds the siblings of each task to the same opening; episodes that failed are left out.

    Raises:
        SiblingsDiffer: shows two openings and says what to do.
    """
    first: dict[str, Opening] = {}
    for task, opening in zip(tasks, openings, strict=True):
        if not isinstance(opening, Opening):
            continue
        field = _where_they_differ(first.setdefault(task, opening), opening)
        if field is not None:
            one, other = _excerpts(getattr(first[task], field), getattr(opening, field))
            raise SiblingsDiffer(
                f"environment {environment}, task {task!r}: siblings open differently, {one!r} and {other!r} "
                f"({field}). A group is several tries at one task. Give reset() a parameter 'seed' and draw everything "
                "from it (siblings get the same), or put what it draws into columns of the dataset; set "
                "openings_may_differ = True if they are meant to"
            )


def _where_they_differ(one: Opening, other: Opening) -> str | None:
    """The first field that differs. A context whose class does not define equality can't be compared."""
    for name in ("task_text", "observation", "admissible", "context", "category", "task_key", "data_source"):
        left, right = getattr(one, name), getattr(other, name)
        if type(left).__eq__ is not object.__eq__ and _differ(left, right):
            return name
    return None


def _differ(left: Any, right: Any) -> bool:
    try:
        return left is not right and bool(left != right)
    except ValueError:  # arrays answer by element
        return False


def _excerpts(left: Any, right: Any) -> tuple[str, str]:
    """Both texts around the first character that differs."""
    left, right = str(left), str(right)
    at = max(next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 0) - 20, 0)
    return left[at : at + 60], right[at : at + 60]


@dataclass
class Episode:
    """A trajectory in the making: what the environment shows now, and the history for the next prompt."""

    slot: int
    trajectory: Trajectory
    observation: str = ""
    admissible: tuple[str, ...] = ()
    context: Any = None
    records: list[Record] = field(default_factory=list)
    dialogue: tuple[Conversation, Conversation] | None = None  # as the policy and as the privileged view read it

    @property
    def live(self) -> bool:
        return self.trajectory.stop is None

    def view(self, history_length: int) -> View:
        shown = tuple(self.records[-history_length:]) if history_length > 0 else ()
        text, number = self.trajectory.task_text, len(self.records)
        return View(text, self.observation, self.admissible, shown, number, self.context)

    def start(self, opening: Opening, skill: tuple[str, tuple[str, ...]]) -> None:
        self.observation, self.admissible, self.context = opening.observation, opening.admissible, opening.context
        self.trajectory.category = opening.category or str(self.trajectory.row.get("category", ""))
        self.trajectory.task_text = opening.task_text
        self.trajectory.skill_text, self.trajectory.skill_ids = skill

    def advance(self, turn: Turn, step: Step, max_turns: int, until_lost: bool = False) -> None:
        turn.chosen_on, turn.observation, turn.reward = self.observation, step.observation, step.reward
        turn.action_valid = turn.action_valid and step.valid
        turn.metrics, turn.info = step.metrics, {**step.info, **step.metrics}
        self.records.append(Record(len(self.records) + 1, self.observation, turn.action, step.observation))
        self.observation, self.admissible = step.observation, step.admissible
        trajectory = self.trajectory
        trajectory.turns.append(turn)
        trajectory.reward += step.reward
        trajectory.won, trajectory.score = step.won, step.score
        if step.lost and trajectory.lost is None:
            trajectory.lost = len(trajectory.turns)
        if step.done:
            trajectory.stop = StopReason.DONE
        elif len(trajectory.turns) >= max_turns or (until_lost and step.lost):
            trajectory.stop = StopReason.TURN_LIMIT

    def finish(self, ending: Ending) -> None:
        trajectory = self.trajectory
        trajectory.reward += ending.reward
        trajectory.won = trajectory.won if ending.won is None else ending.won
        trajectory.score = trajectory.score if ending.score is None else ending.score
        if trajectory.turns:
            last = trajectory.turns[-1]
            last.reward += ending.reward
            last.metrics = {**last.metrics, **ending.metrics}
            last.info = {**last.info, **ending.info, **ending.metrics}

    def fail(self, failure: Failure, environment: str) -> None:
        self.trajectory.stop = StopReason.ENVIRONMENT_ERROR
        task = self.trajectory.row.get("task_id", self.trajectory.task)
        self.trajectory.message = f"{failure.kind}: environment {environment}, task {task!r}: {failure.message}"


@dataclass
class Player:
    """Plays episodes with a policy.

    Args:
        environments ([`ValidatedBatch`]):
            From `alignopsd_trl.environments.batch.open_batch`; as many slots as episodes are played at once, at least.
        renderer ([`Renderer`]):
            Makes token ids of views.
        generate ([`Generate`]):
            The policy.
        tokenizer ([`PreTrainedTokenizerBase`]):
            Decodes responses.
        end_ids (`Sequence[int]`):
            Tokens that end a response.
        skills ([`SkillSource`], *optional*, defaults to `no_skills`):
            Privileged text of a task.
        skills_in_rollout (`bool`, *optional*, defaults to `False`):
            The policy itself sees the skill (rows of the table that say so); else only `Turn.privileged_ids` holds it.
        max_turns (`int`, *optional*):
            Turns after which an episode ends; the environment's own number by default, and no more than that.
        agree (`Callable[[int], int]`, *optional*, defaults to `lambda number: number`):
            Maximum of a number over all processes.
        progress (`Callable[[int], None]`, *optional*, defaults to `lambda ended: None`):
            Called with the number of episodes that ended since the last call.
        reader ([`Reader`], *optional*):
            Finds thinking and actions in responses; by default as the environments say, between ``<think>`` tags.
        privileged (`bool`, *optional*, defaults to `True`):
            Turns hold the privileged prompt too (`Turn.privileged_ids`). Without it, prompts are cut as if they did.
        until_lost (`bool`, *optional*, defaults to `False`):
            An episode ends as at its turn limit once the environment says that the turns left can't win it
            (`Step.lost`): for who only asks who wins.
    """

    environments: ValidatedBatch
    renderer: Renderer
    generate: Generate
    tokenizer: PreTrainedTokenizerBase
    end_ids: Sequence[int]
    skills: SkillSource = no_skills
    skills_in_rollout: bool = False
    max_turns: int | None = None
    agree: Callable[[int], int] = lambda number: number
    progress: Callable[[int], None] = lambda ended: None
    reader: Reader | None = None
    privileged: bool = True
    until_lost: bool = False

    def __post_init__(self) -> None:
        self.reader = self.reader or reader_for(self.tokenizer, self.environments)
        own = self.environments.max_turns
        if self.max_turns is not None and self.max_turns > own:
            raise ValueError(
                f"max_turns={self.max_turns} is more than the {own} of environment {self.environments.name}, which may "
                "plan by it; raise the environment's own (for a shipped one: environment_options={'max_turns': ...})"
            )

    def play(
        self,
        rows: Sequence[Mapping[str, Any]],
        seeds: Sequence[Seeds],
        tasks: Sequence[str],
        prefixes: Sequence[Sequence[str]] = (),
    ) -> list[Trajectory]:
        """One finished trajectory per dataset row.

        Args:
            rows: dataset rows; each is handed to ``reset(**row, seed=...)``, and ``dynamics_seed`` where it is asked
                for. A column of such a name goes first.
            seeds: of the episodes (`episode_seeds`).
            tasks: identity of each row's sibling group; rollouts are numbered inside it in order.
            prefixes: actions of each episode that are replayed before the policy takes over; their turns have neither
                prompt nor response.

        Raises:
            EnvironmentsDown: on all processes, if the environments of one are down.
            SiblingsDiffer: on all processes, if siblings open differently (`TextEnvironment.openings_may_differ`).
            ValueError: for prefixes of a conversation, which would have no responses.
        """
        if self.renderer.converses and any(prefixes):
            raise ValueError("actions alone make no conversation to walk on from; use history='window'")
        episodes = self._begin(rows, seeds, tasks)
        self._together(lambda: self._open(episodes))
        limit = self.max_turns or self.environments.max_turns
        self._together(lambda: self._replay(episodes, prefixes, limit))
        self.progress(sum(not episode.live for episode in episodes))
        while True:
            live = [episode for episode in episodes if episode.live]
            turns = self._render(live)
            live = [episode for episode in live if episode.live]
            width = self.agree(len(live))
            if width == 0:
                self.progress(sum(turn is None for turn in turns))
                self._together(lambda: self._finish(episodes))
                return [episode.trajectory for episode in episodes]
            ready = [turn for turn in turns if turn is not None]
            self._respond(live, ready, width)
            self._together(lambda live=live, ready=ready: self._step(live, ready, limit))
            self.progress(len(turns) - sum(episode.live for episode in live))

    def _together(self, act: Callable[[], None]) -> None:
        """Environments that can't be played with on one process end the play of all, in the same round."""
        problem: EnvironmentsDown | SiblingsDiffer | None = None
        try:
            act()
        except (EnvironmentsDown, SiblingsDiffer) as error:
            problem = error
        kind = self.agree({EnvironmentsDown: 1, SiblingsDiffer: 2}.get(type(problem), int(problem is not None)))
        if kind and problem is None:
            raise (EnvironmentsDown, SiblingsDiffer)[kind - 1]("another process met this; its own error says why")
        if problem is not None:
            raise problem

    def _begin(self, rows: Sequence[Mapping[str, Any]], seeds: Sequence[Seeds], tasks: Sequence[str]) -> list[Episode]:
        seen: dict[str, int] = {}
        episodes = []
        for slot, (row, task) in enumerate(zip(rows, tasks, strict=True)):
            seen[task] = seen.get(task, -1) + 1
            episodes.append(Episode(slot, Trajectory(dict(row), task, f"{seen[task]:04d}", seeds[slot])))
        return episodes

    def _task(self, trajectory: Trajectory) -> dict[str, Any]:
        """What `reset` gets."""
        seeds = trajectory.seeds._asdict()
        if not self.environments.takes_dynamics_seed:
            del seeds["dynamics_seed"]
        return {**seeds, **trajectory.row}

    def _open(self, episodes: Sequence[Episode]) -> None:
        openings = self.environments.reset(range(len(episodes)), [self._task(one.trajectory) for one in episodes])
        if not self.environments.openings_may_differ:
            check_openings(openings, [one.trajectory.task for one in episodes], self.environments.name)
        for episode, opening in zip(episodes, openings, strict=True):
            if isinstance(opening, Failure):
                episode.fail(opening, self.environments.name)
            else:
                row = (episode.trajectory.row,) if getattr(self.skills, "reads_row", False) else ()
                skill = self.skills(opening.task_text, opening.task_key, opening.data_source, *row)
                episode.start(opening, skill)

    def _replay(self, episodes: Sequence[Episode], prefixes: Sequence[Sequence[str]], limit: int) -> None:
        for place in range(max(map(len, prefixes), default=0)):
            pairs = zip(episodes, prefixes, strict=True)
            going = [(one, prefix[place]) for one, prefix in pairs if one.live and place < len(prefix)]
            turns = [_blank_turn(place, "", [], [], False) for _ in going]
            for turn, (_, action) in zip(turns, going, strict=True):
                turn.action = action
            self._step([one for one, _ in going], turns, limit)

    def _render(self, episodes: Sequence[Episode]) -> list[Turn | None]:
        """The next turn of each episode, prompts filled in; ``None`` (and the episode ended) where no prompt fits."""
        if self.renderer.converses:
            turns = self._converse(episodes)
        else:
            turns = self._show(episodes)
        for episode, turn in zip(episodes, turns, strict=True):
            if turn is None:
                episode.trajectory.stop = StopReason.PROMPT_TOO_LONG
        return turns

    def _converse(self, episodes: Sequence[Episode]) -> list[Turn | None]:
        """The first prompt of an episode is a rendered one, the others go on with its dialogue."""
        new = [episode for episode in episodes if episode.dialogue is None]
        first = dict(zip((episode.slot for episode in new), self._show(new), strict=True))
        return [first[one.slot] if one.slot in first else self._go_on(one) for one in episodes]

    def _go_on(self, episode: Episode) -> Turn | None:
        last, view = episode.trajectory.turns[-1], episode.view(1)
        reply = self.renderer.reply(view)
        own, privileged = episode.dialogue
        for dialogue in dict.fromkeys(episode.dialogue):
            dialogue.go_on(last.response_ids, reply, self.end_ids)
        drop = oldest_to_drop(privileged, self.renderer.max_length)
        if drop is None:
            return None
        for dialogue in dict.fromkeys(episode.dialogue):
            if drop:
                dialogue.forget(drop)
        shortened = len(own) < view.step_count
        return _blank_turn(view.step_count, text_of(reply), own.ids, privileged.ids, shortened)

    def _show(self, episodes: Sequence[Episode]) -> list[Turn | None]:
        """Turns whose prompts are rendered from views."""
        full = [episode.view(self.environments.history_length) for episode in episodes]
        skills = [episode.trajectory.skill_text for episode in episodes]
        if not (self.privileged or self.skills_in_rollout or self.renderer.converses):
            fitted = self.renderer.fit_ordinary(full, skills)
            return [one and _shown_turn(view, one, []) for view, one in zip(full, fitted, strict=True)]
        fitted = self.renderer.fit(full, skills)
        ordinary = self._ordinary([one for one in fitted if one is not None])
        turns: list[Turn | None] = []
        for episode, view, privileged in zip(episodes, full, fitted, strict=True):
            if privileged is None:
                turns.append(None)
                continue
            prompt, ids = next(ordinary)
            turns.append(_shown_turn(view, Fitted(privileged.view, prompt, ids), privileged.ids))
            if self.renderer.converses:
                own = Conversation(self.renderer, prompt, ids)
                same = prompt == privileged.shown
                episode.dialogue = own, own if same else Conversation(self.renderer, privileged.shown, privileged.ids)
        return turns

    def _ordinary(self, fitted: Sequence[Fitted]) -> Iterator[tuple[Rendered, list[int]]]:
        """The policy's own prompts and their ids: what has no skill, or is meant to have it, is encoded already."""
        prompts = [one.shown if self.skills_in_rollout else self.renderer.show(one.view, "") for one in fitted]
        encoded = iter(
            self.renderer.encode([prompt for prompt, one in zip(prompts, fitted, strict=True) if prompt != one.shown])
        )
        for prompt, one in zip(prompts, fitted, strict=True):
            yield prompt, one.ids if prompt == one.shown else next(encoded)

    def _respond(self, episodes: Sequence[Episode], turns: Sequence[Turn], width: int) -> None:
        """Samples a response for each turn; ``width`` is how many responses every process asks for in this round."""
        filler = self.renderer.encode(["."]) * (width - len(turns)) if width > len(turns) else []
        responses, log_probs = self.generate([turn.prompt_ids for turn in turns] + filler)
        texts = self.tokenizer.batch_decode(
            responses[: len(turns)], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        for row, (episode, turn) in enumerate(zip(episodes, turns, strict=True)):
            turn.response_ids, turn.response_text = list(responses[row]), texts[row]
            turn.truncated = not turn.response_ids or turn.response_ids[-1] not in self.end_ids
            turn.sampling_log_probs = list(log_probs[row]) if log_probs is not None else None
            self._project(episode, turn)

    def _project(self, episode: Episode, turn: Turn) -> None:
        tools = getattr(episode.context, "tools", ())
        reading = self.reader.read(turn.prompt_ids, turn.response_ids, turn.response_text, tools)
        turn.thought = reading.thought
        if reading.action is not None:
            turn.action, turn.action_valid = reading.action, True
            return
        projection = self.environments.project(reading.text, episode.admissible)
        if isinstance(projection, Projection):
            turn.action, turn.action_valid = projection.action, projection.valid
        else:
            self._fail(episode, turn, projection)

    def _step(self, episodes: Sequence[Episode], turns: Sequence[Turn], limit: int) -> None:
        live = [(episode, turn) for episode, turn in zip(episodes, turns, strict=True) if episode.live]
        answers = self.environments.step([episode.slot for episode, _ in live], [turn.action for _, turn in live])
        for (episode, turn), answer in zip(live, answers, strict=True):
            if isinstance(answer, Failure):
                self._fail(episode, turn, answer)
            else:
                episode.advance(turn, answer, limit, self.until_lost)

    def _fail(self, episode: Episode, turn: Turn, failure: Failure) -> None:
        episode.trajectory.turns.append(turn)
        episode.fail(failure, self.environments.name)

    def _finish(self, episodes: Sequence[Episode]) -> None:
        """Asks for what the environments know only now that their episodes are over."""
        ended = [episode for episode in episodes if not episode.trajectory.failed]
        endings = self.environments.finish([episode.slot for episode in ended])
        for episode, ending in zip(ended, endings, strict=True):
            if isinstance(ending, Failure):
                episode.fail(ending, self.environments.name)
            elif ending is not None:
                episode.finish(ending)


def _shown_turn(view: View, fitted: Fitted, privileged_ids: list[int]) -> Turn:
    shortened = len(fitted.view.history) < len(view.history)
    return _blank_turn(view.step_count, text_of(fitted.shown), fitted.ids, privileged_ids, shortened)


def _blank_turn(number: int, text: str, ids: list[int], privileged_ids: list[int], shortened: bool) -> Turn:
    return Turn(
        number=number,
        prompt_text=text,
        prompt_ids=list(ids),
        privileged_ids=list(privileged_ids),
        response_ids=[],
        response_text="",
        thought=parse_response(None),
        action="",
        action_valid=False,
        observation="",
        history_shortened=shortened,
    )


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What a round of episodes looked like: outcome, length, validity, repetition, why episodes ended (one-hot shares),
    and the `metrics` of their last steps."""
    count = max(len(trajectories), 1)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    counted = max(len(turns), 1)
    metrics = {
        "episodes/score": sum(t.score for t in trajectories) / count,
        "episodes/turns": len(turns) / count,
        "turns/response_tokens": sum(len(turn.response_ids) for turn in turns) / counted,
        "turns/prompt_tokens": sum(len(turn.prompt_ids) for turn in turns) / counted,
        "turns/truncated": sum(turn.truncated for turn in turns) / counted,
        "turns/invalid_actions": sum(not turn.action_valid for turn in turns) / counted,
        "turns/repeated": sum(map(_repeated, trajectories)) / counted,
        "turns/shortened_history": sum(turn.history_shortened for turn in turns) / counted,
    }
    if all(trajectory.won is not None for trajectory in trajectories):
        metrics["episodes/success"] = sum(t.won for t in trajectories) / count
    if any(trajectory.skill_text for trajectory in trajectories):
        metrics["episodes/skill_items"] = sum(len(t.skill_ids) for t in trajectories) / count
    for reason in StopReason:
        metrics[f"stop/{reason.value.replace(' ', '_')}"] = sum(t.stop is reason for t in trajectories) / count
    return metrics | _last_numbers(trajectories)


def _repeated(trajectory: Trajectory) -> int:
    """Turns whose action, with what came of it, was there before in the episode: it was tried again, and in vain."""
    return len(trajectory.turns) - len({(turn.action, turn.observation) for turn in trajectory.turns})


def conversation_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """How well the dialogues went on by token ids: turns of an episode whose prompt did not begin with the prompt
    before it and the response to that, because the template changed it or history was dropped; and runs of turns that
    did."""
    played = [trajectory.turns for trajectory in trajectories if trajectory.turns]
    broken = sum(not two.extends(one) for turns in played for one, two in pairwise(turns))
    count = max(len(trajectories), 1)
    return {"conversation/broken_prefixes": broken / count, "conversation/runs": (len(played) + broken) / count}


def _last_numbers(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The mean of each number in `Turn.metrics` over the last turns that have it."""
    found: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.turns[-1].metrics.items() if trajectory.turns else ():
            found.setdefault(name, []).append(float(value))
    return {f"last_step/{name}": sum(values) / len(values) for name, values in sorted(found.items())}


class Counters:
    """The counters that an environment batch may keep (``metrics()``: totals since it began), a round at a time.

    Args:
        environments ([`ValidatedBatch`]):
            What it counts already belongs to no round.
    """

    def __init__(self, environments: ValidatedBatch) -> None:
        self._environments = environments
        self._before = environments.metrics()

    def take(self) -> dict[str, float]:
        """What was added since the last call, as ``environment/<name>``; empty for a batch that counts nothing."""
        now = self._environments.metrics()
        added = {f"environment/{name}": value - self._before.get(name, 0.0) for name, value in now.items()}
        self._before = now
        return added
