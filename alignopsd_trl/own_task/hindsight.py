"""Demonstrates what to do where the prompt tells what became of a turn, or what a better sibling did there.

No player knows these texts while it plays. So the turns of played episodes get the texts of a source afterwards, and an
answer that was good there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from alignopsd_trl.own_task.playing import PlayedEpisode, PlayedTurn
from alignopsd_trl.privileged import PrivilegedSource
from alignopsd_trl.turns import NO_THOUGHT, Trajectory, Turn

SIBLINGS = 8  # episodes of a task


def retold(source: PrivilegedSource, played: Iterable[PlayedEpisode]) -> Iterator[PlayedEpisode]:
    """Yields the episodes, the skilled ones with only those of their turns that have a text and a good answer.

    The answer is that of the sibling that ended best of all that met the state, the turn's own if none ended better. It
    is good if that sibling won or, where nobody knows, if another one of the group ended worse.

    Args:
        played: groups of siblings, which follow each other.
    """
    for _, members in groupby(played, key=lambda one: one.row["task_id"]):
        group = list(members)
        read = [_trajectory(one) for one in group]
        source.begin(read)
        for episode, own in zip(group, read, strict=True):
            if episode.skilled:
                texts = [source(turn, own, [one for one in read if one is not own]) for turn in own.turns]
                episode = replace(episode, turns=_taught(episode, texts, group))
            yield episode


def _taught(episode: PlayedEpisode, texts: Sequence[str], group: Sequence[PlayedEpisode]) -> list[PlayedTurn]:
    """Returns the turns with their texts and answers, without those that lack one of them."""
    taught = [
        replace(turn, told=text.strip(), response=_answer(turn, [episode, *group]))
        for turn, text in zip(episode.turns, texts, strict=True)
    ]
    return [turn for turn in taught if turn.told and turn.response]


def _answer(turn: PlayedTurn, group: Sequence[PlayedEpisode]) -> str:
    """Returns the last valid response in a turn's state of the first that ended best; empty if it is not good."""
    met = [(one, response) for one in group if (response := _last(one, turn))]
    best, response = max(met, key=lambda one: one[0].reward, default=(group[0], ""))
    good = response and (best.won or (best.won is None and best.reward > min(one.reward for one in group)))
    return response if good else ""


def _last(episode: PlayedEpisode, met: PlayedTurn) -> str:
    same = (turn for turn in reversed(episode.turns) if turn.valid and _state(turn) == _state(met))
    return next((turn.response for turn in same), "")


def _state(turn: PlayedTurn) -> tuple[bool, str]:
    return turn.view.step_count == 0, turn.view.observation


def _trajectory(episode: PlayedEpisode) -> Trajectory:
    """Returns an episode as a source reads it; without token ids and thoughts, since no policy played."""
    return Trajectory(
        dict(episode.row),
        episode.row["task_id"],
        "",
        task_text=episode.opening.task_text if episode.opening else "",
        turns=[_turn(one) for one in episode.turns],
        reward=episode.reward,
        won=episode.won,
        score=episode.score or 0.0,
    )


def _turn(played: PlayedTurn) -> Turn:
    step, view = played.step, played.view
    return Turn(
        *(view.step_count, "", [], [], [], played.response, NO_THOUGHT, played.action, played.valid, step.observation),
        reward=step.reward,
        info={**step.info, **step.metrics},
        chosen_on=view.observation,
    )
