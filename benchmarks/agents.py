"""What a request of an agent costs, and a round of agents beside the same task as a `TextEnvironment`.

    python benchmarks/agents.py --output agents.json    # about two minutes of CPU; needs the extra "agents"

Requests are answered at once, so that only their way is measured: by `client.chat`, by openai's client without a socket
and over the loopback server, in 1 and in 64 episodes side by side. The round samples with a shipped policy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from alignopsd_trl.common.models import SHIPPED_MODELS
from alignopsd_trl.environments import Chat, Ending, Opening, Projection, Step, TextEnvironment, View
from alignopsd_trl.environments.adapters import AgentEnvironment
from alignopsd_trl.environments.base import Reply
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.player import make_player
from alignopsd_trl.rollout.siblings import episode_seeds
from alignopsd_trl.sampling.loop import LoopSampler

START = {"role": "user", "content": "Say a number."}
AGAIN = {"role": "user", "content": "Another one."}
TURNS, EPISODES = 5, 64


async def by_chat(row: Any, client: Any, turns: int = TURNS) -> float:
    messages = [START]
    for _ in range(turns):
        said = (await client.chat(messages=messages))["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": said}, AGAIN]
    return 1.0


async def by_openai(row: Any, client: Any) -> float:
    return await _through(client.openai)


async def by_url(row: Any, client: Any) -> float:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(api_key=client.key, base_url=client.url, max_retries=0) as served:
        return await _through(served)


async def _through(openai: Any) -> float:
    messages: list[Any] = [START]
    for _ in range(TURNS):
        asked = await openai.chat.completions.create(model="policy", messages=messages)
        messages += [{"role": "assistant", "content": asked.choices[0].message.content}, AGAIN]
    return 1.0


class Same(TextEnvironment):
    """The same task as `by_chat`, without an agent."""

    class prompt:  # noqa: N801 (the attribute's name)
        name = "same"

        @staticmethod
        def render(view: View, skill: str = "") -> Chat:
            past = [({"role": "assistant", "content": one.action}, AGAIN) for one in view.history]
            return Chat([START, *(message for pair in past for message in pair)])

    history_length = TURNS

    def reset(self, **row: Any) -> Opening:
        self._turns = 0
        return Opening("", START["content"])

    def step(self, action: str) -> Step:
        self._turns += 1
        return Step("", done=self._turns == TURNS, won=None)

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        return Projection(response, True)

    def finish(self) -> Ending:
        return Ending(1.0)


def request_cost(agent: Callable, episodes: int, rounds: int) -> float:
    """Returns the median milliseconds per request, of rounds without the starts of agents."""
    batch = AgentEnvironment(agent, format="text").batch(episodes, 60.0)
    found = []
    for _ in range(rounds + 1):
        batch.reset(range(episodes), [{"task_id": "one"}] * episodes)
        begin = time.perf_counter()
        for _ in range(TURNS):
            batch.step(range(episodes), [Reply("7")] * episodes)
        found.append((time.perf_counter() - begin) / TURNS / episodes * 1000)
        batch.finish(range(episodes))
    batch.close()
    return statistics.median(found[1:])


def round_time(factory: Any, model: Any, tokenizer: Any) -> float:
    """Returns the seconds in which all episodes of a round are played."""
    batch = open_batch(factory, EPISODES)
    sampler = LoopSampler(model, 1.0, 16, [tokenizer.eos_token_id], tokenizer.pad_token_id)
    player = make_player(batch, tokenizer, sampler, [tokenizer.eos_token_id], PlayOptions(2048))
    rows = [{"task_id": f"task-{place // 8}"} for place in range(EPISODES)]
    seeds = [episode_seeds(row["task_id"], 0, place % 8) for place, row in enumerate(rows)]
    begin = time.perf_counter()
    player.play(rows, seeds, [row["task_id"] for row in rows])
    spent = time.perf_counter() - begin
    batch.close()
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    costs = {
        f"{agent.__name__}, {episodes} episodes": request_cost(agent, episodes, options.rounds)
        for agent in (by_chat, by_openai, by_url)
        for episodes in (1, EPISODES)
    }
    folder = next(iter(SHIPPED_MODELS.values()))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    factories = {"agent": AgentEnvironment(by_chat, format="text"), "environment": Same}
    rounds = [
        {name: round_time(one, model, tokenizer) for name, one in factories.items()} for _ in range(options.rounds)
    ]
    result = {
        "milliseconds_per_request": costs,
        "round_seconds": {name: statistics.median(one[name] for one in rounds) for name in factories},
        "round_ratio": statistics.median(one["agent"] / one["environment"] for one in rounds),
        "parameters": sum(one.numel() for one in model.parameters()),
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
