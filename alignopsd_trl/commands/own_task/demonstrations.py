"""Demonstrations: turns of played episodes as rows of TRL's conversational prompt-completion form.

The `Renderer` makes these prompts as it makes the policy's: the same template, the same cut of the history, the same
skill block. In a share of the episodes the player reads the skill, and the prompts contain it. The other prompts are
those of a student.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from alignopsd_trl.commands.own_task.check.contest import unlearnable
from alignopsd_trl.commands.own_task.options import SKILLED_SHARE
from alignopsd_trl.commands.own_task.playing import Actor, Scripted, check_room, native_message, play
from alignopsd_trl.commands.own_task.task import Task
from alignopsd_trl.commands.own_task.warm_start.tiny import WordCount, tiny_tokenizer
from alignopsd_trl.common.files import write_text
from alignopsd_trl.common.options import path_as_given
from alignopsd_trl.common.progress import quoted
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.environments.base import Chat, Message, Rendered
from alignopsd_trl.rollout.conversations import Conversation
from alignopsd_trl.rollout.episode import Episode, SkillSource, no_skills
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.renderer import Renderer, messages_of, text_of
from alignopsd_trl.rollout.requests import asks
from alignopsd_trl.runs.owned import owned
from alignopsd_trl.skills import load_skills, skill_budget, skill_source
from alignopsd_trl.turns import StopReason, Trajectory

ENDS = {StopReason.DONE: "ended", StopReason.ENVIRONMENT_ERROR: "failed"}


@dataclass(frozen=True)
class Demonstrations:
    """Rows for `SFTTrainer`, and the episodes that they come from."""

    rows: list[dict[str, Any]]
    episodes: list[Trajectory]
    too_long: int

    def told(self) -> str:
        """Returns a summary in one line."""
        named = {"without the skill": False, "with it": True}
        parts = {name: [one for one in self.episodes if one.privileged is kind] for name, kind in named.items()}
        won = ", ".join(f"{_won(part)} {name}" for name, part in parts.items() if part)
        stops = Counter(ENDS.get(one.stop, "turn limit") for one in self.episodes)
        ends = ", ".join(f"{count} {stop}" for stop, count in stops.most_common())
        cut = f"; {self.too_long} turns left out: their prompt is too long" if self.too_long else ""
        turns = sum(one["role"] == "assistant" for row in self.rows for one in row["completion"])
        return f"{turns} turns of {len(self.episodes)} episodes ({ends}); {won}{cut}"


def _won(episodes: Sequence[Trajectory]) -> str:
    if all(one.won is None for one in episodes):
        return f"reward {sum(one.reward for one in episodes) / len(episodes):.3g} on average"
    return f"{sum(bool(one.won) for one in episodes)} of {len(episodes)} won"


def demonstrate(
    task: Task,
    actor: Actor,
    *,
    episodes: int,
    seed: int = 0,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_prompt_length: int | None = None,
    skill_bank: Any = None,
    encoder: str = "lexical",
    won_only: bool = False,
    skilled_share: float = SKILLED_SHARE,
    hidden: bool = False,
) -> Demonstrations:
    """Lets a player play training tasks, and returns its turns as rows. Raises `ValueError` if no turn is left.

    Args:
        episodes: their number; tasks are drawn in passes over the training split, without those held out.
        tokenizer: the policy's, which counts tokens; by default that of a `tiny` policy for the played texts.
        max_prompt_length: tokens of a prompt at most; by default the recipe's.
        skill_bank, encoder: as in a recipe; by default the suite's bank.
        won_only: leaves out episodes that were not won.
        skilled_share: share of the episodes in which the player and the prompts have the skill.
        hidden: whether the skill stands in the player's prompts alone, and in no row.
    """
    prompt = task.declared.prompt
    if task.preset.get("history") == "conversation" and getattr(prompt, "native", False):
        raise ValueError(
            f"task {task.name}: the recipe's history is 'conversation', which can't be demonstrated for calls in the "
            "template's format; leave history out"
        )
    limit = task.limit("max_prompt_length", max_prompt_length)
    rows = _drawn(task.learnt(), episodes, seed)
    check_room(task.suite.factory, rows)
    skills = skills_of(task, bank_of(task, skill_bank, encoder), tokenizer or WordCount(), limit)
    all_played = play(task.suite.factory, rows, actor, skills=skills, skilled_share=skilled_share)
    played = [one.trajectory for one in all_played]
    kept = [one for one in played if not one.failed and (one.won or not won_only)]
    if not any(turn.action_valid for one in kept for turn in one.turns):
        raise ValueError(
            f"task {task.name}: no turn to learn from in {episodes} episodes; {_why(all_played, won_only)}"
        )
    if isinstance(actor, Scripted) and (wrong := next((one for one in unlearnable(all_played) if one.ruins), None)):
        raise ValueError(f"task {task.name}: {wrong.text}")
    learnt = [replace(one, privileged=False) for one in kept] if hidden else kept
    shown, too_long = _rows(task, learnt, tokenizer, limit)
    shown = [{**row, "own": True} for row in shown] if hidden else shown
    if not shown:
        raise ValueError(
            f"task {task.name}: no prompt fits max_prompt_length={limit}; raise it, or show less in a prompt"
        )
    return Demonstrations(shown, played, too_long)


def bank_of(task: Task, bank: Any = None, encoder: str = "lexical") -> Any:
    """Returns the given skill bank, the recipe's or the suite's; `None` if none is named. Raises `ValueError` if it
    can't be read."""
    name = bank or task.preset.get("skill_bank") or task.suite.skill_bank
    return load_skills(name, load_encoder(encoder), task.rows[0].keys()) if name else None


def skills_of(
    task: Task, bank: Any, tokenizer: PreTrainedTokenizerBase | WordCount, max_prompt_length: int
) -> SkillSource:
    """Returns the source of a bank's skills; `no_skills` without a bank."""
    if bank is None:
        return no_skills
    return skill_source(bank, tokenizer, task.limit("skill_tokens") or skill_budget(max_prompt_length))


def _drawn(rows: Sequence[Any], episodes: int, seed: int) -> list[Any]:
    """Draws rows in passes over all rows, each pass in a new order."""
    draw, chosen = random.Random(seed), []
    while len(chosen) < episodes:
        chosen += draw.sample(rows, len(rows))
    return chosen[:episodes]


def _why(played: Sequence[Episode], won_only: bool) -> str:
    failed = [one.failure.message for one in played if one.failure is not None]
    if failed:
        return f"{len(failed)} failed, the first with: {failed[0]}"
    turns = [turn for one in played for turn in one.trajectory.turns]
    if turns and not any(turn.action_valid for turn in turns):
        said = quoted(turns[0].response_text)
        return f"none of {len(turns)} responses is a valid action, such as {said}; let a better player play"
    return "none was won; leave --won_only out, or let a better player play" if won_only else "all ended at once"


def _rows(
    task: Task, episodes: Sequence[Trajectory], tokenizer: PreTrainedTokenizerBase | None, limit: int
) -> tuple[list[dict[str, Any]], int]:
    """Returns the rows, and the number of turns whose prompt is too long."""
    prompt, tokenizer = task.declared.prompt, tokenizer or tiny_tokenizer(texts_of(task, episodes))
    renderer = Renderer(tokenizer, prompt, PlayOptions(**play_options({**task.preset, "max_prompt_length": limit})))
    rows, too_long, native = [], 0, getattr(prompt, "native", False)
    for episode in episodes:
        if renderer.converses and not asks(prompt):  # an agent's request has all of its dialogue
            told, left = dialogue(episode, renderer)
            rows += [told | _of(episode, 0)] if told else []
            too_long += left
            continue
        views = [turn.shown.view for turn in episode.turns]
        fitted = renderer.fit(views, [episode.skill_text] * len(views))
        too_long += sum(one is None for one in fitted)
        for turn, one in zip(episode.turns, fitted, strict=True):
            if one is not None:
                shown, text = one.shown if episode.privileged else renderer.show(one.view, ""), turn.response_text
                said = native_message(text)[0] if native else {"role": "assistant", "content": text}
                rows.append(_learnt(shown, [said]) | _of(episode, turn.number))
    return rows, too_long


def texts_of(task: Task, episodes: Sequence[Trajectory]) -> list[str]:
    """Returns all prompts and responses of the episodes."""
    prompt = task.declared.prompt
    texts = list[str]()
    for one in episodes:
        for turn in one.turns:
            texts += [text_of(prompt.render(turn.shown.view, one.skill_text)), turn.response_text]
    return texts


def _learnt(opening: Rendered, completion: list[Message]) -> dict[str, Any]:
    tools = list(Chat.of(opening).tools)
    return {"prompt": messages_of(opening), "completion": completion} | ({"tools": tools} if tools else {})


def _of(episode: Trajectory, turn: int) -> dict[str, Any]:
    return {"task_id": episode.row["task_id"], "turn": turn, "skilled": episode.privileged, "won": episode.won}


def write_demonstrations(path: str | Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes JSON lines, the whole file or none of it."""
    with owned("demonstrate", Path(path)):
        write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_demonstrations(path: str | Path) -> list[dict[str, Any]]:
    """Reads the rows of a file. Raises `ValueError` if there is no such file, or it holds no demonstrations."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"--data {path_as_given(path)} is no file; name one that alignopsd demonstrate TASK wrote")
    lines = path.read_bytes().split(b"\n")
    rows = [_read_row(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise ValueError(f"{path} is empty; make it anew with alignopsd demonstrate")
    return rows


def _read_row(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place} is no JSON ({error}); make the file anew with alignopsd demonstrate") from None
    if not isinstance(row, dict) or not _messages(row.get("prompt")) or not _messages(row.get("completion")):
        raise ValueError(f"{place}: 'prompt' and 'completion' must be lists of messages with role and content")
    return row


def _messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and "role" in one for one in value)


# Dialogues (``history="conversation"``): an episode as one row, and its token ids for training


def play_options(preset: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recipe's settings that are fields of `PlayOptions`."""
    return {name: preset[name] for name in PlayOptions.names() if name in preset}


def dialogue(episode: Trajectory, renderer: Renderer) -> tuple[dict[str, Any], int]:
    """Makes one training row of an episode, in TRL's conversational form: the first prompt, and all responses with the
    replies between them as its completion. Returns it with the number of turns at the episode's end that it leaves out
    because their prompt is too long."""
    fitted = renderer.fit([episode.turns[0].shown.view], [episode.skill_text])[0]
    if fitted is None:
        return {}, len(episode.turns)
    opening = fitted.shown if episode.privileged else renderer.show(fitted.view, "")
    begun, tools, said = messages_of(opening), list(Chat.of(opening).tools), list[Message]()
    for number, turn in enumerate(episode.turns):
        asked = [*said, *messages_of(renderer.reply(turn.shown.view))] if number else []
        if len(renderer.encode([Chat([*begun, *asked], tools)])[0]) > renderer.max_length:
            break
        said = [*asked, {"role": "assistant", "content": turn.response_text}]
    return _learnt(opening, said), len(episode.turns) - sum(one["role"] == "assistant" for one in said)


def encoded(row: Mapping[str, Any], tokenizer: Any, preset: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Tokenises a dialogue into rows of ``input_ids`` and ``completion_mask``, which is 1 at the responses.

    A dialogue is one row. A chat template that changes earlier messages (by dropping their thinking, say) makes a
    prompt that no longer begins with the tokens so far: there another row begins. The tokenizer's ``eos_token`` ends a
    response."""
    renderer, end = Renderer(tokenizer, None, PlayOptions(**play_options(preset))), tokenizer.eos_token_id
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
