"""First policies that can read texts of turns, made of shipped ones, which never have.

    python -m research.turn_texts searchqa_hops outputs/turn_texts/hops --steps 1200

A shipped policy spells the sources' sentences letter by letter, so each becomes one token. It then learns from
demonstrations of its own kind (with the bank's skills and without) and from those of `alignopsd demonstrate
--privileged`, a source each: `next_observation`, `sibling_action`, and `whole_sibling` of this file.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer

from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.environments.base import View
from alignopsd_trl.environments.loading import load
from alignopsd_trl.launch.presets import preset
from alignopsd_trl.models import resolve_model
from alignopsd_trl.own_task.demonstrations import demonstrate
from alignopsd_trl.own_task.options import WarmStartConfig
from alignopsd_trl.own_task.players import Scripted
from alignopsd_trl.own_task.task import Task
from alignopsd_trl.own_task.warm_start import warm_start
from alignopsd_trl.skills import SkillBank
from alignopsd_trl.turns import Trajectory
from assets.tiny_policies import hoppers, housekeepers, situated
from assets.tiny_policies.heeding import heeding

PLAYERS: dict[str, Callable[..., Any]] = {
    "searchqa_hops": hoppers.HopReader,
    "alfworld_pairs": housekeepers.Housekeeper,
    "webshop_trips": situated.SituatedShopper,
}
PHRASES = ("After the action ", " you will see: ", "In this situation a better attempt did: ", "A better attempt did: ")
SOURCES = ("next_observation", "sibling_action", "research.turn_texts:whole_sibling")


def whole_sibling(trajectory: Trajectory, siblings: Sequence[Trajectory]) -> str | None:
    """Tells all actions of the sibling with the largest reward, if it ended better."""
    best = max(siblings, key=lambda one: one.reward, default=trajectory)
    told = best.reward > trajectory.reward
    return f"A better attempt did: {' , '.join(turn.action for turn in best.turns)}" if told else None


def nothing(trajectory: Trajectory) -> str:
    """Tells nothing: what a teacher's distribution does without a text, as a penalty on leaving the first policy."""
    return "Go on."


def play(player: Callable[..., Any]) -> Callable[..., str]:
    """Returns a world's player, who reads no skill, as `demonstrate` takes it."""

    def answer(view: View, environment: Any, skill: str, draw: random.Random) -> str:
        return player((), draw).answer(view)

    return answer


def of_texts(name: str, source: str, episodes: int, seed: int) -> list[dict[str, Any]]:
    """Returns the turns that show a text; all episodes are for texts, since the others' rows are of `of_skills`."""
    task = Task(name, load(name), preset(name))
    actor = Scripted(play(PLAYERS[name]), random.Random(seed))
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(task.preset["model_name_or_path"]))
    found = demonstrate(
        task,
        actor,
        episodes=episodes,
        seed=seed,
        tokenizer=with_phrases(tokenizer),
        privileged=source,
        skilled_share=1.0,
    )
    print(f"{source}: {found.told()}", flush=True)
    return found.rows


def of_skills(name: str, episodes: int, seed: int) -> list[dict[str, Any]]:
    """Returns turns with the bank's skills and without, as the shipped policy learnt them."""
    suite, draw = load(name), random.Random(seed)
    environment, rows = suite.factory(), list(suite.tasks("train"))
    played = ((environment, row) for row in draw.choices(rows, k=episodes))
    bank = SkillBank.load(suite.skill_bank, load_encoder("lexical"))
    kinds = [one.key for one in bank.task_types]
    shown = heeding(played, PLAYERS[name], kinds, bank, draw)
    return [_row(one.prompt, one.response, number) for number, one in enumerate(shown)]


def _row(prompt: str, response: str, number: int) -> dict[str, Any]:
    said = [{"role": "user", "content": prompt}], [{"role": "assistant", "content": response}]
    return {"prompt": said[0], "completion": said[1], "task_id": f"shown/{number // 20}"}


def with_phrases(tokenizer: Any) -> Any:
    """Makes each of `PHRASES` one token."""
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in PHRASES])
    return tokenizer


def start(name: str, folder: Path) -> Path:
    """Saves the shipped policy with the phrases as further tokens; returns its folder."""
    path = resolve_model(preset(name)["model_name_or_path"])
    tokenizer = with_phrases(AutoTokenizer.from_pretrained(path))
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    torch.manual_seed(0)
    model.resize_token_embeddings(max(len(tokenizer), model.config.vocab_size), mean_resizing=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("environment", choices=sorted(PLAYERS))
    parser.add_argument("output", type=Path)
    parser.add_argument("--sources", nargs="+", default=list(SOURCES))
    parser.add_argument("--episodes", type=int, default=2880, help="for each source, and for the bank")
    parser.add_argument("--rows", type=int, default=4000, help="of each source at most, and of the bank; drawn")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--learning_rate", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    made = [of_skills(given.environment, given.episodes, given.seed)]
    made += [of_texts(given.environment, source, given.episodes, given.seed) for source in given.sources]
    rows = [row for part in made for row in draw.sample(part, min(given.rows * (1 + (part is made[0])), len(part)))]
    print(f"{[len(part) for part in made]} turns, {len(rows)} of them learnt", flush=True)
    given.output.mkdir(parents=True, exist_ok=True)
    (given.output / "demonstrations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = start(given.environment, given.output / "start")
    config = WarmStartConfig(
        model=str(model), max_steps=given.steps, learning_rate=given.learning_rate, seed=given.seed
    )
    made_policy = warm_start(rows, given.output / "policy", config, settings=preset(given.environment))
    print(f"{made_policy.updates} updates")


if __name__ == "__main__":
    main()
