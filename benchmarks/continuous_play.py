"""What it costs that episodes wait for each other: rounds with each turn taken together, and with nobody waiting.

Both go through the project's own player, in four parts. In the model, an engine has a clock of its own: a decoding
step takes some time and a little more for each live response, a prompt takes time to be read, and environments take
theirs. With the server, delays are real: requests over loopback, and environments that sleep. The third part is what a
turn takes in the player's own machinery. The last trains on such a server with updates that sleep, with and without
`rounds_ahead`.

    python benchmarks/continuous_play.py --output play.json
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from alignopsd_trl.environments import Opening, Projection, Step, TextEnvironment, View, open_batch
from alignopsd_trl.environments.batch import SerialBatch
from alignopsd_trl.experimental.server import Server, ServerSampler
from alignopsd_trl.rollout.driver import BatchedCalls, Driver, Lockstep, result_of
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.rollout.renderer import Renderer
from alignopsd_trl.rollout.sampler import AnySampler, Continuous, Request, Response, Responses
from alignopsd_trl.turns import Seeds

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fakes.servers import ScriptedServer, acting, make_served  # noqa: E402

TICK = 0.01  # seconds: prompts say times in so many
MOST_TICKS = 999
MOST_TOKENS = 512
CHAT = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
TOKENIZER = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(
        models.WordLevel({"<end>": 0, "<unk>": 1, **{f"w{number}": number + 2 for number in range(1000)}}, "<unk>")
    ),
    eos_token="<end>",
    pad_token="<unk>",
    chat_template=CHAT,
)
TOKENIZER.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()


class Shape(NamedTuple):
    """How long things are.

    Attributes:
        turns, most_turns: of an episode; geometric.
        tokens, variation: of a response, mean and coefficient of variation; log-normal, `MOST_TOKENS` at most.
        latency: mean seconds of an environment's step; exponential.
    """

    turns: float = 10.0
    most_turns: int = 50
    tokens: float = 150.0
    variation: float = 0.6
    latency: float = 0.0


class Plan:
    """What happens in an episode.

    Attributes:
        tokens: of each response.
        ticks: of each step of the environment.
    """

    def __init__(self, seed: int, shape: Shape):
        draw, turns = random.Random(seed), 1
        while turns < shape.most_turns and draw.random() > 1 / shape.turns:
            turns += 1
        spread = math.log1p(shape.variation**2)
        lengths = [draw.lognormvariate(math.log(shape.tokens) - spread / 2, spread**0.5) for _ in range(turns)]
        self.tokens = [min(max(round(one), 1), MOST_TOKENS) for one in lengths]
        waits = [draw.expovariate(1 / shape.latency) / TICK if shape.latency else 0.0 for _ in range(turns)]
        self.ticks = [min(round(one), MOST_TICKS) for one in waits]

    def seconds(self, step: float) -> float:
        """How long the episode takes where nothing is waited for and a token takes so many seconds."""
        return sum(self.tokens) * step + sum(self.ticks) * TICK


class PlanPrompt:
    """Tokens of the response to come, and ticks of the steps before and after it (0 unless it is the last)."""

    name = "plan"

    def render(self, view: View, skill: str = "") -> str:
        return view.observation


def planned(shape: Shape, sleeps: bool) -> type[TextEnvironment]:
    """Environments whose episodes go by their plan."""

    class Planned(TextEnvironment):
        concurrent = True  # it waits
        prompt = PlanPrompt()
        history_length = 0
        max_turns = shape.most_turns
        openings_may_differ = True

        def reset(self, dynamics_seed: int, **columns: Any) -> Opening:
            self._plan, self._turn = Plan(dynamics_seed, shape), 0
            return Opening(self._shown(), "plan")

        def step(self, action: str) -> Step:
            if sleeps:
                time.sleep(self._plan.ticks[self._turn] * TICK)
            self._turn += 1
            done = self._turn == len(self._plan.tokens)
            return Step("" if done else self._shown(), float(done), done)

        def project(self, response: str, admissible: Any = None) -> Projection:
            return Projection(response, True)

        def _shown(self) -> str:
            tokens, ticks, turn = self._plan.tokens, self._plan.ticks, self._turn
            after = ticks[turn] if turn + 1 == len(tokens) else 0
            return f"w{tokens[turn]} w{ticks[turn - 1] if turn else 0} w{after}"

    if not sleeps:
        Planned.batch = classmethod(lambda kind, size, limit: SerialBatch([kind() for _ in range(size)]))  # ty: ignore[missing-attribute]
    return Planned


def read(prompt: Sequence[int]) -> list[int]:
    """The numbers that a prompt says."""
    return [token - 2 for token in prompt[:3]]


def play(shape: Shape, sampler: AnySampler, seeds: Sequence[int], sleeps: bool = False) -> float:
    """Plays an episode a seed; seconds."""
    batch = open_batch(planned(shape, sleeps), len(seeds))
    player = Player(batch, Renderer(TOKENIZER, batch.prompt, PlayOptions(16)), sampler, TOKENIZER, [0])
    began = time.perf_counter()
    try:
        played = player.play([{}] * len(seeds), [Seeds(0, seed) for seed in seeds], ["t"] * len(seeds))
    finally:
        batch.close()
    took = time.perf_counter() - began
    if [len(one.turns) for one in played] != [len(Plan(seed, shape).tokens) for seed in seeds]:
        raise RuntimeError("an episode did not go by its plan")
    return took


# The model


class Costs(NamedTuple):
    """Seconds of a decoding step, of each live response in it, and of reading a prompt."""

    step: float = 0.020
    live: float = 0.0001
    prompt: float = 0.005


class Engine(Continuous):
    """A sampler whose engine is a model with a clock.

    Attributes:
        now: seconds.
        steps: decoding steps so far.
        decoded: tokens so far.
    """

    def __init__(self, slots: int, costs: Costs):
        self._slots, self._costs = slots, costs
        self.now = self.end = 0.0
        self.steps = self.decoded = 0
        self.drop()

    @property
    def waiting(self) -> int:
        return len(self._due) + len(self._live)

    def submit(self, request: Request) -> Future[Response]:
        tokens, before, after = read(request.prompt_ids)
        return self.add(tokens, self.now + before * TICK, after * TICK)

    def add(self, tokens: int, due: float, after: float) -> Future[Response]:
        """Takes a request that comes in at a time."""
        future: Future[Response] = Future()
        self._count += 1
        heapq.heappush(self._due, (due, self._count, tokens, after, future))
        return future

    def advance(self) -> bool:
        """One decoding step."""
        if not self.waiting:
            return False
        if not self._live:
            self.now = max(self.now, self._due[0][0])
        while self._due and self._due[0][0] <= self.now and len(self._live) < self._slots:
            _, _, tokens, after, future = heapq.heappop(self._due)
            self._live.append([tokens, after, future])
            self.now += self._costs.prompt
        self.now += self._costs.step + self._costs.live * len(self._live)
        self.steps, self.decoded = self.steps + 1, self.decoded + len(self._live)
        for one in self._live:
            one[0] -= 1
        ended, self._live = [one for one in self._live if not one[0]], [one for one in self._live if one[0]]
        for _, after, future in ended:
            self.end = max(self.end, self.now + after)
            future.set_result(Response([2, 0]))
        return True

    def drop(self) -> None:
        self._due: list[Any] = []
        self._live: list[list[Any]] = []
        self._count = 0


class Barrier:
    """The same engine as a batch sampler: the slowest environment comes before it, the longest response ends it."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def respond(self, prompts: Sequence[Sequence[int]], until: Any = None) -> Responses:
        asked = [read(prompt) for prompt in prompts]
        due = self._engine.now + max(before for _, before, _ in asked) * TICK
        futures = [self._engine.add(tokens, due, after * TICK) for tokens, _, after in asked]
        while self._engine.advance():
            pass
        return Responses([list(one.result().ids) for one in futures], None)


def modelled(shape: Shape, episodes: int, slots: int, costs: Costs, seed: int) -> dict[str, Any]:
    """Steps, live share and seconds of the model, together and with nobody waiting."""
    seeds = [1000 * seed + number for number in range(episodes)]
    found: dict[str, Any] = {}
    for name in ("lockstep", "continuous"):
        engine = Engine(slots, costs)
        play(shape, engine if name == "continuous" else Barrier(engine), seeds)
        share = engine.decoded / engine.steps / min(slots, episodes)
        found[name] = {"steps": engine.steps, "live_share": share, "seconds": max(engine.now, engine.end)}
    for ratio, of in (("step_ratio", "steps"), ("wall_ratio", "seconds")):
        found[ratio] = found["lockstep"][of] / found["continuous"][of]
    return found


# The server


class Together:
    """A sampler's requests as one batch."""

    def __init__(self, sampler: Continuous):
        self._sampler = sampler

    def respond(self, prompts: Sequence[Sequence[int]], until: Any = None) -> Responses:
        return self._sampler.respond(prompts, until)


def served(shape: Shape, episodes: int, token_seconds: float, seed: int) -> dict[str, float]:
    """Wall seconds over a server with a slot an episode, beside the longest episode."""
    seeds = [1000 * seed + number for number in range(episodes)]

    def delay(body: dict[str, Any]) -> float:
        return read(body["prompt"])[0] * token_seconds

    found = {"bound": max(Plan(one, shape).seconds(token_seconds) for one in seeds)}
    with ScriptedServer(answer=lambda body: [2, 0], delay=delay) as server:
        engine = Server(server.address, episodes)
        sampler = ServerSampler(engine, {"logprobs": 0})
        try:
            for name, one in (("lockstep", Together(sampler)), ("continuous", sampler)):
                found[name] = play(shape, one, seeds, sleeps=True)
        finally:
            engine.close()
    return found | {
        "wall_ratio": found["lockstep"] / found["continuous"],
        "over_bound": found["continuous"] / found["bound"],
    }


# The player's own share


def overhead(episodes: int, turns: int) -> float:
    """Microseconds a turn that coroutines, futures and the driver take: three things are awaited, and nothing done."""

    class Nothing:
        def respond(self, prompts: Sequence[Sequence[int]], until: Any = None) -> Responses:
            return Responses([[0]] * len(prompts), None)

    def seconds() -> float:
        sampler = Lockstep(Nothing(), lambda number: number, lambda: [0])
        queues = [BatchedCalls(lambda slots, questions: questions) for _ in range(2)]

        async def episode(number: int) -> None:
            for _ in range(turns):
                await result_of(queues[0].submit(number, number))
                await result_of(sampler.submit(Request([0], episode=number)))
                await result_of(queues[1].submit(number, number))

        driver = Driver([episode(number) for number in range(episodes)], [sampler], queues)
        began = time.thread_time()
        while driver.live:
            driver.run()
            driver.meet()
        return time.thread_time() - began

    return min(seconds() for _ in range(5)) / episodes / turns * 1e6


# Rounds that overlap


def trained(ahead: int, turn: float, update: float, rounds: int) -> dict[str, float]:
    """Seconds of a round of training on the toy game, between its first and its last one, and those that it waits for
    episodes, of up to five turns.

    Args:
        turn: seconds of a response.
        update: seconds that the update takes beside its own.
    """
    with TemporaryDirectory() as folder, ScriptedServer(acting, lambda body: turn) as server:
        options = {"max_steps": rounds, "self_check": False, "save_trajectories": True, "rounds_ahead": ahead}
        trainer = make_served(Path(folder), server, **options)
        inner, began = trainer.compute_loss, []

        def compute_loss(*arguments: Any, **options: Any) -> Any:
            began.append(time.perf_counter())
            time.sleep(update)
            return inner(*arguments, **options)

        trainer.compute_loss = compute_loss
        trainer.train()
        lines = [entry for entry in trainer.state.log_history if "loss" in entry][1:]
    seconds = (began[-1] - began[0]) / (rounds - 1)
    return {"seconds": seconds, "waits": mean(line["seconds/rollout"] for line in lines)}


def overlapped(turn: float, update: float, rounds: int) -> dict[str, float]:
    """A round with `rounds_ahead`, beside the longer of playing and all the rest as they are one after the other."""
    apart, ahead = (trained(one, turn, update, rounds) for one in (0, 1))
    longer = max(apart["waits"], apart["seconds"] - apart["waits"])
    found = {"play": apart["waits"], "rest": apart["seconds"] - apart["waits"], "apart": apart["seconds"]}
    found |= {"ahead": ahead["seconds"], "still_waits": ahead["waits"]}
    return found | {"ahead_over_max": ahead["seconds"] / longer, "faster": apart["seconds"] / ahead["seconds"]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3, help="rounds of each case of the model")
    parser.add_argument("--server_turns", type=int, default=20, help="of the longest episodes that the server plays")
    parser.add_argument("--token_seconds", type=float, default=0.004, help="of the server, for each token")
    parser.add_argument("--rounds", type=int, default=6, help="of training, with and without rounds_ahead")
    parser.add_argument("--only_ahead", action="store_true", help="measure the last part alone")
    given = parser.parse_args(arguments)
    console = Console()
    cases = [overlapped(0.8, update, given.rounds) for update in (2.0, 4.0, 6.0)]
    for one in cases:
        shown = "{play:.1f} s play and {rest:.1f} s the rest: {apart:.1f} s a round, {ahead:.1f} s ahead"
        console.print(shown.format(**one) + f", {one['ahead_over_max']:.2f} of the longer")
    ahead = {"ahead_over_max": max(one["ahead_over_max"] for one in cases), "ahead": cases}
    found = ahead if given.only_ahead else measured(given, console) | ahead
    given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measured(given: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The model, the server and the player's own share."""
    costs = Costs()
    table = Table("variation", "latency", "steps", "fewer", "live", "", "less wall")
    cases = []
    for variation in (0.3, 0.6, 1.0):
        for latency in (0.0, 0.5, 2.0):
            shape = Shape(variation=variation, latency=latency)
            rounds = [modelled(shape, given.episodes, given.episodes, costs, seed) for seed in range(given.seeds)]
            case = {"shape": shape._asdict(), "costs": costs._asdict(), "rounds": rounds}
            case |= {name: mean(one[name] for one in rounds) for name in ("step_ratio", "wall_ratio")}
            cases.append(case)
            live = [mean(one[name]["live_share"] for one in rounds) for name in ("lockstep", "continuous")]
            steps = mean(one["lockstep"]["steps"] for one in rounds)
            shown = [f"{variation:g}", f"{latency:g} s", f"{steps:,.0f}", f"{case['step_ratio']:.2f} x"]
            table.add_row(*shown, *(f"{share:.0%}" for share in live), f"{case['wall_ratio']:.2f} x")
    console.print(table)
    shape = Shape(turns=given.server_turns / 3, most_turns=given.server_turns, latency=0.5)
    server = served(shape, given.episodes, given.token_seconds, 0) | {"shape": shape._asdict()}
    console.print(
        f"server: {server['lockstep']:.1f} s together, {server['continuous']:.1f} s with nobody waiting, "
        f"{server['bound']:.1f} s the longest episode"
    )
    micro = overhead(given.episodes, 200)
    console.print(f"{micro:.0f} microseconds a turn for coroutines and futures")
    headline = next(one for one in cases if one["shape"]["variation"] == 0.6 and not one["shape"]["latency"])
    return {
        "step_ratio": headline["step_ratio"],
        "wall_ratio": server["wall_ratio"],
        "over_bound": server["over_bound"],
        "overhead_microseconds_a_turn": micro,
        "episodes": given.episodes,
        "model": cases,
        "server": server,
    }


if __name__ == "__main__":
    main()
