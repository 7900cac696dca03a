"""Demonstrated dialogues (``history="conversation"``): an episode as one row, and its token ids for training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from alignopsd_trl.environments.base import Chat, Message
from alignopsd_trl.own_task.playing import PlayedEpisode
from alignopsd_trl.rollout.conversations import Conversation
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.renderer import Renderer, messages_of, tools_of


def play_options(preset: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recipe's settings that are fields of `PlayOptions`."""
    return {name: preset[name] for name in PlayOptions.names() if name in preset}


def converses(preset: Mapping[str, Any]) -> bool:
    """Returns whether a recipe's policy reads the whole dialogue of an episode."""
    return preset.get("history") == "conversation"


def dialogue(episode: PlayedEpisode, renderer: Renderer) -> tuple[dict[str, Any], int]:
    """Makes one training row of an episode, in TRL's conversational form: the first prompt, and all responses with the
    replies between them as its completion.

    Returns:
        The row, and the number of turns at the episode's end that it leaves out because their prompt is too long.
    """
    fitted = renderer.fit([episode.turns[0].view], [episode.skill])[0]
    if fitted is None:
        return {}, len(episode.turns)
    opening = fitted.shown if episode.skilled else renderer.show(fitted.view, "")
    begun, tools, said = messages_of(opening), tools_of(opening), list[Message]()
    for number, turn in enumerate(episode.turns):
        asked = [*said, *messages_of(renderer.reply(turn.view))] if number else []
        if len(renderer.encode([Chat([*begun, *asked], tools)])[0]) > renderer.max_length:
            break
        said = [*asked, {"role": "assistant", "content": turn.response}]
    kept = sum(one["role"] == "assistant" for one in said)
    return {"prompt": begun, "completion": said} | ({"tools": tools} if tools else {}), len(episode.turns) - kept


def encoded(row: Mapping[str, Any], tokenizer: Any, preset: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Tokenises a dialogue into rows of ``input_ids`` and ``completion_mask``, which is 1 at the responses.

    A dialogue is one row. A chat template that changes earlier messages (by dropping their thinking, say) makes a
    prompt that no longer begins with the tokens so far: there another row begins.

    Args:
        row: made by `dialogue`.
        tokenizer: the policy's, whose ``eos_token`` ends a response.
        preset: the recipe's settings.
    """
    nobody: Any = None  # prompts are rendered already
    renderer, end = Renderer(tokenizer, nobody, PlayOptions(**play_options(preset))), tokenizer.eos_token_id
    opening = Chat(row["prompt"], row.get("tools") or ())
    talk = Conversation(renderer, opening, renderer.encode([opening])[0])
    ids, mask, rest = list[int](), list[int](), list(row["completion"])
    while rest:
        if talk.ids[: len(ids)] != ids:
            yield {**row, "input_ids": ids, "completion_mask": mask}
            ids, mask = [], []
        response = [*renderer.tokens(rest[0]["content"], talk.ids), end]
        mask += [0] * (len(talk.ids) - len(ids)) + [1] * len(response)
        ids = [*talk.ids, *response]
        later = next((place for place, one in enumerate(rest) if place and one["role"] == "assistant"), len(rest))
        reply, rest = rest[1:later], rest[later:]
        if rest:
            talk.go_on(response, Chat(reply), [end])
    yield {**row, "input_ids": ids, "completion_mask": mask}
