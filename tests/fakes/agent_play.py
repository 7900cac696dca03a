"""Agents that own their loop, and a policy that answers them by a function of the prompt's text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from fakes.tool_classes import chat_tokenizer
from fakes.toy import Scripted

from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.rollout.episode import episode_seeds
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.rollout.renderer import Renderer
from alignopsd_trl.skills.turn_texts import TurnTexts, load_source
from alignopsd_trl.turns import Trajectory

START = [{"role": "system", "content": "You play a game."}, {"role": "user", "content": "Guess a number."}]
GUESS = {
    "type": "function",
    "function": {
        "name": "guess",
        "description": "Guess.",
        "strict": True,
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}
HINT = "Halve the range."
ONE = [{"task_id": "one", "secret": 3}]


async def by_openai(row: Any, client: Any) -> float:
    """Plays three turns of chat completions."""
    messages: list[Any] = list(START)
    for _ in range(3):
        asked = client.openai.chat.completions.create(model="policy", messages=messages, tools=[GUESS])
        said = (await asked).choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        for one in said.tool_calls or ():
            told = f"not {json.loads(one.function.arguments)['number']}"
            messages.append({"role": "tool", "tool_call_id": one.id, "content": told})
    return 0.5


def called(number: int) -> str:
    return f'<tool_call>\n{{"name": "guess", "arguments": {{"number": {number}}}}}\n</tool_call>'


def number_of(text: str) -> int:
    """A number that depends on the prompt alone."""
    return hashlib.sha256(text.encode()).digest()[0] % 10


def policy(tokenizer: Any, say: Callable[[str], str] | None = None, log: list[Any] | None = None) -> Scripted:
    """Answers each prompt by its text, ``say(text)``, by default a number."""

    def respond(prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], None]:
        answers = []
        for ids in prompts:
            text = (say or (lambda text: str(number_of(text))))(tokenizer.decode(ids))
            answers.append([*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id])
            if log is not None:
                log.append((tuple(ids), tuple(answers[-1])))
        return answers, None

    return Scripted(respond)


def played(
    factory: Any,
    rows: Sequence[dict[str, Any]] = ONE,
    say: Callable[[str], str] | None = None,
    *,
    siblings: int = 2,
    log: list[Any] | None = None,
    limit: float = 20.0,
    tokenizer: Any = None,
    sampler: Any = None,
    settings: Any = None,
    max_turns: int | None = None,
    source: Any = None,
    **options: Any,
) -> list[Trajectory]:
    """Episodes of an agent, ``siblings`` of each row; with privileged texts of a ``source``, if one is given."""
    tokenizer = tokenizer or chat_tokenizer()
    batch = open_batch(factory, len(rows) * siblings, limit)
    reserved = 80 if source else 0
    renderer = Renderer(tokenizer, batch.prompt, PlayOptions(**{"max_prompt_length": 8000} | options), reserved)
    player = Player(
        batch,
        renderer,
        sampler or policy(tokenizer, say, log),
        tokenizer,
        [tokenizer.eos_token_id],
        skills=lambda *_: ("", ()) if source else (HINT, ("hint",)),
        settings=settings or {},
        max_turns=max_turns,
    )
    every = [row for row in rows for _ in range(siblings)]
    seeds = [episode_seeds(row["task_id"], 0, place % siblings) for place, row in enumerate(every)]
    try:
        found = player.play(every, seeds, [row["task_id"] for row in every])
    finally:
        batch.close()
    if source:
        TurnTexts(load_source(source), tokenizer, 64).give(found, renderer)
    return found


def exact(trajectories: list[Trajectory], log: list[Any], tokenizer: Any) -> None:
    """All that was sampled is in the turns, and the teacher's prompt differs by the skill alone."""
    turns = [turn for one in trajectories for turn in one.turns]
    assert sorted(log) == sorted((tuple(one.prompt_ids), tuple(one.response_ids)) for one in turns)
    for turn in turns:
        privileged = tokenizer.decode(turn.privileged_ids)
        assert privileged.count(HINT) == 1 and privileged.replace(f"\n\n{HINT}", "") == tokenizer.decode(
            turn.prompt_ids
        )
