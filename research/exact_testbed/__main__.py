"""The exact testbed over the embedded WebShop: how good is credit where every value is known?

    python -m research.exact_testbed --batches 8                 # agreement of turn credit with exact advantages
    python -m research.exact_testbed --train --seeds 16          # what it teaches: exact success after some updates

A shopper of known care shops; its values are exact (`research.exact_testbed.games`). Its thinking is a template ("ready
to buy") or states its situation (what is wanted, what the page shows, what is chosen and missing); its skill makes it
careful, at every decision or at the one that requests of this kind go wrong at. A trip is three requests that must all
be bought right.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import track

from alignopsd_trl.common.files import plain
from research.exact_testbed.games import Game
from research.exact_testbed.measuring import measure
from research.exact_testbed.shopper import ExactShopper, by_weakness, make_games, make_trips
from research.exact_testbed.training import TRAINED, difference, train

GAMES = 12  # requests that trips are drawn from


@dataclass(frozen=True)
class World:
    """Tasks and a shopper.

    Args:
        situated, naming (`bool`): of [`ExactShopper`].
        requests (`int`, *optional*, defaults to `1`): of an episode.
        care (`tuple[float, float]`, *optional*, defaults to `(0.5, 0.5)`): at the decisions that requests do not go
            wrong at, and at the one that they do.
    """

    situated: bool
    naming: bool = False
    requests: int = 1
    care: tuple[float, float] = (0.5, 0.5)

    def shopper(self, care: Mapping[str, float] | float, skilled: float) -> ExactShopper:
        return ExactShopper(care, skilled, self.situated, self.naming)

    def games(self, tasks: int, policy: ExactShopper, seed: int) -> list[Game]:
        if self.requests == 1:
            return make_games(tasks, policy, seed)
        return make_trips(make_games(GAMES, policy, seed), tasks, self.requests, seed)


WORLDS = {
    "template": World(situated=False),
    "situation": World(situated=True),
    "trip, template": World(situated=False, requests=3, care=(0.8, 0.8)),
    "trip, situation": World(situated=True, requests=3, care=(0.8, 0.8)),
    "trip, situation, skill names the decision": World(situated=True, naming=True, requests=3, care=(0.9, 0.5)),
    "one weak decision, template": World(situated=False, naming=True, care=(0.97, 0.5)),
    "one weak decision, situation": World(situated=True, naming=True, care=(0.97, 0.5)),
    "trip, one weak decision, template": World(situated=False, naming=True, requests=3, care=(0.97, 0.6)),
    "trip, one weak decision, situation": World(situated=True, naming=True, requests=3, care=(0.97, 0.6)),
}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=["template", "situation"], metavar="WORLD")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--siblings", type=int, default=8)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--skilled", type=float, default=0.95, help="care at a decision with the skill")
    parser.add_argument("--encoder", default="lexical")
    parser.add_argument("--seed", type=int, default=0, help="of the measurement; the first one of the training")
    parser.add_argument("--train", action="store_true", help="train in place of measuring")
    parser.add_argument("--seeds", type=int, default=16, help="of the training")
    parser.add_argument("--variants", nargs="+", choices=TRAINED, metavar="VARIANT", help="what is trained beside grpo")
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--rate", type=float, default=1.0, help="length of a step of the training")
    parser.add_argument("--output", type=Path, default=Path("outputs/arena"), help="folder for arena.json")
    arguments = parser.parse_args(argv)
    result = {"settings": {name: str(value) for name, value in vars(arguments).items() if name != "output"}}
    arguments.output.mkdir(parents=True, exist_ok=True)
    asked: Callable[[World, argparse.Namespace], dict[str, Any]] = trained if arguments.train else measured
    for name in arguments.worlds:
        print(f"\n{name}")
        result[name] = asked(WORLDS[name], arguments)
        partial = arguments.output / "arena.partial"
        partial.write_text(json.dumps(plain(result), indent=2) + "\n", encoding="utf-8")
        partial.replace(arguments.output / "arena.json")
    return result


def measured(world: World, arguments: argparse.Namespace) -> dict[str, Any]:
    shopper = world.shopper(by_weakness(*world.care), arguments.skilled)
    games = world.games(arguments.tasks, shopper, arguments.seed)
    success, states = sum(game.value for game in games) / len(games), sum(len(game.nodes) for game in games)
    table = measure(games, arguments.batches, arguments.siblings, arguments.output, arguments.seed, arguments.encoder)
    print(f"success {success:.3f}, {states} states\n")
    print("| variant | r within | lift | gradient |\n|---|---|---|---|")
    for label, row in table.items():
        print(f"| {label} | {row.get('r_within', '-')} | {row.get('lift', '-')} | {row['gradient']:.2f} |")
    return {"success": success, "states": states, "variants": table}


def trained(world: World, arguments: argparse.Namespace) -> dict[str, Any]:
    """Exact success before and after, and paired differences to GRPO; every seed has its own tasks and episodes."""
    care = by_weakness(*world.care)
    asked = TRAINED if arguments.variants is None else dict.fromkeys(["grpo", *arguments.variants])
    won: dict[str, list[list[float]]] = {label: [] for label in asked}
    for seed in track(range(arguments.seed, arguments.seed + arguments.seeds), "training"):
        games = world.games(arguments.tasks, world.shopper(care, arguments.skilled), seed)
        for label in won:
            won[label].append(
                train(
                    games,
                    lambda care: world.shopper(care, arguments.skilled),
                    care,
                    TRAINED[label],
                    arguments.output,
                    updates=arguments.updates,
                    rate=arguments.rate,
                    siblings=arguments.siblings,
                    seed=seed,
                    encoder=arguments.encoder,
                )
            )
    print("| variant | before | after | minus GRPO |\n|---|---|---|---|")
    found = {}
    for label, curves in won.items():
        last = [curve[-1] for curve in curves]
        gain = difference(last, [curve[-1] for curve in won["grpo"]])
        before, after = (100 * sum(column) / len(column) for column in ([curve[0] for curve in curves], last))
        found[label] = {"success": curves, "difference": gain}
        print(f"| {label} | {before:.1f} | {after:.1f} | {100 * gain[0]:+.1f} +- {100 * gain[1]:.1f} |")
    return found


if __name__ == "__main__":
    main()
