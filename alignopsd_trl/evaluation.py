"""Plays a fixed panel with a policy and says how it went: success and score, per category, with 95 % intervals.

    python -m alignopsd_trl.evaluation --model PATH --environment webshop --panel test [--skills]

No trainer involved. The same panel (its checksum is in every result) on any machine.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from scipy import stats

from alignopsd_trl.rollout import Player, Renderer, SkillSource, episode_seed, no_skills
from alignopsd_trl.turns import Trajectory
from environments.base import TextEnvironment, load, open_batch
from environments.panel import TaskPanel

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Outcome:
    """What an evaluation keeps of one episode."""

    task_id: str
    category: str
    won: bool
    score: float
    turns: int
    invalid_actions: int
    stop: str

    @classmethod
    def of(cls, trajectory: Trajectory) -> Outcome:
        return cls(
            task_id=trajectory.row["task_id"],
            category=trajectory.category or str(trajectory.row.get("category", "")),
            won=trajectory.won,
            score=float(trajectory.score),
            turns=len(trajectory.turns),
            invalid_actions=sum(not turn.action_valid for turn in trajectory.turns),
            stop=trajectory.stop.value if trajectory.stop else "",
        )


@dataclass(frozen=True)
class Estimate:
    """A mean in percent with its 95 % interval."""

    mean: float
    low: float
    high: float
    episodes: int


def success_rate(won: Sequence[bool]) -> Estimate:
    """Share of episodes won, with the Wilson interval."""
    test = stats.binomtest(sum(won), len(won))
    low, high = test.proportion_ci(0.95, method="wilson")
    return Estimate(100 * test.statistic, 100 * low, 100 * high, len(won))


def mean_score(scores: Sequence[float]) -> Estimate:
    """Mean of the environment's own numbers, with Student's interval (none for fewer than two episodes)."""
    count, mean = len(scores), math.fsum(scores) / len(scores)
    spread = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / (count - 1)) if count > 1 else math.nan
    half = float(stats.t.ppf(0.975, count - 1)) * spread / math.sqrt(count) if count > 1 else math.nan
    return Estimate(100 * mean, 100 * (mean - half), 100 * (mean + half), count)


@dataclass(frozen=True)
class EvaluationResult:
    """One panel played once.

    ``success`` and ``score`` weigh every task alike; ``success_macro`` weighs every category alike. A category without
    tasks is absent. An episode that its environment failed counts as not won, and ``environment_errors`` counts it.
    """

    environment: str
    panel: str
    checksum: str
    episodes: int
    skills: bool
    temperature: float
    seed: int
    success: Estimate
    score: Estimate
    success_macro: float
    categories: dict[str, dict[str, Estimate]]
    turns: float
    invalid_actions: float
    environment_errors: int
    outcomes: tuple[Outcome, ...]

    def to_dict(self, outcomes: bool = False) -> dict[str, Any]:
        content = asdict(self)
        if not outcomes:
            del content["outcomes"]
        return content

    def table(self) -> str:
        """Plain text: one line a category, then all."""
        lines = [f"{'':<16}{'success %':>22}{'score %':>22}{'episodes':>10}"]
        rows = {**self.categories, "all": {"success": self.success, "score": self.score}}
        for name, row in rows.items():
            lines.append(
                f"{name:<16}{_shown(row['success']):>22}{_shown(row['score']):>22}{row['success'].episodes:>10}"
            )
        lines.append(
            f"panel {self.panel} of {self.environment}, checksum {self.checksum}, "
            f"skills {'in the prompt' if self.skills else 'no'}, temperature {self.temperature:g}, seed {self.seed}, "
            f"{self.turns:.1f} turns an episode, {100 * self.invalid_actions:.1f} % invalid actions, "
            f"macro success {self.success_macro:.1f} %"
        )
        return "\n".join(lines)


def _shown(estimate: Estimate) -> str:
    return f"{estimate.mean:.1f} [{estimate.low:.1f}, {estimate.high:.1f}]"


def summarise(
    panel: TaskPanel, outcomes: Sequence[Outcome], *, skills: bool, temperature: float, seed: int
) -> EvaluationResult:
    """Outcomes of a whole panel, in any order, to a result in the panel's order.

    Raises:
        ValueError: if a task of the panel is missing or was played twice.
    """
    by_id = {outcome.task_id: outcome for outcome in outcomes}
    if len(by_id) != len(outcomes) or set(by_id) != set(panel.task_ids):
        raise ValueError(
            f"panel {panel.name!r} has {len(panel)} tasks, {len(outcomes)} outcomes do not cover them once"
        )
    ordered = tuple(by_id[task_id] for task_id in panel.task_ids)
    groups: dict[str, list[Outcome]] = {}
    for outcome in sorted(ordered, key=lambda outcome: outcome.category):
        groups.setdefault(outcome.category, []).append(outcome)
    categories = {
        name: {"success": success_rate([o.won for o in group]), "score": mean_score([o.score for o in group])}
        for name, group in groups.items()
    }
    turns = sum(outcome.turns for outcome in ordered)
    return EvaluationResult(
        environment=panel.environment,
        panel=panel.name,
        checksum=panel.checksum,
        episodes=len(ordered),
        skills=skills,
        temperature=temperature,
        seed=seed,
        success=success_rate([outcome.won for outcome in ordered]),
        score=mean_score([outcome.score for outcome in ordered]),
        success_macro=sum(row["success"].mean for row in categories.values()) / len(categories),
        categories=categories,
        turns=turns / len(ordered),
        invalid_actions=sum(outcome.invalid_actions for outcome in ordered) / max(turns, 1),
        environment_errors=sum(outcome.stop == "environment error" for outcome in ordered),
        outcomes=ordered,
    )


class ModelGenerator:
    """A transformers model as a `Generate`: left-padded batches, sampling at a temperature (0: greedy)."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        temperature: float,
        max_tokens: int,
        batch_size: int = 64,
    ):
        self._model, self._tokenizer, self._batch_size = model, tokenizer, batch_size
        declared = model.generation_config.eos_token_id
        declared = [] if declared is None else declared if isinstance(declared, list) else [declared]
        self.end_ids = sorted({tokenizer.eos_token_id, *declared})
        sampled = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        self._options = (sampled if temperature > 0 else {"do_sample": False}) | {
            "max_new_tokens": max_tokens,
            "eos_token_id": self.end_ids,
            "pad_token_id": tokenizer.pad_token_id,
        }

    @torch.no_grad()
    def __call__(self, prompts: list[list[int]]) -> tuple[list[list[int]], None]:
        responses: list[list[int]] = []
        for first in range(0, len(prompts), self._batch_size):
            part = {"input_ids": prompts[first : first + self._batch_size]}
            inputs = self._tokenizer.pad(part, padding=True, padding_side="left", return_tensors="pt")
            inputs = {name: inputs[name].to(self._model.device) for name in ("input_ids", "attention_mask")}
            sampled = self._model.generate(**inputs, **self._options)[:, inputs["input_ids"].size(1) :]
            responses += [self._cut(row) for row in sampled.tolist()]
        return responses, None

    def _cut(self, tokens: list[int]) -> list[int]:
        end = next((place for place, token in enumerate(tokens) if token in self.end_ids), len(tokens) - 1)
        return tokens[: end + 1]


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    factory: Callable[[], TextEnvironment],
    panel: TaskPanel,
    *,
    skills: SkillSource | None = None,
    temperature: float = 0.4,
    seed: int = 0,
    max_prompt_length: int = 4096,
    max_completion_length: int = 512,
    max_turns: int | None = None,
    batch_size: int = 64,
    time_limit: float = 60.0,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] = lambda ended: None,
) -> tuple[EvaluationResult, list[Trajectory]]:
    """Plays each task of a panel once.

    Args:
        skills: puts the skill into the policy's own prompt (the starred rows of the table); `None` does not.
        batch_size: episodes played side by side.
        progress: called with the number of episodes that ended.

    Returns:
        The result and the trajectories, in the panel's order.
    """
    torch.manual_seed(seed)
    generate = ModelGenerator(model, tokenizer, temperature, max_completion_length, batch_size)
    environments = open_batch(factory, min(batch_size, len(panel)), time_limit)
    player = Player(
        environments=environments,
        renderer=Renderer(tokenizer, environments.prompt, max_prompt_length, chat_template_kwargs),
        generate=generate,
        tokenizer=tokenizer,
        end_ids=generate.end_ids,
        skills=skills or no_skills,
        skills_in_rollout=skills is not None,
        max_turns=max_turns,
        progress=progress,
    )
    played: list[Trajectory] = []
    try:
        for first in range(0, len(panel), batch_size):
            rows = panel.rows[first : first + batch_size]
            seeds = [episode_seed(row["task_id"], 0, 0) for row in rows]
            played += player.play(rows, seeds, [row["task_id"] for row in rows])
    finally:
        environments.close()
    outcomes = [Outcome.of(trajectory) for trajectory in played]
    return summarise(panel, outcomes, skills=skills is not None, temperature=temperature, seed=seed), played


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m alignopsd_trl.evaluation", description=__doc__.split("\n")[0])
    shipped = "tiny (for webshop_tiny), tiny_alfworld, tiny_searchqa"
    parser.add_argument("--model", required=True, help=f"hub id or path; shipped are {shipped}")
    parser.add_argument("--environment", required=True, help="webshop, webshop_tiny, alfworld, searchqa or a module")
    parser.add_argument("--environment_options", type=json.loads, default={}, help="JSON, handed to its suite()")
    parser.add_argument("--panel", default="test", help="name of a panel of the environment")
    parser.add_argument("--limit", type=int, help="only the first tasks of the panel")
    parser.add_argument("--skills", action="store_true", help="put the retrieved skill into the policy's prompt")
    parser.add_argument("--skill_bank", help="shipped name or path; the environment's own by default")
    parser.add_argument("--encoder", default="lexical", help="ranks skills: 'lexical', an id or a path")
    parser.add_argument("--temperature", type=float, default=0.4, help="0 decodes greedily")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max_prompt_length", type=int, default=4096)
    parser.add_argument("--max_completion_length", type=int, default=512)
    parser.add_argument("--skill_tokens", type=int, help="budget of the skill block; min(512, max_prompt_length // 4)")
    parser.add_argument("--max_turns", type=int)
    parser.add_argument("--batch_size", type=int, default=64, help="episodes side by side")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, help="folder for results.json and trajectories")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> EvaluationResult:
    from tqdm.auto import tqdm
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from alignopsd_trl.encoder import load_encoder
    from alignopsd_trl.policy.shipped import resolve_model
    from alignopsd_trl.policy.teacher import skill_source
    from alignopsd_trl.records import turn_records, write_records
    from alignopsd_trl.skills import SkillBank, skill_budget

    arguments = _arguments(argv)
    suite = load(arguments.environment, **arguments.environment_options)
    panel = suite.panel(arguments.panel)
    panel = panel.head(arguments.limit) if arguments.limit else panel
    path = resolve_model(arguments.model)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=arguments.dtype).to(arguments.device).eval()
    skills = None
    if arguments.skills:
        bank = SkillBank.load(arguments.skill_bank or suite.skill_bank or suite.name, load_encoder(arguments.encoder))
        skills = skill_source(bank, tokenizer, arguments.skill_tokens or skill_budget(arguments.max_prompt_length))
    with tqdm(total=len(panel), unit="episode", desc=f"{suite.name} {panel.name}") as bar:
        result, played = evaluate(
            model,
            tokenizer,
            suite.factory,
            panel,
            skills=skills,
            temperature=arguments.temperature,
            seed=arguments.seed,
            max_prompt_length=arguments.max_prompt_length,
            max_completion_length=arguments.max_completion_length,
            max_turns=arguments.max_turns,
            batch_size=arguments.batch_size,
            progress=bar.update,
        )
    print(result.table())
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        content = {**result.to_dict(outcomes=True), "model": arguments.model, "suite": dict(suite.description)}
        (arguments.output / "results.json").write_text(json.dumps(content, indent=2, default=str), encoding="utf-8")
        write_records(arguments.output / "trajectories" / "evaluation.parquet", turn_records(played, step=0))
    return result


if __name__ == "__main__":
    main()
