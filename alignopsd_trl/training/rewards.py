"""Rewards of episodes through TRL's own reward path, held to be finite numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

from alignopsd_trl import trl_compat
from alignopsd_trl.environments.adapters.waiting import settled
from alignopsd_trl.runs.checkpoints import last_good
from alignopsd_trl.runs.console import show_note
from alignopsd_trl.runs.health import RunStopped, Tally
from alignopsd_trl.runs.rewards import RewardError
from alignopsd_trl.training.compatibility import conversation, is_adapted
from alignopsd_trl.turns import Trajectory


class Rewards(GRPOTrainer):
    """A trainer whose reward functions get finished episodes."""

    def _check_episodes(self, trajectories: Sequence[Trajectory]) -> None:
        tally = Tally.total(gather_object([Tally.of(trajectories)]))
        if tally.failed and self.is_world_process_zero():
            show_note(f"{tally.failed} of {tally.episodes} episodes failed; the first: {tally.message}")
        problem = self._failed_share.problem(tally)
        if problem:
            self._save_last()
            raise RunStopped(f"update {self.state.global_step + 1}: {problem}; {last_good(self.args.output_dir)}")

    def _reward(self, inputs: Sequence[Mapping[str, Any]], trajectories: Sequence[Trajectory]) -> None:
        """Rewards of whole episodes through TRL's own reward path: the environment's, plus the user's functions."""
        prompts = [one.task_text for one in trajectories]
        completions = ["\n".join(turn.response_text for turn in one.turns) for one in trajectories]
        table = self._asked(inputs, trajectories, prompts, completions)
        failed = torch.tensor([one.failed for one in trajectories], device=table.device)
        table[self.accelerator.gather(failed)] = math.nan  # their rewards count nowhere
        self._check_rewards(table)
        weights = self.reward_weights.to(table.device)
        total = (table * weights).nansum(dim=1)
        first, own_weight = self.accelerator.process_index * len(trajectories), self.reward_weights[0].item()
        for one, reward in zip(trajectories, total[first : first + len(trajectories)].tolist(), strict=True):
            one.reward, one.environment_weight = reward, own_weight
            if not self._knows_score:
                one.score = reward
        for column, name in enumerate(self.reward_func_names):
            trl_compat.log_value(self, "train", f"rewards/{name}/mean", torch.nanmean(table[:, column]).item())
        trl_compat.log_value(self, "train", "reward", torch.nanmean(total).item())
        trl_compat.log_samples(self, "prompt", gather_object(prompts))
        trl_compat.log_samples(self, "completion", gather_object(completions))
        for column, name in enumerate(self.reward_func_names):
            trl_compat.log_reward_samples(self, name, table[:, column].tolist())

    @property
    def _knows_score(self) -> bool:
        return not is_adapted(self._environment_factory) or self._environment_factory.knows_score

    def _score(self, trajectories: Sequence[Trajectory]) -> None:
        """Of an evaluation's episodes whose environment has no number of its own: what the reward functions say. They
        are asked on this process alone, since processes may have unequally many episodes."""
        if self._knows_score or not trajectories:
            return
        played, prompts, completions = self._conversations(trajectories)
        rows = [one.row for one in trajectories]
        given = {name: [row[name] for row in rows] for name in rows[0] if name not in ("prompt", "completion")}
        given |= {"prompts": prompts, "completions": completions, "environments": played, "trajectory": trajectories}
        given |= {"completion_ids": [_response_ids(one) for one in trajectories], "trainer_state": self.state}
        given |= {"log_extra": lambda column, values: None, "log_metric": lambda name, value: None}
        totals = [0.0] * len(trajectories)
        for function, weight in zip(self.reward_funcs, self.reward_weights.tolist(), strict=True):
            if hasattr(function, "forward"):  # a reward model, which TRL asks on all processes together
                totals = [math.nan] * len(totals)
                continue
            for place, value in enumerate(settled(function(**given))):
                totals[place] += weight * (value or 0.0)
        for one, total in zip(trajectories, totals, strict=True):
            one.score = total

    def _conversations(self, trajectories: Sequence[Trajectory]) -> tuple[list[Any], list[Any], list[Any]]:
        """The objects that played episodes just now, and prompts and completions as messages."""
        slots = self._environments().environment
        played = [None if one.failed else slots(place) for place, one in enumerate(trajectories)]
        pairs = [conversation(one, environment) for one, environment in zip(trajectories, played, strict=True)]
        prompts, completions = map(list, zip(*pairs, strict=True))
        return [getattr(one, "environment", None) for one in played], prompts, completions

    def _asked(
        self,
        inputs: Sequence[Mapping[str, Any]],
        trajectories: Sequence[Trajectory],
        prompts: Sequence[Any],
        completions: Sequence[Any],
    ) -> torch.Tensor:
        """``(trajectories of all processes, functions)``, NaN where a function gave none. What was written for TRL's
        tool classes is handed messages and the environments themselves."""
        rows = [{**row, "trajectory": one} for row, one in zip(inputs, trajectories, strict=True)]
        ids = [_response_ids(one) for one in trajectories]
        if is_adapted(self._environment_factory):
            self.environments, prompts, completions = self._conversations(trajectories)
        return trl_compat.rewards(self, rows, list(prompts), list(completions), ids)

    def _check_rewards(self, table: torch.Tensor) -> None:
        """Ends the run, on all processes, for a reward that is no finite number."""
        problem, silent = self._reward_check.take()
        problems = [one for one in gather_object([problem]) if one]
        for column, row in (torch.isinf(table).T.nonzero()[:1]).tolist():
            name = self.reward_func_names[column]
            problems.append(f"reward function {name!r} returned {table[row, column]} for row {row} of all processes")
        if problems:
            raise RewardError(f"update {self.state.global_step + 1}: {problems[0]}")
        for name, count in silent.items():
            trl_compat.log_value(self, "train", f"rewards/{name}/none", count)


def _response_ids(trajectory: Trajectory) -> list[int]:
    return [token for turn in trajectory.turns for token in turn.response_ids]
