"""Clients of OpenEnv as environments, by duck typing: `reset` and `step` give ``observation``, ``reward``, ``done``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from alignopsd_trl.environments.adapters.actions import ActionForm, ActionRefused
from alignopsd_trl.environments.adapters.adapted import AdaptedEnvironment, columns_for
from alignopsd_trl.environments.adapters.rows import messages_of
from alignopsd_trl.environments.adapters.showing import shown_observation
from alignopsd_trl.environments.adapters.types import is_address
from alignopsd_trl.environments.adapters.waiting import EventLoop
from alignopsd_trl.environments.base import Ending, Opening, Projection, Record, Step, View
from alignopsd_trl.environments.batch import guarded
from alignopsd_trl.environments.declared import name_of
from alignopsd_trl.environments.plain import action_in

_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL | re.IGNORECASE)
_RULES = """\
Think between <think> and </think>. Then give one action between <action> and </action>."""


@dataclass(frozen=True)
class EpisodeTask:
    """The task and what was done, as the prompt of an episode needs them."""

    messages: tuple[Mapping[str, Any], ...]
    form: ActionForm


class OpenEnvPrompt:
    """Renders the last user message: the task, the skill, past actions, the observation, and the form of actions."""

    name = "openenv"
    native = False

    def render(self, view: View, skill: str = "") -> str | list[Mapping[str, Any]]:
        *before, last = view.context.messages
        past = "\n".join(["What you did so far:", *map(_turn, view.history)]) if view.history else ""
        now = f"Now:\n{view.observation}" if view.observation else ""
        parts = [last["content"].strip(), skill, past, now, f"{_RULES} {view.context.form.described}".strip()]
        text = "\n\n".join(filter(None, parts))
        return [*before, {**last, "content": text}] if before or last["role"] != "user" else text

    def reply(self, view: View) -> str:
        return view.observation


def _turn(record: Record) -> str:
    return f"{record.observation}\n<action>{record.action}</action>"


class OpenEnvEnvironment(AdaptedEnvironment):
    """Plays a client of OpenEnv. A call of such an object makes another one like it, so that it is a factory as well.

    A client is opened when an episode first needs it, used for one episode after another, and closed when it fails or
    the run ends. An error of `step` ends the episode, as with any environment. But if the server refuses the action's
    form, the policy gets ``{"error": ...}`` and the turn counts as invalid.

    Args:
        connect (`Callable[[], Any]`):
            Makes a client without arguments: sync or async, connected or not.
        act (`Callable[[str], Any]`, *optional*):
            The text between ``<action>`` tags -> the argument of the client's `step`. By default the text is JSON with
            the fields of the client's action class, or plain text if that class has one required field.
        show (`Callable[[Any], str]`, *optional*):
            An observation -> text. By default its fields but ``done``, ``reward`` and ``metadata``, one per line.
        reward (`str`):
            The episode's reward: the ``"sum"`` of all steps' rewards, or the ``"last"`` one. It depends on the
            environment.
        success (`Callable[[Any, float], bool | None]`, *optional*):
            The last result of `step` and the episode's reward -> whether it was won. By default that is unknown, and
            evaluations report the score alone.
        max_turns (`int`, *optional*, defaults to 50):
            Turns of an episode at most.
        history_length (`int`, *optional*, defaults to 8):
            Past turns that the prompt shows at most.

    Raises:
        ValueError: for another ``reward`` than these two.
        TypeError: if ``connect`` is not callable.
    """

    prompt = OpenEnvPrompt()
    concurrent = True  # clients wait for their servers
    takes_dynamics_seed = True  # passed to a client whose `reset` names it

    def __init__(
        self,
        connect: Callable[[], Any],
        act: Callable[[str], Any] | None = None,
        show: Callable[[Any], str] | None = None,
        reward: str | None = None,
        success: Callable[[Any, float], bool | None] | None = None,
        *,
        max_turns: int = 50,
        history_length: int = 8,
    ):
        if not callable(connect):
            raise TypeError(f"connect must be a callable without arguments that makes a client, got {connect!r:.80}")
        if reward not in ("sum", "last"):
            raise ValueError(
                f"reward={reward!r}: say how the steps' rewards make the episode's: 'sum' adds them up, 'last' takes "
                "that of the last step"
            )
        self.options = dict(connect=connect, act=act, show=show, reward=reward, success=success)
        self.options |= dict(max_turns=max_turns, history_length=history_length)
        self._connect, self._act, self._show = connect, act, show or shown_observation
        self._sums, self._success = reward == "sum", success
        self.max_turns, self.history_length = max_turns, history_length
        self.messages: list[dict[str, Any]] = []
        self._loop = EventLoop()

    @property
    def __name__(self) -> str:
        made_by = getattr(self._connect, "func", self._connect)  # of a functools.partial
        return name_of(made_by)

    def reset(self, **row: Any) -> Opening:
        self.messages = messages_of(row)
        result = self._begin(row)
        self._total = self._last = 0.0
        self._result = result
        seen = self._text(result)
        return Opening(
            observation=seen,
            task_text=self.messages[-1]["content"].strip() or seen,
            category=str(row.get("category") or ""),
            context=EpisodeTask(tuple(self.messages), self._form),
        )

    def _begin(self, row: Mapping[str, Any]) -> Any:
        """Starts an episode. A kept client that has lost its server is opened anew."""
        if self.environment is not None:
            try:
                return self._reset(row)
            except Exception:  # of any kind: a new client decides, and raises its own
                guarded(self.close)
        self.environment = self._loop.settled(self._connect())
        result = self._reset(row)
        self._form = ActionForm.of(self.environment, self._act)
        return result

    def _reset(self, row: Mapping[str, Any]) -> Any:
        reset = self.environment.reset
        given = columns_for(row, inspect.signature(reset).parameters, {"prompt", "category"})
        return _checked(self._loop.settled(reset(**given)), "reset")

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        thought = _THOUGHT.match(response)
        return action_in(response, thought.end() if thought else 0)

    def step(self, action: str) -> Step:
        try:
            if not action:
                raise ActionRefused("there is no <action>...</action> in the answer")
            made = self._form.read(action)
            result = _checked(self._sent(made), "step")
        except ActionRefused as error:
            return Step(str({"error": str(error)}), won=None, score=self._reward, valid=False)
        earned = _earned(result)
        self._total, self._last, self._result = self._total + earned, earned, result
        return Step(
            self._text(result),
            reward=earned if self._sums else 0.0,
            done=bool(result.done),
            won=None,
            score=self._reward,
        )

    def _sent(self, action: Any) -> Any:
        try:
            return self._loop.settled(self.environment.step(action))
        except Exception as error:
            if "VALIDATION_ERROR" in str(error):  # the code of OpenEnv's protocol for an action of the wrong form
                raise ActionRefused(str(error)) from error
            raise

    @property
    def _reward(self) -> float:
        return self._total if self._sums else self._last

    def _text(self, result: Any) -> str:
        if self._show is shown_observation and is_address(result.observation):
            raise TypeError(f"the observation {result.observation!r:.80} has a part without text; give show=...")
        text = self._show(result.observation)
        if not isinstance(text, str):
            raise TypeError(f"show(observation) returned {text!r:.80} ({type(text).__name__}); return a str")
        return text

    def finish(self) -> Ending:
        won = self._success(self._result, self._reward) if self._success is not None else None
        return Ending(reward=0.0 if self._sums else self._last, won=won, score=self._reward)

    def close(self) -> None:
        client, self.environment = self.environment, None
        try:
            if client is not None and callable(getattr(client, "close", None)):
                self._loop.settled(client.close())
        finally:
            self._loop.stop()


def _earned(result: Any) -> float:
    reward = getattr(result, "reward", None)
    try:
        return float(reward or 0.0)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"the reward of the client's step() is {reward!r:.80} ({type(reward).__name__}), no number"
        ) from None


def _checked(result: Any, call: str) -> Any:
    if not hasattr(result, "observation") or not hasattr(result, "done"):
        shown = f"{result!r:.80} ({type(result).__name__})"
        raise TypeError(f"the client's {call}() returned {shown}, which has no observation and done")
    return result
