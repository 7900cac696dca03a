"""The requests of one episode, in the order in which they are answered."""

from __future__ import annotations

import hashlib
import json
import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, NamedTuple

from alignopsd_trl.environments.adapters.agents.messages import arguments_text, plain_message
from alignopsd_trl.environments.adapters.agents.refusal import Refused
from alignopsd_trl.environments.adapters.agents.requests import Ask, Body, Rules, asks_of
from alignopsd_trl.environments.adapters.rows import arguments_of
from alignopsd_trl.environments.base import Refusal, Reply


def over() -> Refused:
    """Makes the refusal after an episode's end: one that is raised again and again would keep all its frames."""
    return Refused("the episode is over", "episode_over")


ASIDE = "policy-aside"  # the model's name in requests that are not trained, for a program's "small model"
PATIENCE = 16  # refusals in a row that are told at once
LONGEST_WAIT = 60.0  # seconds until a later one is


class End(NamedTuple):
    """The agent's end: its result, or what it raised."""

    result: Any = None
    error: BaseException | None = None


class RequestLine:
    """Queues the requests of an episode; the context of its prompts.

    Args:
        refusals: counts refusals by their code.

    Attributes:
        now: the request to answer.
        first: the first request that is trained.
        refused: the last refusal, until another request is answered.
        turns: the answered requests that are turns.
        asides: requests and responses that are not trained, since the last turn.
        end: of the agent, once it has ended.
        over: whether nothing is answered any more.
        begun: the time of its beginning, by the clock `time.monotonic`.
        moved: paths of the agent with those that the policy reads and writes in their place.
        lost: why a program of the agent says that the policy lost; empty: it does not.
        rewards: of turns, by number.
        stored: what `previous_response_id` and references to items name, of the Responses API.
    """

    def __init__(self, row: Mapping[str, Any], rules: Rules, refusals: Counter[str] | None = None):
        self.row, self.rules, self.refusals = row, rules, Counter() if refusals is None else refusals
        self.now: Ask | None = None
        self.first: Ask | None = None
        self.refused: Refused | None = None
        self.turns: list[Ask] = []
        self.asides: list[dict[str, Any]] = []
        self.end: End | None = None
        self.lost, self.over, self.begun = "", False, time.monotonic()
        self.moved: list[tuple[str, str]] = []
        self.rewards: defaultdict[int, float] = defaultdict(float)
        self.stored: dict[str, Any] = {}
        self._in_a_row = 0  # refusals
        self._written: set[str] = set()  # arguments of the policy's that are no objects
        self._open: list[list[Ask]] = []  # trained requests without an answer
        self._parallel = False
        self._lock = threading.RLock()
        self._arrivals: queue.SimpleQueue[Ask | End] = queue.SimpleQueue()
        self._early: list[Ask] = []  # looked at, not yet answered
        self._places: Counter[str] = Counter()
        self._known: defaultdict[str, list[list[Ask]]] = defaultdict(list)

    @property
    def error(self) -> BaseException | None:
        """What the agent raised at its end."""
        return self.end.error if self.end is not None else None

    @property
    def tools(self) -> list[Any]:
        """The tools of the request, which the reader of responses asks its context for."""
        return self.now.tools if self.now else []

    def ask(
        self,
        body: Body,
        trained: bool = True,
        retried: bool = False,
        waits: Callable[[], bool] = lambda: True,
    ) -> list[Ask]:
        """Queues a request.

        Sub-agents may send equal requests side by side, whose samples differ. So an equal request is another one,
        unless it is a retry: it says so, or an earlier caller left without its answer. A retry gets the answer of its
        first try.

        Args:
            body: as JSON brings it (`plain`).
            waits: whether the caller is still there. A request whose caller has left is not sampled.

        Raises:
            Refused: for what can't be answered, and after the episode's end.
        """
        if self.over:
            raise over()
        body = replaced(body, self.moved)
        trained = trained and self._trains(body)
        text = json.dumps([body, trained], sort_keys=True)
        with self._lock:
            if (again := self._again(text, retried)) is not None:
                for one in again:
                    one.waits = waits
                return again
            asks = asks_of(body, self.rules, trained, self._written)
            self._known[text].append(asks)
            self._in_a_row = 0
            if trained:
                self._count(asks)
            for one in asks:
                one.waits = waits
                self._arrivals.put(one)
        if self.over:  # since it was looked at
            for one in asks:
                self._refuse(one.answer, over())
        return asks

    def _trains(self, body: Body) -> bool:
        """Whether the policy learns from a request, by its model's name and by the user's function.

        Raises:
            Refused: if that function fails, which ends the episode.
        """
        if body.get("model") == ASIDE:
            return False
        try:
            found = self.rules.trains(body)
            if not isinstance(found, bool):
                raise TypeError(f"it returned {found!r:.80}; return True or False")
        except Exception as error:  # of the user's code
            told = f"trains(request) failed with {type(error).__name__}: {error}"
            self.put_end(End(error=RuntimeError(told)))
            raise Refused(told, "trains_failed", 500) from error
        return found

    def _again(self, text: str, retried: bool) -> list[Ask] | None:
        """Returns the first try of a request."""
        earlier = [asks for asks in self._known[text] if not any(one.answer.cancelled() for one in asks)]
        return next((asks for asks in reversed(earlier) if retried or not asks[0].waits()), None)

    def _count(self, asks: list[Ask]) -> None:
        self._open = [one for one in self._open if not all(ask.answer.done() for ask in one)]
        self._parallel = self._parallel or bool(self._open)
        self._open.append(asks)

    def refusal(self, error: Refused) -> Future[Any]:
        """Returns an answer that refuses: later and later to those who go on all the same, so that none spins."""
        self._in_a_row += 1
        answer: Future[Any] = Future()
        if (beyond := self._in_a_row - PATIENCE) <= 0:
            self._refuse(answer, error)
        else:
            timer = threading.Timer(min(0.02 * beyond, LONGEST_WAIT), self._refuse, (answer, error))
            timer.daemon = True
            timer.start()
        return answer

    def note(self, error: Refused) -> None:
        """Keeps a refusal, before its caller knows."""
        self.refused = error
        self.refusals[error.code] += 1

    def _refuse(self, answer: Future[Any], error: Refused) -> None:
        self.note(error)
        settle(answer, error=error)

    def reward(self, value: float, asks: list[Ask] | None, choice: int = 0) -> None:
        """Gives a reward to the turn of a request, by default to the turn answered last.

        Raises:
            ValueError: if it is no turn, or which one was answered last is a matter of chance.
        """
        if asks is None and self._parallel:
            told = "this agent asks in parallel, and reward() is called where none of the answers arrived, so that the "
            raise ValueError(told + "turn is unknown; pass the answer: client.reward(value, answer)")
        found = self.turns[-1:] if asks is None else asks[choice : choice + 1]
        with self._lock:
            if not found or found[0] not in self.turns:
                raise ValueError("reward() needs the answer of a turn, and there is none")
            self.rewards[self.turns.index(found[0])] += value

    def asks_named(self, name: str) -> list[Ask]:
        """Returns the request of a completion's or response's id."""
        place = name.partition("_" if name.startswith(("resp_", "msg_")) else "-")[2].replace("-", "/")
        return next((one.choices for one in self.turns if one.place == place), [])

    def put_end(self, end: End) -> None:
        self._arrivals.put(end)

    @property
    def _waiting(self) -> list[Ask]:
        """The requests that were looked at and have no answer."""
        return [*([self.now] if self.now else []), *self._early]

    def take(self, until: float) -> Ask | None:
        """Waits for the next request, by the clock `time.monotonic`; `None` at the agent's end.

        Raises:
            TimeoutError: if there is neither in time.
        """
        while self._early or self.end is None:
            found = self._early.pop(0) if self._early else self._arrived(until)
            if isinstance(found, End):
                self.end = found
            elif not self.over and self._wanted(found):
                self._place(found)
                return found
        return None

    def _wanted(self, ask: Ask) -> bool:
        with self._lock:  # or its retry would wait for it
            return not ask.answer.cancelled() and (ask.waits() or not ask.answer.cancel())

    def _arrived(self, until: float) -> Ask | End:
        try:
            return self._arrivals.get(timeout=max(until - time.monotonic(), 0.001))
        except queue.Empty:
            late = "did not end after its last turn, so that its reward is unknown; raise last_words, or the time limit"
            told = f"the agent {late if self.over else 'neither asked nor ended in time'}"
            raise TimeoutError(told) from None

    def first_ones(self, until: float) -> list[Ask]:
        """Returns the requests that wait for the episode's first answer, after one more came or the time is over."""
        with suppress(TimeoutError):
            found = self._arrived(until)
            if isinstance(found, End):
                self._arrivals.put(found)
            else:
                self._early.append(found)
        return self._waiting

    def begin_with(self, ask: Ask) -> None:
        """Lets another of the first requests be the opening."""
        self._early = [one for one in self._waiting if one is not ask]
        self._places.clear()
        self.first = None
        self._place(ask)

    def _place(self, ask: Ask) -> None:
        """Finds the turn that a request continues, and its place in the tree of all requests."""
        found = ((number, ask.after(self.turns[number])) for number in reversed(range(len(self.turns))))
        follows, ask.new = next(((number, new) for number, new in found if new is not None), (None, ask.messages))
        before = self.turns[follows].place if follows is not None else ""
        ask.follows = follows if ask.trained else None
        self.first = self.first or (ask if ask.trained else None)
        said = [before, ask.new, ask.tools, ask.trained, *filter(None, [ask.variables])]
        name = json.dumps(said, sort_keys=True, default=str)
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        ask.place = f"{digest}/{self._places[digest]}"
        self._places[digest] += 1
        self.now = ask

    @property
    def _asked(self) -> Ask:
        assert self.now is not None, "an episode has begun"
        return self.now

    def refuse(self, refusal: Refusal) -> None:
        """Refuses the present request."""
        self._refuse(self._asked.answer, Refused(refusal.reason, refusal.code))

    def answer(self, reply: Reply) -> None:
        """Answers the present request."""
        ask = self._asked
        message = _message(reply.action, self.rules.native)
        thinking = message.get("reasoning_content") or message.get("thinking")
        ask.said = plain_message({"content": "", **message, "role": "assistant"})
        ends = [(place, stop) for stop in ask.stop if (place := ask.said["content"].find(stop)) >= 0]
        end, stopped = min(ends, default=(None, None))
        ask.said["content"] = ask.said["content"][:end]
        if ask.trained:
            self.turns.append(ask)
        else:
            self.asides.append({"messages": ask.messages, "response": ask.said})
        functions = [one["function"] for one in ask.said.get("tool_calls", ())]
        texts = [arguments_text(one["arguments"]) for one in functions]
        self._written |= {one for one in texts if not isinstance(arguments_of(one), dict)}
        called = [one["name"] for one in functions][: 1 if ask.single else None]
        if ask.must is not None and not any(ask.must in ("", name) for name in called):
            refusal = f"tool_choice asks for a call{ask.must and ' of ' + ask.must}, and the response has none"
            self._refuse(ask.answer, Refused(refusal, "tool_use_failed", 422))
            return
        self.refused = None
        reason = "length" if reply.truncated else "tool_calls" if called else "stop"
        shown = {**ask.said, **({"reasoning_content": thinking} if thinking else {})}
        if called:
            shown["tool_calls"] = ask.said["tool_calls"][: len(called)]
        counts = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.response_tokens}
        ended = {"finish_reason": reason, "stop_sequence": stopped}
        shown = replaced(shown, [(path, real) for real, path in self.moved])
        settle(ask.answer, {"message": shown, **ended, "usage": counts, "place": ask.place})

    def hang_up(self) -> None:
        """Refuses what is asked, now and later."""
        self.over = True
        with suppress(queue.Empty):
            while True:
                found = self._arrivals.get_nowait()
                if isinstance(found, End):
                    self.end = found
                else:
                    self._early.append(found)
        for one in self._waiting:
            if not one.answer.done():
                self._refuse(one.answer, over())
        self._early = []


def replaced(value: Any, texts: Sequence[tuple[str, str]]) -> Any:
    """Returns JSON with some texts in place of others, wherever they stand in it."""
    if isinstance(value, str):
        for old, new in texts:
            value = value.replace(old, new)
    elif texts and isinstance(value, Mapping):
        return {name: replaced(one, texts) for name, one in value.items()}
    elif texts and isinstance(value, list):
        return [replaced(one, texts) for one in value]
    return value


def settle(future: Future, value: Any = None, error: BaseException | None = None) -> None:
    """Fulfils a future, unless nobody waits for it any more."""
    with suppress(InvalidStateError):
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


def _message(action: str, native: bool) -> dict[str, Any]:
    """Returns a response as a message: in native format the action is what the tokenizer's parser made."""
    if native:
        with suppress(ValueError, RecursionError):
            message = json.loads(action)
            if isinstance(message, dict):
                return message
    return {"content": action}
