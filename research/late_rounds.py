"""What rounds that are played with older weights do to learning, without a server: a recipe whose episodes are sampled
with the weights of the round before, as in the worst case of `rounds_ahead`, or with the present ones.

    python -m research.late_rounds searchqa_hops --late 1 --seeds 0 1 2 3 --output late.json -- --rounds 12 \
        --tasks_per_round 4 --learning_rate 2e-4 --panel test --panel_limit 160 --method align_opsd

Either way the policy's side is scored anew and TRL's correction for the sampler is on; thinking and teacher have the
present weights. It reaches into the trainer's parts, so it goes with this version of the package.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from alignopsd_trl import trainer as trainer_module
from alignopsd_trl.common.patched import patched
from alignopsd_trl.launch.recipe import main as recipe
from alignopsd_trl.sampling.backend import Snapshot, TeacherSampler
from alignopsd_trl.scoring.teacher import TeacherWeights
from alignopsd_trl.training.trl_policy import TrainedPolicy


class LatePolicy(TrainedPolicy):
    """A policy that did not sample its round itself."""

    scores_as_sampled, needs_old_log_probs = False, True


class LateTrainer(trainer_module.AlignOPSDTrainer):
    """Samples a round with the weights of the round ``late`` rounds before, 0 or 1."""

    late = 1

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.older = TeacherWeights(self.model)
        policy = self.scorer.trained = self.row_maker.policy = LatePolicy(self)
        self.samplers.snapshot = self._late_snapshot
        sampling, self.ratios = policy.sampling_columns, []

        def corrected(batch: Any, log: Any) -> Any:
            with patched(self, use_vllm=True):
                columns = sampling(batch, log)
            kept = columns["importance_sampling_ratio"].expand_as(batch.policy_mask)[batch.policy_mask]
            self.ratios.append({"mean": float(kept.mean()), "masked": float((kept == 0).float().mean())})
            return columns

        policy.sampling_columns = corrected

    @contextlib.contextmanager
    def _late_snapshot(self) -> Generator[Snapshot]:
        if not self.late:
            self.older = TeacherWeights(self.model)
        with self.backend.prefixes(2) as old, self.backend.prefixes(2) as own:
            sampler = self.backend.sampler(self.temperature, self.max_completion_length, old)
            yield Snapshot(TeacherSampler(sampler, self.older.in_place), self.samplers.thinker(own))
        self.older = TeacherWeights(self.model)

    def compute_loss(self, *arguments: Any, **options: Any) -> Any:
        with patched(self, use_vllm=True):
            return super().compute_loss(*arguments, **options)


def main() -> None:
    place = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--late", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--output", type=Path, required=True, help="JSON file; what it has already is not run again")
    given = parser.parse_args(sys.argv[1:place])
    found = (
        json.loads(given.output.read_text()) if given.output.is_file() else {"command": " ".join(sys.argv), "runs": []}
    )
    trainers: list[LateTrainer] = []

    class Kept(LateTrainer):
        def __init__(self, *arguments: Any, **options: Any):
            super().__init__(*arguments, **options)
            trainers.append(self)

    trainer_module.AlignOPSDTrainer = Kept
    for seed in given.seeds:
        for late in given.late:
            if any((one["seed"], one["late"]) == (seed, late) for one in found["runs"]):
                continue
            LateTrainer.late = late
            folder = given.output.with_suffix("") / f"{given.recipe}_{late}_{seed}"
            argv = [*sys.argv[place + 1 :], "--seed", str(seed), "--output_dir", str(folder), "--overwrite_output_dir"]
            after = recipe(given.recipe, argv)["after"]
            run = {"seed": seed, "late": late, "success": after["success"]["mean"], "ratios": trainers[-1].ratios}
            found["runs"].append(run)
            given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(run["late"], run["seed"], run["success"], flush=True)


if __name__ == "__main__":
    main()
