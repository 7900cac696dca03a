"""Plays agents: `AgentEnvironment` one episode, `AgentBatch` many side by side."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from alignopsd_trl.environments.adapters.adapted import AdaptedEnvironment
from alignopsd_trl.environments.adapters.agents.line import End, RequestLine
from alignopsd_trl.environments.adapters.agents.prompt import AgentPrompt
from alignopsd_trl.environments.adapters.agents.refusal import POLICYS
from alignopsd_trl.environments.adapters.agents.requests import Ask, Rules
from alignopsd_trl.environments.adapters.agents.running import Running
from alignopsd_trl.environments.base import (
    UNREWARDED,
    Ending,
    Failure,
    Opening,
    Projection,
    Refusal,
    Reply,
    Step,
    text_of_error,
)
from alignopsd_trl.environments.batch import MOST_STUCK, SerialBatch
from alignopsd_trl.environments.declared import name_of
from alignopsd_trl.environments.validation import LONGEST_TEXT, guarded

LIMIT = 60.0  # seconds for each call of an environment that is played without a batch
OTHER_FIRSTS = 1.0  # seconds in which the first requests of parallel sub-agents arrive


class AgentEnvironment(AdaptedEnvironment):
    """Plays an agent that asks for chat completions: each of its requests is a turn. A call of such an object makes
    another one like it, so that it is a factory as well.

    Args:
        agent (`Callable[[dict, Client], Any]`):
            ``agent(row, client)``, a coroutine function or a plain one, which gets a thread. Returns the reward of the
            episode, an `Ending`, or nothing where ``reward_funcs`` know it.
        format (`str`, *optional*, defaults to `"native"`):
            ``"native"``: tools and calls are in the chat template's own format. ``"text"``: for any chat template;
            requests with tools are refused.
        skill_in (`str`, *optional*, defaults to `"system"`):
            The role whose last message the teacher's skill ends: ``"system"`` or ``"user"``.
        loses (`tuple[type[Exception], ...]`, *optional*):
            Exceptions of the agent that are the policy's doing. They end the episode as lost; others are errors of the
            environment.
        success (`Callable[[dict, float], bool | None]`, *optional*):
            The row and the returned reward -> whether the episode was won. By default that is unknown.
        max_turns (`int`, *optional*, defaults to 50):
            Turns of an episode at most.
        sampling (`str`, *optional*, defaults to `"refuse"`):
            What becomes of a request with fields that ask for another prompt or sampling than the run's: ``"refuse"``
            it with the API's error, or ``"ignore"`` the fields.
        trains (`Callable[[dict], bool]`, *optional*):
            A request, as that for chat completions which says the same -> whether the policy learns from its response.
            By default it does, unless the request's model is ``policy-aside`` or the client is `Client.not_trained`.
        last_words (`float`, *optional*):
            Seconds that the agents have after their last turn to end and return their rewards, all together. By
            default they have the time limit of the environments. An agent that has not ended by then fails its
            episode, since its reward is unknown.
        host (`str`, *optional*, defaults to `"127.0.0.1"`):
            The address at which ``client.url`` listens.

    Raises:
        TypeError: if ``agent`` can't be called.
        ValueError: for another ``format``, ``skill_in`` or ``sampling``.
    """

    history_length = 0
    concurrent = True  # agents wait for their responses

    def __init__(
        self,
        agent: Callable[..., Any],
        *,
        format: str = "native",
        skill_in: str = "system",
        loses: tuple[type[Exception], ...] = (),
        success: Callable[[Mapping[str, Any], float], bool | None] | None = None,
        max_turns: int = 50,
        sampling: str = "refuse",
        trains: Callable[[Mapping[str, Any]], bool] = lambda request: True,
        last_words: float | None = None,
        host: str = "127.0.0.1",
    ):
        if not callable(agent):
            raise TypeError(f"agent is {agent!r}; give a function agent(row, client)")
        if not callable(trains):
            raise TypeError(f"trains is {trains!r}; give a function trains(request)")
        known = {"format": ("native", "text"), "skill_in": ("system", "user"), "sampling": ("refuse", "ignore")}
        for name, given in (("format", format), ("skill_in", skill_in), ("sampling", sampling)):
            if given not in known[name]:
                raise ValueError(f"{name}={given!r} must be {known[name][0]!r} or {known[name][1]!r}")
        if last_words is not None and not (isinstance(last_words, Real) and last_words > 0):
            raise ValueError(f"last_words={last_words!r} must be a number of seconds, or None for the time limit")
        self.options = dict(agent=agent, format=format, skill_in=skill_in, loses=loses, success=success)
        self.options |= dict(max_turns=max_turns, sampling=sampling, trains=trains, last_words=last_words, host=host)
        self._agent, self._loses, self._success, self._host = agent, tuple(loses), success, host
        self._rules = Rules(format == "native", sampling == "ignore", trains)
        self.max_turns, self.last_words = max_turns, last_words
        self.prompt = AgentPrompt(self._rules.native, skill_in)
        self.refusals: Counter[str] = Counter()
        self.longest = getattr(agent, "longest", 0.0)  # seconds that an agent asks for, whatever the time limit
        self._line: RequestLine | None = None
        self.running: Running | None = None

    @property
    def __name__(self) -> str:
        return name_of(self._agent)

    @property
    def line(self) -> RequestLine:
        """The requests of the present episode."""
        assert self._line is not None, "`begin` comes first"
        return self._line

    @property
    def said(self) -> list[list[Mapping[str, Any]]]:
        """The messages of each turn: the response, and what the next request adds to it."""
        turns = self._line.turns if self._line else []
        added = {one.follows: one.new for one in turns if one.follows is not None}
        return [[one.said, *added.get(number, [])] for number, one in enumerate(turns)]

    def batch(self, size: int, time_limit: float) -> AgentBatch:
        """Makes many of these side by side."""
        return AgentBatch([self.with_options() for _ in range(size)], time_limit)

    def begin(self, row: Mapping[str, Any]) -> None:
        """Starts the agent on a dataset row."""
        self.close()
        self._line, self.messages = RequestLine(row, self._rules, self.refusals), []
        self.running = Running(self._agent, self._line, self._host)

    def opening(self, until: float) -> Opening:
        """Waits for the first request.

        Raises:
            RuntimeError: if the agent ends without one that can be answered.
        """
        first = self.line.take(until)
        if first is None:
            raise self._own(self.line.error or RuntimeError("the agent ended without a request"))
        return self.opening_of(first)

    def opening_of(self, first: Ask) -> Opening:
        """Returns the opening that a first request makes. Siblings must have all of it in common, unless it is not
        trained: then the first trained request will be the opening."""
        self.messages = first.messages
        users = [one["content"] for one in first.messages if one["role"] == "user"]
        parts = [f"[{one['role']}]\n{one['content']}" for one in first.messages]
        parts += [json.dumps(first.tools, ensure_ascii=False, default=str)] if first.tools else []
        category = str(self.line.row.get("category") or "")
        shown, task = "\n\n".join(parts), (users or [""])[-1]
        shown, task = shown[:LONGEST_TEXT], task[:LONGEST_TEXT]  # prompts have the whole
        return Opening(shown, task, category=category, context=self.line, later=not first.trained)

    def outcome(self, until: float) -> Step:
        """Waits for the next request, or for the agent's end."""
        line, before = self.line, self.line.now
        found = line.take(until)
        info: dict[str, Any] = {}
        if before is not None and before.said and before.trained:
            info |= {"follows": before.follows} | ({"not_trained": line.asides} if line.asides else {})
            line.asides = []
        if found is not None:
            opening = self.opening_of(found) if found is line.first else None
            return Step(_seen(found), won=None, info=info, opening=opening)
        if lost := self._lost():
            return Step("", done=True, won=False, info=info | {"lost": lost})
        return Step("", done=True, won=None, info=info)

    def _lost(self) -> str:
        """Returns how the policy lost: what a program of the agent says, or what the agent raised. Raises what is not
        the policy's own doing."""
        error, line = self.line.error, self.line
        if error is None or line.lost:
            return line.lost
        parts = [*_parts(error)]
        others = [
            one for one in parts if not isinstance(one, self._loses) and not any(c in POLICYS for c in _codes(one))
        ]
        refused = line.refused is not None and line.refused.code in POLICYS  # for which programs end in their own words
        if others and not refused:
            raise self._own(others[0])
        return f"{type(parts[0]).__name__}: {parts[0]}"

    def _own(self, error: BaseException) -> Exception:
        """Returns an agent's error as one that costs its own episode: its Ctrl-C or cancellation is not the run's. With
        the last refusal, for which it may have ended with few words."""
        text, refused = text_of_error(error), self.line.refused
        unsaid = refused is not None and str(refused) not in text
        if isinstance(error, Exception) and not unsaid:
            return error
        told = text if type(error) is RuntimeError else f"the agent raised {type(error).__name__}{text and ': ' + text}"
        told += f"; its last request was refused ({refused.code}): {refused}" if refused and unsaid else ""
        return RuntimeError(told).with_traceback(error.__traceback__)

    def finish(self, until: float | None = None) -> Ending | None:
        if self._line is None:
            return None
        line = self._line
        if line.end is None:
            line.hang_up()
            line.take(until or time.monotonic() + (self.last_words or max(LIMIT, self.longest)))
        lost, end = self._lost(), line.end or End()
        info: dict[str, Any] = {"not_trained": line.asides} if line.asides else {}
        info |= {"lost": lost} if lost else {}
        self.close()
        ending = self._ending(line, end)
        won = False if line.lost else ending.won
        for number, value in ending.turn_rewards.items():
            line.rewards[number] += value
        return replace(ending, won=won, turn_rewards=dict(line.rewards), info={**ending.info, **info})

    def _ending(self, line: RequestLine, end: End) -> Ending:
        """Returns what the agent's result says."""
        result = end.result
        if isinstance(result, Ending):
            given = self._success(line.row, result.reward) if self._success is not None else result.won
            return replace(result, won=given)
        if result is None:
            return Ending(info={} if end.error or line.lost else {UNREWARDED: True})
        if not isinstance(result, Real):
            raise TypeError(f"the agent returned {result!r:.60}; return a number, an Ending, or nothing")
        won = self._success(line.row, float(result)) if self._success is not None else None
        return Ending(reward=float(result), won=won, score=float(result))

    def close(self) -> None:
        if self._line is not None and self.running is not None:
            self._line.hang_up()
            self.running.cancel()

    def reset(self, **row: Any) -> Opening:
        self.begin(row)
        return self.opening(time.monotonic() + max(LIMIT, self.longest))

    def step(self, action: str | Reply | Refusal) -> Step:
        self.answer(action)
        return self.outcome(time.monotonic() + max(LIMIT, self.longest))

    def answer(self, action: str | Reply | Refusal) -> None:
        """Answers the pending request, or refuses it."""
        if isinstance(action, Refusal):
            self.line.refuse(action)
        else:
            self.line.answer(Reply(action) if isinstance(action, str) else action)

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        return Projection(response, True)


class AgentBatch(SerialBatch):
    """Waits for many agents at once, which run on threads of their own."""

    def __init__(self, environments: Sequence[AgentEnvironment], time_limit: float):
        super().__init__(environments)
        self._slots, self._limit = list(environments), max(time_limit, environments[0].longest)
        self._left: list[Any] = []  # threads of agents that did not end

    def reset(self, slots: Sequence[int], tasks: Sequence[Mapping[str, Any]]) -> list[Opening | Failure]:
        self._left = [one for one in self._left if one.is_alive()]
        if len(self._left) >= MOST_STUCK:
            told = f"{len(self._left)} agents of earlier episodes hang; no new one starts until one of these ends"
            return [Failure("timeout", told) for _ in slots]
        for slot, task in zip(slots, tasks, strict=True):
            self._slots[slot].begin(task)
        until = time.monotonic() + self._limit
        found = [self._waited(slot, self._slots[slot].opening, until) for slot in slots]
        return self._aligned(slots, tasks, found)

    def _aligned(
        self, slots: Sequence[int], tasks: Sequence[Mapping[str, Any]], openings: list[Any]
    ) -> list[Opening | Failure]:
        """Lets siblings open with the same request: of sub-agents on threads any may be the first to ask."""
        groups: dict[str, list[int]] = {}
        for place, task in enumerate(tasks):
            if isinstance(openings[place], Opening):
                groups.setdefault(json.dumps(dict(task), sort_keys=True, default=str), []).append(place)
        until = time.monotonic() + OTHER_FIRSTS
        for places in groups.values():
            if len({openings[place].later or openings[place].observation for place in places}) > 1:
                self._align([(place, self._slots[slots[place]]) for place in places], openings, until)
        return openings

    def _align(self, siblings: Sequence[tuple[int, AgentEnvironment]], openings: list[Any], until: float) -> None:
        while True:
            now = time.monotonic()
            waiting = [one.line.first_ones(min(until, now + 0.05)) for _, one in siblings]
            shown = [
                {one.opening_of(ask).observation: ask for ask in asks}
                for (_, one), asks in zip(siblings, waiting, strict=True)
            ]
            common = set.intersection(*[set(one) for one in shown])
            if common:
                for (place, one), asks in zip(siblings, shown, strict=True):
                    one.line.begin_with(asks[min(common)])
                    openings[place] = one.opening_of(asks[min(common)])
            if common or now >= until:
                return

    def step(self, slots: Sequence[int], actions: Sequence[str | Reply | Refusal]) -> list[Step | Failure]:
        for slot, action in zip(slots, actions, strict=True):
            self._slots[slot].answer(action)
        until = time.monotonic() + self._limit
        return [self._waited(slot, self._slots[slot].outcome, until) for slot in slots]

    def finish(self, slots: Sequence[int]) -> list[Ending | None | Failure]:
        for slot in slots:  # all are told before one is waited for
            if self._slots[slot].line.end is None:
                self._slots[slot].line.hang_up()
        until = time.monotonic() + (self._slots[0].last_words or self._limit)
        found = [self._waited(slot, self._slots[slot].finish, until) for slot in slots]
        self._keep_left(slots)
        return found

    def _keep_left(self, slots: Sequence[int]) -> None:
        running = [one for slot in slots if (one := self._slots[slot].running) is not None]
        self._left += [one.thread for one in running if one.thread.is_alive()]

    def metrics(self) -> dict[str, float]:
        """Returns how many requests were refused, by the API's code."""
        total = sum((one.refusals for one in self._slots), Counter())
        return {f"agents/refused/{code}": float(count) for code, count in total.items()}

    def worker(self, slot: int) -> int:
        """Returns the slot: agents do not wait for each other."""
        return slot

    def _waited(self, slot: int, call: Callable[[float], Any], until: float) -> Any:
        found = guarded(lambda: _timed(call, until))
        if isinstance(found, Failure):
            self._slots[slot].close()
            self._keep_left([slot])
        return found


def _timed(call: Callable[[float], Any], until: float) -> Any:
    try:
        return call(until)
    except TimeoutError as error:
        return Failure("timeout", str(error))


def _parts(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, or those of a group, such as a `asyncio.TaskGroup` raises."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for one in error.exceptions:
        yield from _parts(one)


def _codes(error: BaseException | None) -> Iterator[Any]:
    """Yields the API's codes of an error and of those that caused it."""
    while error is not None:
        yield getattr(error, "code", None)
        error = error.__cause__ or error.__context__


def _seen(ask: Ask) -> str:
    """Returns the messages after the last response, as text, which is for readers alone."""
    last = max((n + 1 for n, one in enumerate(ask.messages) if one["role"] == "assistant"), default=0)
    return "\n".join(one["content"] for one in ask.messages[last:])[:LONGEST_TEXT]
