"""One sentence that a model writes after a lost episode, about one turn of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from alignopsd_trl.privileged.source import Answers, PrivilegedError, PrivilegedSource
from alignopsd_trl.turns import Trajectory, Turn
from alignopsd_trl.writer import MALFORMED, EndpointDown, EndpointError, EndpointWriter, bounded, one_line, read_object

logger = logging.getLogger(__name__)

MOST_WORDS = 40  # of an answer
MOST_SHOWN, MOST_TURNS = 60, 30  # words of a text in the question, and the last turns
QUESTION = """An agent played this task: {task}
{turns}
It lost, with reward {reward:g}.
Which one turn decided that, and what should the agent have known there? Answer with JSON alone:
{{"turn": the turn's number, "text": "one sentence, at most 40 words"}}"""


class Diagnosis(PrivilegedSource):
    """Asks once about each lost episode, and gives the turn that the answer names its text.

    An answer that is not as asked costs its own episode; an endpoint that can't be reached ends the run.

    Args:
        url: of an OpenAI-compatible endpoint; empty: the policy writes.
        model: its name there.
    """

    def __init__(self, url: str = "", model: str = "default"):
        super().__init__(self._text, f"diagnosis@{url}#{model}" if url else "diagnosis")
        if url and not url.startswith(("http://", "https://")):
            raise PrivilegedError(f"privileged={self.name!r} names no address; write diagnosis@http://HOST:PORT/v1")
        self._endpoint = EndpointWriter(url, model) if url else None
        self._texts: dict[int, tuple[Turn, str]] = {}  # by id; the turn is kept so that no other one gets its id

    def begin(self, trajectories: Sequence[Trajectory], answers: Answers | None = None) -> None:
        asked = lost(trajectories)
        if self._endpoint:
            said = self._ask_endpoint(asked)
        elif answers:
            said = answers([question(one) for one in asked])
        else:
            raise PrivilegedError("privileged='diagnosis' has no policy here that writes; use diagnosis@URL#MODEL")
        self._texts, problems = {}, []
        for one, answer in zip(asked, said, strict=True):
            try:
                turn, text = read(one, answer)
                self._texts[id(turn)] = turn, text
            except MALFORMED as error:
                problems.append(f"{answer!r:.100}: {type(error).__name__}: {error}")
        self.counts = {"asked": len(asked), "malformed": len(problems)}
        if problems:
            logger.warning(f"{len(problems)} of {len(asked)} diagnoses can't be used; the first: {problems[0]:.200}")

    def _text(self, turn: Turn) -> str | None:
        return self._texts.get(id(turn), (turn, None))[1]

    def _ask_endpoint(self, asked: Sequence[Trajectory]) -> list[str]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(self._answer, asked))

    def _answer(self, one: Trajectory) -> str:
        assert self._endpoint is not None
        try:
            return self._endpoint(question(one), one.seeds.dynamics_seed % 2**31)
        except EndpointDown as error:
            raise PrivilegedError(f"privileged={self.name!r}: {error}") from error
        except EndpointError as error:
            return str(error)


def lost(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Returns the episodes that were lost; where nobody knows, those that ended worse than a sibling."""
    best: dict[str, float] = {}
    for one in trajectories:
        best[one.task] = max(one.reward, best.get(one.task, one.reward))
    unknown = [one.won is None and one.reward < best[one.task] for one in trajectories]
    return [one for one, worse in zip(trajectories, unknown, strict=True) if one.turns and (one.won is False or worse)]


def question(one: Trajectory) -> str:
    """Returns the question about an episode, in which every text is one line of bounded length."""
    turns = [(turn.number, turn.chosen_on, turn.action or turn.response_text) for turn in one.turns[-MOST_TURNS:]]
    lines = [f"Turn {number}: it saw: {_shown(saw)}\nand did: {_shown(did)}" for number, saw, did in turns]
    lines.append(f"At the end it saw: {_shown(one.turns[-1].observation)}")
    return QUESTION.format(task=_shown(one.task_text), turns="\n".join(lines), reward=one.reward)


def _shown(text: str) -> str:
    return one_line(text, MOST_SHOWN) or "nothing"


def read(one: Trajectory, answer: str) -> tuple[Turn, str]:
    """Returns the turn that an answer names, and its text; raises one of `MALFORMED` if the answer is not as asked."""
    said, turns = read_object(answer), {turn.number: turn for turn in one.turns}
    if isinstance(said["turn"], bool):
        raise TypeError(f"{said['turn']} is no number of a turn")
    return turns[said["turn"]], bounded(said["text"], MOST_WORDS)
