"""One episode of Search-QA: think, then search or answer, at most four turns, exact match at the end.

A turn has two halves, so that a batch can put one retrieval request between them::

    action -> begin -> query or None -> retriever -> complete -> Step
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from environments.base import Opening, Projection, Step, TextEnvironment
from environments.searchqa.actions import ANSWER, PROJECTIONS, SEARCH, read_action
from environments.searchqa.observations import CORRECTION, STYLES, show
from environments.searchqa.prompt import SearchQAPrompt, paper_prompt
from environments.searchqa.retrieval import Outcome, Retriever, SearchFailure
from environments.searchqa.scoring import accepted, contains_match, exact_match


class SearchQA(TextEnvironment):
    """A question, a search engine, one answer.

    Args:
        retriever: finds passages.
        top_k: passages a search shows.
        style: ``plain`` (Search-R1) or ``json`` (released agent-loop code).
        dialect: rule from response to action, ``agent_loop`` or ``search_r1``. The latter also answers a response
            without an action by a sentence that corrects it; the former shows nothing.
        max_turns: the last turn does not search any more, since nobody would read what it finds.
        history_length: turns that the prompt shows.
        prompt: how a turn is shown.

    ``score`` is the exact match (0 or 1) of the answer, ``won`` says that it is 1, ``done`` that the episode ended. The
    reward is 1.0 at a right answer and 0.0 otherwise. Only the answer's own text is scored, never an observation: a
    passage that holds an answer tag earns nothing.

    Raises:
        ValueError: on an unknown style or dialect, or a number below 1.
    """

    def __init__(
        self,
        retriever: Retriever,
        top_k: int = 3,
        style: str = "plain",
        dialect: str = "agent_loop",
        max_turns: int = 4,
        history_length: int = 4,
        prompt: SearchQAPrompt | None = None,
    ):
        if style not in STYLES:
            raise ValueError(f"style {style!r} is unknown; use one of {', '.join(STYLES)}")
        if dialect not in PROJECTIONS:
            raise ValueError(f"dialect {dialect!r} is unknown; use one of {', '.join(PROJECTIONS)}")
        if min(top_k, max_turns, history_length) < 1:
            raise ValueError("top_k, max_turns and history_length must be at least 1")
        self.retriever, self.top_k, self.style, self.dialect = retriever, top_k, style, dialect
        self.max_turns, self.history_length = max_turns, history_length
        self.prompt = prompt or paper_prompt()
        self._golden: tuple[str, ...] | None = None

    def reset(
        self,
        question: str,
        golden_answers: str | Sequence[str],
        data_source: str | None = None,
        category: str | None = None,
        **_: Any,
    ) -> Opening:
        """Starts an episode; the first observation is the question. Other columns of the row are ignored."""
        self._golden = accepted(golden_answers)
        self._turn, self._searches, self._failed = 0, 0, 0
        self._done, self._answer, self._score = False, None, 0.0
        return Opening(question, question, category=category or data_source or "", data_source=data_source)

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        return PROJECTIONS[self.dialect](response)

    def step(self, action: str) -> Step:
        query = self.begin(action)
        return self.complete(None if query is None else self.retriever.search([query], self.top_k)[0])

    def begin(self, action: str) -> str | None:
        """Takes the turn's action; returns the query if a search is to be executed.

        Raises:
            RuntimeError: before `reset` and after the end of the episode.
        """
        if self._golden is None or self._done:
            raise RuntimeError("no episode is running; call reset first")
        self._turn += 1
        self._action = read_action(action)
        if self._action.kind == ANSWER:
            self._answer = self._action.text
            self._score = exact_match(self._answer, self._golden)
            self._done = True
        searches = self._action.kind == SEARCH and self._turn < self.max_turns
        return self._action.text if searches else None

    def complete(self, outcome: Outcome | None) -> Step:
        """Completes the turn that `begin` opened, with what the search gave (None: there was no search)."""
        self._searches += outcome is not None
        self._failed += isinstance(outcome, SearchFailure)
        return Step(
            observation=self._observe(outcome),
            reward=self._score,
            done=self._done,
            won=self._score == 1.0,
            score=self._score,
            metrics=self._totals(),
            info=self._facts(outcome),
        )

    def _observe(self, outcome: Outcome | None) -> str:
        if outcome is not None:
            return show(outcome, self.style)
        correct = self.dialect == "search_r1" and not self._action.kind and self._turn < self.max_turns
        return CORRECTION if correct else ""

    def _facts(self, outcome: Outcome | None) -> dict[str, Any]:
        return {
            "action": self._action.kind,
            "passages": [p.id for p in outcome] if isinstance(outcome, list) else [],
            "failure": outcome.message if isinstance(outcome, SearchFailure) else None,
        }

    def _totals(self) -> dict[str, float]:
        """Of the episode so far."""
        return {
            "turns": self._turn,
            "searches": self._searches,
            "failed_searches": self._failed,
            "answered": self._answer is not None,
            "contains_match": contains_match(self._answer, self._golden or ()),
        }
