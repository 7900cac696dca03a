"""Demonstrates what to do where the prompt tells what became of a turn, or what a better sibling did there.

No player knows these texts while it plays. So the turns of played sibling groups are shown once more, each with the text
that a source has for it and with an answer that was good there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from alignopsd_trl.own_task.playing import FAILED, PlayedEpisode, PlayedTurn
from alignopsd_trl.privileged import PrivilegedSource
from alignopsd_trl.turns import NO_THOUGHT, Trajectory, Turn

SIBLINGS = 8  # episodes of a task


def retold(source: PrivilegedSource, played: Sequence[PlayedEpisode]) -> Iterator[PlayedEpisode]:
    """Yields each episode with the turns that have both a text and a good answer, which are put into them.

    The answer is that of the sibling that ended best of all that met the state, the turn's own if none ended better. It
    is good if that sibling won or, where nobody knows, if another one of the group ended worse.

    Args:
        played: groups of `SIBLINGS` episodes of a task; the last one may be smaller.
    """
    for first in range(0, len(played), SIBLINGS):
        group = [one for one in played[first : first + SIBLINGS] if one.stop != FAILED]
        told = {id(one): _trajectory(one) for one in group}
        for episode in group:
            one, others = told[id(episode)], [told[id(other)] for other in group if other is not episode]
            texts = [source(turn, one, others) for turn in one.turns]
            answers = [_answer(turn, [episode, *group]) for turn in episode.turns]
            turns = [
                replace(turn, told=text, response=answer)
                for turn, text, answer in zip(episode.turns, texts, answers, strict=True)
                if text.strip() and answer
            ]
            yield replace(episode, skilled=True, turns=turns)


def _answer(turn: PlayedTurn, group: Sequence[PlayedEpisode]) -> str:
    """Returns the last valid response in a turn's state of the first of those that ended best; empty if none is good."""
    met = [(one, found) for one in group if (found := _last(one, turn))]
    best, response = max(met, key=lambda one: one[0].reward, default=(None, ""))
    worst = min(one.reward for one in group)
    good = best is not None and (best.won or (best.won is None and best.reward > worst))
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
