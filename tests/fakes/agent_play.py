"""Agents that own their loop, and a policy that answers them by a function of the prompt's text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from fakes.plays import play_with
from fakes.tool_classes import chat_tokenizer
from fakes.toy import Scripted

from alignopsd_trl.rollout.options import PlayOptions
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


def asking(*bodies: dict[str, Any]) -> Any:
    """An agent that sends these requests, which need no messages, and gets 1."""

    async def agent(row: Any, client: Any) -> float:
        for body in bodies:
            await client.chat(**{"messages": START} | body)
        return 1.0

    return agent


def text_of(completion: Any) -> str:
    return completion["choices"][0]["message"]["content"]


def written(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


def called(arguments: str) -> str:
    return written(f'{{"name": "guess", "arguments": {arguments}}}')


def guessed(number: int) -> str:
    return called(f'{{"number": {number}}}')


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
    source: Any = None,
    **given: Any,
) -> list[Trajectory]:
    """Episodes of an agent, ``siblings`` of each row; with privileged texts of a ``source``, if one is given."""
    tokenizer, reserved = tokenizer or chat_tokenizer(), 80 if source else 0
    given = {"max_prompt_length": 8000, "skills": lambda *_: ("", ()) if source else (HINT, ("hint",))} | given
    asked, every = sampler or policy(tokenizer, say, log), [row for row in rows for _ in range(siblings)]
    given |= {"siblings": siblings, "time_limit": limit, "reserved": reserved}
    found = play_with(asked, factory, every, tokenizer, **given)
    if source:
        options = PlayOptions(**{name: given[name] for name in PlayOptions.names() if name in given})
        renderer = Renderer(tokenizer, factory.prompt, options, reserved)
        TurnTexts(load_source(source), tokenizer, 64).give(found, renderer)
    return found


def exact(factory: Any, *given: Any, tokenizer: Any = None, **options: Any) -> list[Trajectory]:
    """Does as `played`. All that was sampled is in the turns, and the teacher's prompt differs by the skill alone."""
    tokenizer, log = tokenizer or chat_tokenizer(), list[Any]()
    trajectories = played(factory, *given, log=log, tokenizer=tokenizer, **options)
    turns = [turn for one in trajectories for turn in one.turns]
    assert sorted(log) == sorted((tuple(one.prompt_ids), tuple(one.response_ids)) for one in turns)
    for turn in turns:
        privileged = tokenizer.decode(turn.privileged_ids)
        assert privileged.count(HINT) == 1 and privileged.replace(f"\n\n{HINT}", "") == tokenizer.decode(
            turn.prompt_ids
        )
    return trajectories
