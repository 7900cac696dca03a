"""What a round costs: AlignOPSD beside GRPO, and beside stock GRPO, what a subclass of TRL's trainer gets for free.

Records some rounds of AlignOPSD once (weights, tasks, all sampled tokens; a checksum names them) and replays each of
them, episodes, thinking, scoring, credit, loss and gradient, in one process and in alternating order:

    align_opsd  the method as it is
    grpo        the same trainer without a teacher
    stock       GRPO's rows through TRL's own forward: in the order in which they come, 64 at a time, vocabulary head
                on all positions, one view at a time

It stops if a gradient differs from the stock forward's by more than 1e-4 relative, or an advantage by more than 1e-5.

    python benchmarks/update_cost.py --output cost.json
    python benchmarks/update_cost.py --output cost.json --recipe searchqa_tiny --rounds 3 --seed 1
    python benchmarks/update_cost.py --output cost.json --recording rounds.pt     # written if it is not there
    PYTHONPATH=outputs/maze python benchmarks/update_cost.py --output cost.json --recipe recipes/maze_smollm.py

``--flags`` adds flags of the recipe, as in ``--flags "--bf16 true --teacher_model_kind base"``, for all variants; GRPO
has no teacher to which they could apply. Scoring is counted by what is scored: the policy's own log-probs, those of the
privileged views, and the distributions of these.

``--clock cpu`` counts the processor's seconds (all threads) in place of the wall's, for a machine that others use too.
``--no_stock`` leaves stock out, which takes most of the time, and with it the comparison of advantages and gradients.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import runpy
import shlex
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from recording import Replay, Round, checksum, load, record, save
from rich.console import Console
from rich.progress import track
from rich.table import Table
from trl import GRPOTrainer, get_peft_config

from alignopsd_trl.commands.launch.arguments import parse
from alignopsd_trl.common.cores import keep_memory
from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.common.patched import patched
from alignopsd_trl.environments.loading import load as load_environment
from alignopsd_trl.sampling.backend import Backend
from alignopsd_trl.sampling.trl_engine import OwnBackend
from alignopsd_trl.scoring import teacher as privileged
from alignopsd_trl.scoring.teacher import PrivilegedTeacher
from alignopsd_trl.scoring.teacher_forcing import Padded
from alignopsd_trl.trainer import AlignOPSDTrainer
from alignopsd_trl.training import scorer as scoring
from alignopsd_trl.training.scorer import Scorer

STOCK_ROWS = 64  # per forward; all turns of a round in one forward would be slower still
VARIANTS = ("align_opsd", "grpo", "stock")
ADVANTAGE_LIMIT, GRADIENT_LIMIT, CALIBRATION_LIMIT = 1e-5, 1e-4, 0.10
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class StockTeacher(PrivilegedTeacher):
    """Scores one view after the other, rows in the order in which they come."""

    trainer: AlignOPSDTrainer

    def score(self, batch: Any, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        source, target = source.cpu(), target.cpu()
        prompts = [batch.turns[row].privileged_ids for row in source.tolist()]
        responses = [batch.turns[row].response_ids for row in target.tolist()]
        with self.phases("scoring"):
            return stock_scores(self.trainer, prompts, responses, batch.policy_mask.size(1))


@torch.no_grad()
def stock_scores(trainer: Any, prompts: list[list[int]], responses: list[list[int]], width: int) -> torch.Tensor:
    result = torch.zeros((len(prompts), width))
    pad_id, device = trainer.processing_class.pad_token_id, trainer.accelerator.device
    for first in range(0, len(prompts), STOCK_ROWS):
        part = slice(first, first + STOCK_ROWS)
        prompt = Padded.of(prompts[part], pad_id, "left", device)
        response = Padded.of(responses[part], pad_id, "right", device)
        ids, mask = (torch.cat(both, dim=1) for both in ((prompt.ids, response.ids), (prompt.mask, response.mask)))
        found = GRPOTrainer._get_per_token_logps_and_entropies(trainer, trainer.model, ids, mask, response.ids.size(1))
        result[part, : response.ids.size(1)] = found[0].float() * response.mask
    return result.to(device)


class StockScorer(Scorer):
    """Scores turn by turn."""

    trainer: AlignOPSDTrainer

    def teacher(self, *arguments: Any) -> PrivilegedTeacher:
        teacher = super().teacher(*arguments)
        teacher.__class__, teacher.trainer = StockTeacher, self.trainer  # ty: ignore[missing-attribute]
        return teacher

    def own(
        self, batch: Any, reference: bool = False, among: torch.Tensor | None = None, prefixes: Any = None
    ) -> torch.Tensor:
        prompts, responses = ([getattr(turn, name) for turn in batch.turns] for name in ("prompt_ids", "response_ids"))
        return stock_scores(self.trainer, prompts, responses, batch.policy_mask.size(1))


class StockBackend(OwnBackend):
    """Rounds through transformers' ``generate`` too."""

    def prefixes(self, caches: int = 1) -> AbstractContextManager[None]:
        return nullcontext()


class StockTrainer(AlignOPSDTrainer):
    """The same rounds and rows through TRL's own forward."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.scorer.__class__, self.scorer.trainer = StockScorer, self  # ty: ignore[missing-attribute]

    def make_backend(self) -> Backend:
        return StockBackend(self)

    def compute_loss(self, model: Any, inputs: dict[str, torch.Tensor], *_: Any, **__: Any) -> torch.Tensor:
        total = torch.zeros((), device=self.accelerator.device)
        count = len(inputs["completion_ids"])
        for first in range(0, count, STOCK_ROWS):
            part = {
                name: value if value.dim() == 0 else value[first : first + STOCK_ROWS] for name, value in inputs.items()
            }
            loss = GRPOTrainer._compute_loss(self, model, trimmed(part))
            if first + STOCK_ROWS >= count:
                return loss + total
            self.accelerator.backward(loss)
            total += loss.detach()
        raise RuntimeError("a round without rows")


def trimmed(rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Without the columns that are padding in all rows, as a careful collator would leave them."""
    width = rows["completion_ids"].size(1)
    prompt = max(int(rows["prompt_mask"].sum(1).max()), 1)
    response = max(int(rows["completion_mask"].sum(1).max()), 1)
    for name, value in rows.items():
        if name in ("prompt_ids", "prompt_mask"):
            rows[name] = value[:, -prompt:]
        elif value.dim() > 1 and value.size(1) == width:
            rows[name] = value[:, :response]
    return rows


class Counter:
    """Tokens and useful floating-point operations of a model's forwards, by phase.

    Useful are tokens that are not padding, at two operations a weight forward and four backward, and the vocabulary
    head where a token is scored or sampled. Attention is left out.
    """

    def __init__(self, trainer: AlignOPSDTrainer):
        model: Any = trainer.model
        self._phases = trainer.phases
        self._head = model.get_output_embeddings().weight.numel()
        self._weights = sum(value.numel() for value in model.parameters() if value.dim() > 1)
        self._weights -= model.get_input_embeddings().weight.numel()
        if model.get_output_embeddings().weight is not model.get_input_embeddings().weight:
            self._weights -= self._head
        self.clear()
        model.base_model.register_forward_pre_hook(self._backbone, with_kwargs=True)
        model.register_forward_pre_hook(self._whole, with_kwargs=True)

    def clear(self) -> None:
        self.padded: defaultdict[str, int] = defaultdict(int)
        self.useful: defaultdict[str, int] = defaultdict(int)
        self.operations: defaultdict[str, float] = defaultdict(float)

    def _phase(self) -> str:
        return self._phases.current or "other"

    def _backbone(self, module: Any, arguments: Any, options: dict[str, Any]) -> None:
        ids, mask = options["input_ids"], options.get("attention_mask")
        known = ids.numel() if mask is None or mask.dim() != 2 else int(mask[:, -ids.size(1) :].sum())
        self.padded[self._phase()] += ids.numel()
        self.useful[self._phase()] += known
        self._add(self._weights * known)

    def _whole(self, module: Any, arguments: Any, options: dict[str, Any]) -> None:
        labels = options["shift_labels"] if options.get("shift_labels") is not None else options.get("labels")
        scored = len(options["input_ids"]) if labels is None else int((labels != -100).sum())
        self._add(self._head * scored)

    def _add(self, products: float) -> None:
        self.operations[self._phase()] += products * (6 if torch.is_grad_enabled() else 2)


def scoring_by_part() -> ExitStack:
    """Counts what is scored in phases of its own while it is open."""
    stack = ExitStack()
    for module, name, part in (
        (scoring, "score_pairs", "scoring: own"),
        (privileged, "score_pairs", "scoring: views"),
        (privileged, "largest_logits", "scoring: distributions"),
    ):
        stack.enter_context(patched(module, **{name: partial(_counted, getattr(module, name), part)}))
    return stack


def _counted(function: Callable[..., Any], part: str, model: Any, *arguments: Any, **options: Any) -> Any:
    with model._trainer.phases(part):
        return function(model, *arguments, **options)


def build(options: argparse.Namespace, method: str, kind: type, whole: bool = False) -> AlignOPSDTrainer:
    """A trainer of the recipe; ``whole``: one that also thinks and scores where it could change nothing."""
    folder = tempfile.mkdtemp(prefix="update_cost_")
    flags = ["--method", method, "--rounds", str(options.rounds), "--seed", str(options.seed), "--output_dir", folder]
    flags += ["--tasks_per_round", str(options.tasks)] if options.tasks else []
    if whole:
        flags += ["--skip_zero_advantage", "false"]
    flags += [
        "--self_check",
        "false",
        "--save_trajectories",
        "false",
        "--save_strategy",
        "no",
        "--disable_tqdm",
        "true",
    ]
    own = runpy.run_path(options.recipe)["PRESET"] if options.recipe.endswith(".py") else None
    recipe, args, model = parse(Path(options.recipe).stem, flags + shlex.split(options.flags), own)
    suite = load_environment(recipe.environment)
    trainer = kind(
        resolve_model(model.model_name_or_path),
        args,
        environment_factory=suite.factory,
        train_dataset=suite.tasks(recipe.train_split),
        skill_bank=suite.skill_bank or suite.name,
        encoder=recipe.encoder,
        peft_config=get_peft_config(model),
    )
    trainer.phases.clock = CLOCKS[options.clock]
    return trainer


class Variant:
    """One way to do a round, over and over."""

    def __init__(self, name: str, trainer: AlignOPSDTrainer, clock: str):
        self.name, self._trainer, self._clock = name, trainer, CLOCKS[clock]
        self._replay, self._counter = Replay(trainer), Counter(trainer)
        self.advantages = torch.zeros(0)
        inner = trainer.method.assign

        def assign(*arguments: Any) -> Any:
            credit = inner(*arguments)
            self.advantages = credit.advantages
            return credit

        trainer.method.assign = assign
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        trainer.model.train()

    def run(self, one: Round) -> dict[str, Any]:
        """The figures of one round: episodes to gradient; the optimiser's step is the same for all and left out."""
        trainer = self._trainer
        self._replay.load(one)
        trainer.model.zero_grad()
        trainer._step, trainer._buffered_inputs = 0, None
        self._counter.clear()
        phases = dict(trainer.phases.total)
        torch.manual_seed(one["step"])
        faults, begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, self._clock()
        for _ in range(trainer.args.steps_per_generation * trainer.num_iterations):
            trainer.training_step(trainer.model, one["inputs"], None)
        return {
            "seconds": self._clock() - begin,
            "phases": {name: value - phases.get(name, 0.0) for name, value in trainer.phases.total.items()},
            "faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults,
            "padded": dict(self._counter.padded),
            "useful": dict(self._counter.useful),
            "operations": dict(self._counter.operations),
        }

    def gradient(self) -> torch.Tensor:
        return torch.cat([value.grad.flatten() for value in self._trainer.model.parameters() if value.grad is not None])


def calibrate(model: Any, seconds: float = 0.15) -> float:
    """GFLOP/s of a float32 matrix product at the model's own widths, 4,096 tokens at once."""
    config = model.config.get_text_config()
    left = torch.randn(4096, config.hidden_size, device=model.device)
    right = torch.randn(config.hidden_size, config.intermediate_size, device=model.device)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < seconds:
        one = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - one)
    return 2e-9 * left.numel() * right.size(1) / statistics.median(times)


def check(rounds: list[Round], variants: dict[str, Variant], reference: Variant) -> dict[str, float]:
    """The largest differences from the stock forward's advantages and gradients.

    Raises:
        SystemExit: if one is above its limit.
    """
    worst = {"advantages": 0.0, "gradient_align_opsd": 0.0, "gradient_grpo": 0.0}
    for one in rounds:
        reference.run(one), variants["align_opsd"].run(one), variants["grpo"].run(one), variants["stock"].run(one)
        apart = (reference.advantages - variants["align_opsd"].advantages).abs().max()
        worst["advantages"] = max(worst["advantages"], float(apart))
        for name, against in (("align_opsd", reference), ("grpo", variants["stock"])):
            theirs = against.gradient()
            relative = (variants[name].gradient() - theirs).norm() / theirs.norm().clamp(min=1e-30)
            worst[f"gradient_{name}"] = max(worst[f"gradient_{name}"], float(relative))
    if worst["advantages"] > ADVANTAGE_LIMIT or max(list(worst.values())[1:]) > GRADIENT_LIMIT:
        sys.exit(f"the numbers differ from the stock forward's, nothing was timed: {worst}")
    return worst


def measure(rounds: list[Round], variants: dict[str, Variant], repeats: int) -> list[dict[str, Any]]:
    """Figures per repeat, round and variant; the order of the variants turns with every round."""
    found, model, names = [], variants["grpo"]._trainer.model, list(variants)
    for repeat in track(range(repeats), "replaying", console=Console(stderr=True)):
        before = calibrate(model)
        for number, one in enumerate(rounds):
            turn = (repeat + number) % len(names)
            order = [*names[turn:], *names[:turn]]
            for name in order if repeat % 2 else reversed(order):
                found.append({"repeat": repeat, "round": number, "variant": name} | variants[name].run(one))
        after = calibrate(model)
        moved = abs(after - before) / before > CALIBRATION_LIMIT
        for row in found:
            if row["repeat"] == repeat:
                row |= {"calibration": [before, after], "flagged": moved}
    return found


def interval(pairs: list[tuple[float, float]], repeats: list[tuple[float, float]]) -> dict[str, float]:
    """Median over repeats of the ratio of sums; 95 % bootstrap over the pairs (one round of one repeat each)."""
    draw = random.Random(0)
    drawn = []
    for _ in range(2000):
        chosen = draw.choices(pairs, k=len(pairs))
        drawn.append(sum(up for up, _ in chosen) / max(sum(down for _, down in chosen), 1e-12))
    drawn.sort()
    middle = statistics.median(up / max(down, 1e-12) for up, down in repeats)
    return {"median": middle, "low": drawn[49], "high": drawn[1949]}


def compare(rows: list[dict[str, Any]], above: str, below: str, phase: str | None = None) -> dict[str, float] | None:
    def seconds(row: dict[str, Any]) -> float:
        return row["seconds"] if phase is None else row["phases"].get(phase, 0.0)

    table = {(row["repeat"], row["round"], row["variant"]): seconds(row) for row in rows}
    keys = sorted({(row["repeat"], row["round"]) for row in rows})
    if not {above, below} <= {row["variant"] for row in rows}:
        return None
    pairs = [(table[(*key, above)], table[(*key, below)]) for key in keys]
    if not sum(down for _, down in pairs):
        return None
    sums: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for (repeat, _), (up, down) in zip(keys, pairs, strict=True):
        sums[repeat][0] += up
        sums[repeat][1] += down
    return interval(pairs, [tuple(both) for both in sums.values()])


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over repeats of the means over rounds, the two ratios, and both by phase."""
    phases = sorted({phase for row in rows for phase in row["phases"]})
    repeats, summary = sorted({row["repeat"] for row in rows}), {}
    for name in [name for name in VARIANTS if any(row["variant"] == name for row in rows)]:
        own = [row for row in rows if row["variant"] == name]
        per_repeat = [statistics.mean(row["seconds"] for row in own if row["repeat"] == one) for one in repeats]
        summary[name] = {
            "seconds": statistics.median(per_repeat),
            "range": [min(per_repeat), max(per_repeat)],
            "page_faults": statistics.mean(row["faults"] for row in own),
            "phases": {phase: _phase_figures(own, phase) for phase in phases},
        }
    result = {"variants": summary}
    for key, below in (("ratio", "grpo"), ("against_stock", "stock")):
        result[key] = compare(rows, "align_opsd", below)
        by_phase = {phase: compare(rows, "align_opsd", below, phase) for phase in phases}
        result[f"{key}_by_phase"] = {phase: found for phase, found in by_phase.items() if found}
    result["grpo_against_stock"] = compare(rows, "grpo", "stock")
    return result


def _phase_figures(rows: list[dict[str, Any]], phase: str) -> dict[str, float]:
    seconds = statistics.median(row["phases"].get(phase, 0.0) for row in rows)
    operations = statistics.mean(row["operations"].get(phase, 0.0) for row in rows)
    return {
        "seconds": seconds,
        "padded_tokens": statistics.mean(row["padded"].get(phase, 0) for row in rows),
        "useful_tokens": statistics.mean(row["useful"].get(phase, 0) for row in rows),
        "gflops": operations / seconds / 1e9 if seconds else 0.0,
    }


def show(result: dict[str, Any]) -> None:
    table, summary = Table(title=f"{result['recipe']}: a round, {result['clock']} seconds"), result["variants"]
    above = {name: key for key, name in (("ratio", "align / grpo"), ("against_stock", "align / stock")) if result[key]}
    for column in ("", *summary, *above):
        table.add_column(column, justify="left" if not column else "right")
    for phase in summary["align_opsd"]["phases"]:
        cells = []
        for name in summary:
            figures = summary[name]["phases"][phase]
            padded = figures["padded_tokens"]
            extra = f" {figures['gflops']:.0f} GF/s, {figures['useful_tokens'] / padded:.0%} useful" if padded else ""
            cells.append(f"{figures['seconds']:.2f}{extra}")
        ratios = [result[f"{key}_by_phase"].get(phase) for key in above.values()]
        table.add_row(phase, *cells, *(f"{one['median']:.2f}" if one else "" for one in ratios))
    spans = [f"{summary[name]['seconds']:.2f} [{{:.2f}}, {{:.2f}}]".format(*summary[name]["range"]) for name in summary]
    ratios = ["{median:.2f} [{low:.2f}, {high:.2f}]".format(**result[key]) for key in above.values()]
    table.add_row("all", *spans, *ratios, style="bold")
    console = Console(width=170)
    console.print(table)
    flagged = len(result["flagged_repeats"])
    console.print(
        f"recording {result['checksum']}; matrix product {result['calibration_gflops']:.0f} GFLOP/s, moved by more "
        f"than 10 % in {flagged} of {result['repeats']} repeats; largest difference from stock: "
        + (", ".join(f"{name} {value:.1e}" for name, value in result["differences"].items()) or "not compared")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file of all figures")
    parser.add_argument("--recipe", default="webshop_tiny")
    parser.add_argument("--recording", type=Path, help="rounds to replay; recorded there if there are none")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tasks", type=int, help="task groups a round; the recipe's own number by default")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the recording")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--no_stock", action="store_true", help="AlignOPSD and GRPO alone")
    parser.add_argument("--flags", default="", help="further flags of the recipe, in one word")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_memory()  # as a recipe does
    if options.recording and options.recording.is_file():
        rounds = load(options.recording, options.recipe)[: options.rounds]
    else:
        rounds = record(build(options, "align_opsd", AlignOPSDTrainer, whole=True))
        if options.recording:
            save(rounds, options.recipe, options.recording)
    kinds = {"align_opsd": AlignOPSDTrainer, "grpo": AlignOPSDTrainer, "stock": StockTrainer}
    if options.no_stock:
        del kinds["stock"]

    def variant(name: str, method: str, kind: type) -> Variant:
        return Variant(name, build(options, method, kind, whole=kind is StockTrainer), options.clock)

    variants = {
        name: variant(name, "align_opsd" if name == "align_opsd" else "grpo", kind) for name, kind in kinds.items()
    }
    if options.no_stock:
        differences = {}
        for one in variants.values():
            one.run(rounds[0])  # warms up
    else:
        differences = check(rounds, variants, variant("reference", "align_opsd", StockTrainer))  # also warms up
    with scoring_by_part():
        rows = measure(rounds, variants, options.repeats)
    result = {
        "recipe": options.recipe,
        "flags": options.flags,
        "checksum": checksum(rounds),
        "rounds": len(rounds),
        "repeats": options.repeats,
        "clock": options.clock,
        "machine": {"processor": platform.processor() or platform.machine(), "threads": options.threads},
        "torch": torch.__version__,
        "calibration_gflops": statistics.median(value for row in rows for value in row["calibration"]),
        "flagged_repeats": sorted({row["repeat"] for row in rows if row["flagged"]}),
        "differences": differences,
        **summarise(rows),
        "rows": rows,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    partial = options.output.with_suffix(".part")
    partial.write_text(json.dumps(result, indent=1), encoding="utf-8")
    partial.replace(options.output)
    show(result)


if __name__ == "__main__":
    main()
