"""Rewards episodes through TRL's own reward path, with finite numbers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from trl.trainer.utils import nanstd

from alignopsd_trl.checks.trainer import conversation
from alignopsd_trl.common.errors import RunEnded
from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.common.progress import cut
from alignopsd_trl.environments.adapters import AdaptedEnvironment
from alignopsd_trl.environments.adapters.waiting import settled
from alignopsd_trl.environments.base import UNREWARDED
from alignopsd_trl.training.rollouts import Rollouts
from alignopsd_trl.turns import Trajectory

if TYPE_CHECKING:
    from alignopsd_trl.training.trl_policy import TrainedPolicy, TrainerLog


def environment_reward(trajectory: Sequence[Trajectory], **columns: Any) -> list[float | None]:
    """Returns the environment's own terminal reward, ``None`` where it failed. It is the first reward function of every
    run."""
    return [None if one.failed else one.reward for one in trajectory]


@dataclass(eq=False)
class Rewards:
    """Sets the reward of finished episodes: the environment's own, plus the user's functions.

    Args:
        policy: calls the reward functions through TRL's own path.
        functions, names, weights: of the reward functions, in TRL's order.
    """

    policy: TrainedPolicy
    functions: Sequence[Callable]
    names: Sequence[str]
    weights: torch.Tensor
    check: RewardCheck
    rollouts: Rollouts
    processes: ProcessGroup
    log: TrainerLog

    def give(self, inputs: Sequence[Mapping[str, Any]], trajectories: Sequence[Trajectory], update: int) -> None:
        """Sets `Trajectory.reward`, and `Trajectory.score` where the environment has no score of its own.

        Raises:
            RewardError: on all processes, for a reward that is no finite number.
        """
        prompts = [one.task_text for one in trajectories]
        completions = ["\n".join(turn.response_text for turn in one.turns) for one in trajectories]
        rows = [{**row, "trajectory": one} for row, one in zip(inputs, trajectories, strict=True)]
        environments, asked = None, (prompts, completions)
        if isinstance(self.rollouts.factory, AdaptedEnvironment):  # functions for TRL's tool classes get messages
            environments, *asked = self._conversations(trajectories)
        table = self.policy.rewards(rows, *asked, [_response_ids(one) for one in trajectories], environments)
        failed = [one for part in self.processes.each([one.failed for one in trajectories]) for one in part]
        table[torch.tensor(failed, dtype=torch.bool, device=table.device)] = math.nan  # they count nowhere
        self._refuse_wrong(table, trajectories, update)
        total = (table * self.weights.to(table.device)).nansum(dim=1)
        first, own_weight = self.processes.process * len(trajectories), self.weights[0].item()
        for one, reward in zip(trajectories, total[first : first + len(trajectories)].tolist(), strict=True):
            one.reward, one.environment_weight = reward, own_weight
            if not self._knows_score:
                one.score = reward
        for name, values in zip(self.names, table.T, strict=True):
            self.log.reward_samples(name, values.tolist())
        for name, value in reward_figures(table, total, self.names, self.rollouts.config.num_generations).items():
            self.log.value(name, value)
        self.log.samples("prompt", gather_object(prompts))
        self.log.samples("completion", gather_object(completions))

    def score(self, trajectories: Sequence[Trajectory]) -> None:
        """Sets the score of an evaluation's episodes to the sum of the reward functions, where the environment has no
        score of its own. Each process calls it by itself: they may have different numbers of episodes."""
        if self._knows_score or not trajectories:
            return
        played, prompts, completions = self._conversations(trajectories)
        rows = [one.row for one in trajectories]
        given: dict[str, Any] = {
            name: [row[name] for row in rows] for name in rows[0] if name not in ("prompt", "completion")
        }
        given |= {"prompts": prompts, "completions": completions, "environments": played, "trajectory": trajectories}
        given |= {"completion_ids": [_response_ids(one) for one in trajectories], "trainer_state": self.policy.state}
        given |= {"log_extra": lambda column, values: None, "log_metric": lambda name, value: None}
        totals = [0.0] * len(trajectories)
        for function, weight in zip(self.functions, self.weights.tolist(), strict=True):
            if hasattr(function, "forward"):  # a reward model, which TRL calls on all processes together
                totals = [math.nan] * len(totals)
                continue
            for place, value in enumerate(settled(function(**given))):
                totals[place] += weight * (value or 0.0)
        for one, total in zip(trajectories, totals, strict=True):
            one.score = total

    @property
    def _knows_score(self) -> bool:
        factory = self.rollouts.factory
        return not isinstance(factory, AdaptedEnvironment) or factory.knows_score

    def _conversations(self, trajectories: Sequence[Trajectory]) -> tuple[list[Any], list[Any], list[Any]]:
        """Returns the environments that just played, and prompts and completions as messages."""
        slots = self.rollouts.environments.environment
        played = [None if one.failed else slots(place) for place, one in enumerate(trajectories)]
        pairs = [conversation(one, environment) for one, environment in zip(trajectories, played, strict=True)]
        prompts, completions = map(list, zip(*pairs, strict=True))
        return [getattr(one, "environment", None) for one in played], prompts, completions

    def _refuse_wrong(self, table: torch.Tensor, trajectories: Sequence[Trajectory], update: int) -> None:
        problem, silent = self.check.take()
        played = [one for one in trajectories if one.turns and not one.failed]
        nothing = all(one.turns[-1].info.get(UNREWARDED) and not one.reward for one in played)
        found = gather_object([(problem, not played, nothing)])
        problems = [one for one, _, _ in found if one]
        if len(self.functions) == 1 and all(none for _, _, none in found) and not all(empty for _, empty, _ in found):
            problems.append("the agent returned no reward; return a number, 0.0 for none, or pass reward_funcs")
        for column, row in (torch.isinf(table).T.nonzero()[:1]).tolist():
            name = self.names[column]
            problems.append(f"reward function {name!r} returned {table[row, column]} for row {row} of all processes")
        if problems:
            raise RewardError(f"update {update + 1}: {problems[0]}")
        for name, count in silent.items():
            self.log.value(f"rewards/{name}/none", count)


def reward_figures(table: torch.Tensor, total: torch.Tensor, names: Sequence[str], siblings: int) -> dict[str, float]:
    """Returns TRL's figures of rewards ``(episodes, functions)``, NaN for none, and of their weighted sums, over the
    episodes with any reward; ``siblings`` of them side by side are a group."""
    counted = total.masked_fill(table.isnan().all(dim=1), math.nan)
    spread = nanstd(counted.view(-1, siblings), dim=1)
    found = {"reward": counted.nanmean(), "reward_std": nanstd(counted)}
    found["frac_reward_zero_std"] = spread.isclose(spread.new_zeros(())).float()[~spread.isnan()].mean()
    for name, values in zip(names, table.T, strict=True):
        found |= {f"rewards/{name}/mean": values.nanmean(), f"rewards/{name}/std": nanstd(values)}
    return {name: value.item() for name, value in found.items()}


def _response_ids(trajectory: Trajectory) -> list[int]:
    return [token for turn in trajectory.turns for token in turn.response_ids]


# The values that functions return


class RewardError(RunEnded):
    """Raised for a reward that can't be trained on. The message names function, episode and value."""


class RewardCheck:
    """Checks the values that reward functions, which are the user's code, return, before they become a gradient.

    Each function is called on the episodes that their environment did not fail, and must return one finite number per
    episode, or `None` for no reward (TRL's convention), which is counted. Any other value ends the run, on all
    processes, with the function, the episode and the value.
    """

    def __init__(self) -> None:
        self._problem: str | None = None
        self._silent: dict[str, int] = {}

    def take(self) -> tuple[str | None, dict[str, int]]:
        """Returns the problem, and how often each function returned `None`, since the last call."""
        taken = self._problem, self._silent
        self._problem, self._silent = None, {}
        return taken

    def wrap(self, function: Any) -> Any:
        """Returns the function with a check of its values; a model or its name, which TRL calls, stays as it is."""
        if isinstance(function, str) or not callable(function) or hasattr(function, "forward"):
            return function
        inner = function
        while isinstance(inner, partial):
            inner = inner.func
        name = getattr(inner, "__name__", type(inner).__name__)
        checks = partial(self._checked, name)
        if inspect.iscoroutinefunction(inspect.unwrap(inner)) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 (an instance whose call is a coroutine function)
        ):

            async def wrapped(**given: Any) -> list[float | None]:
                usable, part = _usable(given)
                return checks(given, usable, await function(**part) if usable else [])
        else:

            def wrapped(**given: Any) -> list[float | None]:
                usable, part = _usable(given)
                return checks(given, usable, function(**part) if usable else [])

        wrapped.__name__ = name
        return wrapped

    def _checked(self, name: str, given: Mapping[str, Any], usable: Sequence[int], answer: Any) -> list[float | None]:
        """Returns one number per episode; 0 for one that its environment failed, which is left out of everything."""
        trajectories = given["trajectory"]
        rewards: list[float | None] = [0.0] * len(trajectories)
        values = _listed(answer)
        if values is None or len(values) != len(usable):
            shape = f"{len(values)} values" if values is not None else f"{answer!r:.80} ({type(answer).__name__})"
            self._report(
                f"reward function {name!r} returned {shape} for {len(usable)} episodes; return a list with one "
                "finite number (or None) per episode"
            )
            return rewards
        for place, value in zip(usable, values, strict=True):
            rewards[place] = self._number(name, place, trajectories[place], value)
        return rewards

    def _number(self, name: str, place: int, trajectory: Any, value: Any) -> float | None:
        if value is None:
            self._silent[name] = self._silent.get(name, 0) + 1
            return None
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            value = value.item()
        if isinstance(value, Real) and math.isfinite(value):
            return float(value)
        self._report(
            f"reward function {name!r} returned {cut(repr(value), 80)} ({type(value).__name__}) for row {place}, task "
            f"{trajectory.task!r}, rollout {trajectory.rollout}; return a finite number, or None where there is none"
        )
        return 0.0

    def _report(self, problem: str) -> None:
        self._problem = self._problem or problem


def _usable(given: Mapping[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Returns the indices of the episodes that did not fail, and the arguments reduced to these."""
    trajectories = given["trajectory"]
    count = len(trajectories)
    places = [place for place, one in enumerate(trajectories) if not one.failed]
    if len(places) == count:
        return places, dict(given)

    def spread(column: str, values: Sequence[Any]) -> None:
        full: list[Any] = [None] * count
        for place, value in zip(places, values, strict=True):
            full[place] = value
        given["log_extra"](column, full)

    part = {
        name: [value[place] for place in places] if isinstance(value, list) and len(value) == count else value
        for name, value in given.items()
    }
    return places, part | ({"log_extra": spread} if "log_extra" in given else {})


def _listed(answer: Any) -> list[Any] | None:
    if hasattr(answer, "tolist") and getattr(answer, "ndim", 0) == 1:
        return answer.tolist()
    return list(answer) if isinstance(answer, Sequence) and not isinstance(answer, str | bytes) else None
