"""Terminal rewards of episodes through TRL's own reward path, held to be finite numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

from alignopsd_trl.policy import seams
from alignopsd_trl.runs.checkpoints import last_good
from alignopsd_trl.runs.console import show_note
from alignopsd_trl.runs.health import RunStopped, Tally
from alignopsd_trl.runs.rewards import RewardError
from alignopsd_trl.training.adapting import conversation, is_adapted
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
        """Terminal rewards through TRL's own reward path: the environment's, plus the user's functions."""
        prompts = [one.task_text for one in trajectories]
        completions = ["\n".join(turn.response_text for turn in one.turns) for one in trajectories]
        table = self._asked(inputs, trajectories, prompts, completions)
        failed = torch.tensor([one.failed for one in trajectories], device=table.device)
        table[self.accelerator.gather(failed)] = math.nan  # their rewards count nowhere
        self._check_rewards(table)
        weights = self.reward_weights.to(table.device)
        total = (table * weights).nansum(dim=1)
        first = self.accelerator.process_index * len(trajectories)
        for one, reward in zip(trajectories, total[first : first + len(trajectories)].tolist(), strict=True):
            one.reward = reward
        for column, name in enumerate(self.reward_func_names):
            seams.log_value(self, "train", f"rewards/{name}/mean", torch.nanmean(table[:, column]).item())
        seams.log_value(self, "train", "reward", torch.nanmean(total).item())
        seams.log_samples(self, "prompt", gather_object(prompts))
        seams.log_samples(self, "completion", gather_object(completions))
        for column, name in enumerate(self.reward_func_names):
            seams.log_reward_samples(self, name, table[:, column].tolist())

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
        ids = [[token for turn in one.turns for token in turn.response_ids] for one in trajectories]
        if is_adapted(self._environment_factory):
            played = [None if one.failed else self._environments().environment(s) for s, one in enumerate(trajectories)]
            self.environments = [getattr(one, "environment", None) for one in played]
            pairs = [conversation(one, environment) for one, environment in zip(trajectories, played, strict=True)]
            prompts, completions = zip(*pairs, strict=True)
        return seams.rewards(self, rows, list(prompts), list(completions), ids)

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
            seams.log_value(self, "train", f"rewards/{name}/none", count)
