"""The requests of one episode, in the order in which they are answered."""

from __future__ import annotations

import hashlib
import json
import queue
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from alignopsd_trl.environments.adapters.agents.requests import Ask, Body, Refused, Rules, asks_of, plain_message
from alignopsd_trl.environments.base import Reply

OVER = Refused("the episode is over", "episode_over", 403)


class End:
    """The agent's end: its result, or what it raised."""

    def __init__(self, result: Any = None, error: BaseException | None = None):
        self.result, self.error = result, error


class Line:
    """Queues the requests of an episode; the context of its prompts.

    Attributes:
        now: the request to answer.
        turns: the answered requests that are turns.
        asides: requests and responses that are not trained, since the last turn.
        end: of the agent, once it has ended.
    """

    def __init__(self, row: Mapping[str, Any], rules: Rules):
        self.row, self.rules = row, rules
        self.now: Ask | None = None
        self.turns: list[Ask] = []
        self.asides: list[dict[str, Any]] = []
        self.end: End | None = None
        self.reward = 0.0
        self._arrivals: queue.SimpleQueue[Ask | End] = queue.SimpleQueue()
        self._early: list[Ask] = []  # looked at, not yet answered
        self._places: Counter[str] = Counter()
        self._known: dict[str, list[Ask]] = {}
        self._over = False

    @property
    def error(self) -> BaseException | None:
        """What the agent raised at its end."""
        return self.end.error if self.end is not None else None

    @property
    def tools(self) -> list[Any]:
        """The tools of the request, which the reader of responses asks its context for."""
        return self.now.tools if self.now else []

    def ask(self, body: Body, trained: bool = True, retried: bool = False) -> list[Ask]:
        """Queues a request; one that is retried gets the answer of its first try.

        Raises:
            Refused: for what can't be answered, and after the episode's end.
        """
        if self._over:
            raise OVER
        text = json.dumps(body, sort_keys=True, default=str)
        if retried and text in self._known:
            return self._known[text]
        asks = self._known[text] = asks_of(body, self.rules, trained)
        for one in asks:
            self._arrivals.put(one)
            if self._over:  # since it was looked at
                settle(one.answer, error=OVER)
        return asks

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
            elif not found.answer.cancelled():
                self._place(found)
                return found
        return None

    def _arrived(self, until: float) -> Ask | End:
        try:
            return self._arrivals.get(timeout=max(until - time.monotonic(), 0.001))
        except queue.Empty:
            raise TimeoutError("the agent neither asked nor ended in time") from None

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
        self._place(ask)

    def _place(self, ask: Ask) -> None:
        """Finds the turn that a request continues, and its place in the tree of all requests."""
        found = ((number, ask.after(self.turns[number])) for number in reversed(range(len(self.turns))))
        follows, ask.new = next(((number, new) for number, new in found if new is not None), (None, ask.messages))
        before = self.turns[follows].place if follows is not None else ""
        ask.follows = follows if ask.trained else None
        name = json.dumps([before, ask.new, ask.tools, ask.trained], sort_keys=True, default=str)
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        ask.place = f"{digest}/{self._places[digest]}"
        self._places[digest] += 1
        self.now = ask

    def answer(self, reply: Reply) -> None:
        """Answers the present request."""
        ask = self.now
        assert ask is not None, "an episode has begun"
        if reply.error:
            settle(ask.answer, error=Refused(str(reply), reply.error))
            return
        message = _message(reply, self.rules.native)
        thinking = message.get("reasoning_content") or message.get("thinking")
        ask.said = plain_message({"content": "", **message, "role": "assistant"})
        ends = [place for stop in ask.stop if (place := ask.said["content"].find(stop)) >= 0]
        ask.said["content"] = ask.said["content"][: min(ends, default=None)]
        if ask.trained:
            self.turns.append(ask)
        else:
            self.asides.append({"messages": ask.messages, "response": ask.said})
        called = [one["function"]["name"] for one in ask.said.get("tool_calls", ())]
        if ask.must is not None and not any(ask.must in ("", name) for name in called):
            refusal = f"tool_choice asks for a call{ask.must and ' of ' + ask.must}, and the response has none"
            settle(ask.answer, error=Refused(refusal, "tool_use_failed", 422))
            return
        reason = "length" if reply.truncated else "tool_calls" if called else "stop"
        shown = {**ask.said, **({"reasoning_content": thinking} if thinking else {})}
        counts = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.response_tokens}
        settle(ask.answer, {"message": shown, "finish_reason": reason, "usage": counts, "place": ask.place})

    def hang_up(self) -> None:
        """Refuses what is asked, now and later."""
        self._over = True
        with suppress(queue.Empty):
            while True:
                found = self._arrivals.get_nowait()
                if isinstance(found, End):
                    self.end = found
                else:
                    self._early.append(found)
        for one in self._waiting:
            settle(one.answer, error=OVER)
        self._early = []


def settle(future: Future, value: Any = None, error: BaseException | None = None) -> None:
    """Fulfils a future, unless nobody waits for it any more."""
    with suppress(InvalidStateError):
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


def _message(reply: Reply, native: bool) -> dict[str, Any]:
    """Returns a response as a message: in native format the action is what the tokenizer's parser made."""
    if native:
        with suppress(ValueError):
            found = json.loads(reply)
            if isinstance(found, dict):
                return found
    return {"content": str(reply)}
