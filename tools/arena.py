"""The arena over the embedded WebShop: how good is credit where every value is known?

    python -m tools.arena --batches 8

A shopper of known care shops; its values are exact (`alignopsd_trl.fidelity.arena`). Its thinking is a template ("ready
to buy") or states its situation (what is wanted, what the page shows, what is chosen and missing); its skill makes it
careful. Printed: the correlation of turn credit with the exact advantage within trajectories, and the cosine of the
policy gradient with the exact one, over batches of sibling groups.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.fidelity.arena import ArenaTeacher, Choice, Game, Sampled, make_batch, sample_groups
from alignopsd_trl.fidelity.metrics import Turns, agreement
from alignopsd_trl.fidelity.report import plain
from alignopsd_trl.fidelity.variants import CachedTeacher, turn_credit
from alignopsd_trl.methods import checked_credit, get_method
from alignopsd_trl.methods.grpo import outcome
from environments.base import View, load
from tools.tiny_policies.shoppers import Page, Request, click, clicked, since_opening

DECISIONS = ("search", "choose", "return", "feature", "option")
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {}),
    "align_opsd": ("align_opsd", {}),
    "align_opsd, no rectification": ("align_opsd", {"rectify": False}),
    "align_opsd T .05, turn": ("align_opsd", {"credit_temperature": 0.05, "allocation": "turn"}),
    "no rectification T .05, turn": (
        "align_opsd",
        {"rectify": False, "credit_temperature": 0.05, "allocation": "turn"},
    ),
    "align_opsd gamma_H .95, T .05, turn": (
        "align_opsd",
        {"similarity_threshold": 0.95, "credit_temperature": 0.05, "allocation": "turn"},
    ),
    "rlsd": ("rlsd", {}),
    "gigpo": ("gigpo", {}),
}
Part = tuple[str, str, str]  # decision, thinking, action


class ArenaShopper:
    """A shopper whose every decision is careful with a known probability, in a known order.

    Args:
        care: of each of `DECISIONS` without the skill.
        skilled: of all of them with it.
        situated: whether thinking states its situation.
    """

    def __init__(self, care: Mapping[str, float] | float = 0.5, skilled: float = 0.95, situated: bool = False):
        self.care = dict.fromkeys(DECISIONS, care) if isinstance(care, float) else dict(care)
        self.skilled, self.situated = skilled, situated

    def __call__(self, view: View) -> list[Choice]:
        request, page = Request.read(view.task_text), Page.read(view.observation)
        actions = [record.action for record in view.history]
        careful, careless = getattr(self, f"_on_{page.kind}")(request, page, actions)
        suffix = _situation(request, page, actions) if self.situated else ""
        choices, slope, left, left_skilled = [], dict.fromkeys(DECISIONS, 0.0), 1.0, 1.0
        for decision, thinking, action in careful:
            care = self.care[decision]
            own = slope | {decision: slope[decision] + 1 - care}
            choices.append(Choice(thinking + suffix, action, left * care, left_skilled * self.skilled, own))
            slope[decision] -= care
            left, left_skilled = left * (1 - care), left_skilled * (1 - self.skilled)
        return [*choices, Choice(careless[0] + suffix, careless[1], left, left_skilled, slope)]

    def _on_search(self, request: Request, page: Page, actions: list[str]) -> tuple[list[Part], tuple[str, str]]:
        full = f"search[{' '.join(request.words)}]"
        noun = request.noun
        return [("search", f"looking for {noun} with all its traits", full)], (
            f"looking for some {noun}",
            f"search[{noun}]",
        )

    def _on_results(self, request: Request, page: Page, actions: list[str]) -> tuple[list[Part], tuple[str, str]]:
        fitting = [row for row in page.rows if row.fits(request) and click(row.asin) not in actions]
        full = f"search[{' '.join(request.words)}]"
        if fitting:
            best = (f"comparing titles and prices, this {request.noun} fits", click(fitting[0].asin))
        elif full not in actions:
            best = ("no title fits, searching all traits", full)
        else:
            best = ("no title fits, next page", click("next >"))
        if not page.rows:
            return [], best
        return [("choose", *best)], ("first hit looks fine", click(page.rows[0].asin))

    def _on_item(self, request: Request, page: Page, actions: list[str]) -> tuple[list[Part], tuple[str, str]]:
        done, parts = since_opening(actions), []
        if not done and not page.product.fits(request):
            parts.append(("return", "wrong product, back to results", click("< prev")))
        if request.feature and click("features") not in done and not clicked(request, done):
            parts.append(("feature", f"checking features for {request.feature}", click("features")))
        for name, value in request.options.items():
            if value in page.pieces and click(value) not in done:
                parts.append(("option", f"choosing {name} {value}", click(value)))
        return parts, ("ready to buy", click("buy now"))

    def _on_text(self, request: Request, page: Page, actions: list[str]) -> tuple[list[Part], tuple[str, str]]:
        back = (f"features read, back to {request.noun}", click("< prev"))
        if request.feature in page.pieces:
            return [], back
        return [("feature", f"{request.feature} is missing, back to search", click("back to search"))], back


def _situation(request: Request, page: Page, actions: list[str]) -> str:
    done = since_opening(actions)
    title = page.product.title if page.kind == "item" else page.kind
    chosen = [value for value in request.options.values() if click(value) in done]
    missing = [value for value in request.options.values() if click(value) not in done]
    fits = "fits" if page.kind == "item" and page.product.fits(request) else "unfit" if page.kind == "item" else ""
    checked = "read" if click("features") in done else "unread"
    return (
        f" ; {' '.join(request.words)} wanted ; on {title} {fits} ; features {checked} ; chosen {' '.join(chosen)} ; "
        f"missing {' '.join(missing)}"
    )


def shop_state(environment: Any) -> Hashable:
    """What of a WebShop session decides what happens next."""
    session = environment._session
    keywords = tuple(session.keywords or ())
    return session.kind, keywords, session.page, session.row, tuple(sorted(session.options.items()))


def make_games(tasks: int, shopper: ArenaShopper, seed: int = 0, max_turns: int = 8) -> list[Game]:
    """Expanded training tasks of the embedded catalogue."""
    suite = load("webshop_tiny", max_turns=max_turns)
    rows, environment = suite.tasks("train"), suite.factory()
    chosen = random.Random(seed).sample(range(len(rows)), tasks)
    return [Game(environment, rows[number], shopper, shop_state) for number in chosen]


def credits(sampled: Sampled, folder: Path, draw: random.Random) -> tuple[Any, dict[str, np.ndarray]]:
    """The batch, and turn credit of every one of `VARIANTS`."""
    batch = make_batch(sampled)
    teacher = CachedTeacher(ArenaTeacher(sampled, load_encoder("lexical"), draw), batch)
    shared = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "action_filter": "webshop",
    }
    found = {}
    for label, (name, settings) in VARIANTS.items():
        method = get_method(name)(AlignOPSDConfig(method=name, **shared, **settings))
        found[label] = turn_credit(checked_credit(method, batch, teacher, 0), batch).numpy()
    return batch, found


def columns(sampled: Sampled, batch: Any, task_shift: int) -> Turns:
    exact = sampled.advantages(batch.turns)
    config = AlignOPSDConfig(output_dir="unused", use_cpu=True, bf16=False, report_to="none")
    sides = outcome(batch, config).advantage.numpy()
    rollout = batch.groups.rollout.numpy()
    small = np.full(len(exact), 0.01)
    return Turns(batch.groups.task.numpy() + task_shift, rollout, sides, exact, small, np.stack([exact, exact]))


def cosine(left: Mapping[str, float], right: Mapping[str, float]) -> float:
    rows = [np.array([one.get(name, 0.0) for name in DECISIONS]) for one in (left, right)]
    return float(rows[0] @ rows[1] / max(np.linalg.norm(rows[0]) * np.linalg.norm(rows[1]), 1e-12))


def total_gradient(games: Sequence[Game]) -> dict[str, float]:
    parts = [game.gradient() for game in games]
    return {name: sum(part.get(name, 0.0) for part in parts) for name in DECISIONS}


def measure(
    games: Sequence[Game], batches: int, siblings: int, folder: Path, seed: int = 0
) -> dict[str, dict[str, Any]]:
    """For every variant r within trajectories (with its interval over tasks) and the mean cosine of its gradient with
    the exact one."""
    draw, parts, gradients, exact = random.Random(seed), [], {}, total_gradient(games)
    for number in range(batches):
        sampled = sample_groups(games, siblings, draw)
        batch, found = credits(sampled, folder, draw)
        turns = columns(sampled, batch, number * len(games))
        parts.append((turns, found))
        for label, values in {**found, "exact": turns.advantage}.items():
            gradients.setdefault(label, []).append(cosine(sampled.gradient(batch.turns, values), exact))
    turns = _joined([one for one, _ in parts])
    credit = {label: np.concatenate([found[label] for _, found in parts]) for label in VARIANTS}
    figures = agreement(turns, credit, "align_opsd")
    table = {label: {"r_within": row["r_within"], "lift": row["lift"]} for label, row in figures.items()}
    table["exact"] = {}
    return {label: row | {"gradient": float(np.mean(gradients[label]))} for label, row in table.items()}


def _joined(parts: Sequence[Turns]) -> Turns:
    shift, trajectory = 0, []
    for one in parts:
        trajectory.append(one.trajectory + shift)
        shift += int(one.trajectory.max()) + 1
    return Turns(
        np.concatenate([one.task for one in parts]),
        np.concatenate(trajectory),
        np.concatenate([one.outcome for one in parts]),
        np.concatenate([one.advantage for one in parts]),
        np.concatenate([one.error for one in parts]),
        np.concatenate([one.halves for one in parts], axis=1),
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--siblings", type=int, default=8)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--care", type=float, default=0.5, help="of every decision without the skill")
    parser.add_argument("--skilled", type=float, default=0.95, help="of every decision with it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("outputs/arena"), help="folder for arena.json")
    arguments = parser.parse_args(argv)
    result = {"settings": {name: str(value) for name, value in vars(arguments).items() if name != "output"}}
    for thinking in ("template", "situation"):
        shopper = ArenaShopper(arguments.care, arguments.skilled, thinking == "situation")
        games = make_games(arguments.tasks, shopper, arguments.seed)
        success, states = sum(game.value for game in games) / len(games), sum(len(game.nodes) for game in games)
        table = measure(games, arguments.batches, arguments.siblings, arguments.output, arguments.seed)
        result[thinking] = {"success": success, "states": states, "variants": table}
        print(f"\nthinking: {thinking}; success {success:.3f}, {states} states\n")
        print("| variant | r within | lift | gradient |\n|---|---|---|---|")
        for label, row in table.items():
            print(f"| {label} | {row.get('r_within', '-')} | {row.get('lift', '-')} | {row['gradient']:.2f} |")
    arguments.output.mkdir(parents=True, exist_ok=True)
    partial = arguments.output / "arena.partial"
    partial.write_text(json.dumps(plain(result), indent=2) + "\n", encoding="utf-8")
    partial.replace(arguments.output / "arena.json")
    return result


if __name__ == "__main__":
    main()
