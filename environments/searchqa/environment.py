"""One episode of Search-QA: think, then search or answer, at most four turns, exact match at the end.

A turn has two halves, so that a batch can put one retrieval request between them::

    action -> begin -> query or None -> retriever -> complete -> Step
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from alignopsd_trl.environments.base import Failure, Opening, Projection, Step, TextEnvironment
from alignopsd_trl.environments.batch import SerialBatch, guarded
from alignopsd_trl.environments.searchqa.engine.actions import ANSWER, PROJECTIONS, SEARCH, read_action
from alignopsd_trl.environments.searchqa.engine.observations import CORRECTION, show
from alignopsd_trl.environments.searchqa.engine.retrieval import CachedRetriever, Outcome, Retriever, SearchFailure
from alignopsd_trl.environments.searchqa.engine.scoring import accepted, contains_match, exact_match
from alignopsd_trl.environments.searchqa.options import SearchQAOptions
from alignopsd_trl.environments.searchqa.prompt import prompt_of


class SearchQA(TextEnvironment):
    """An episode with one question, a search engine and one answer.

    Args:
        retriever: finds passages.
        options: those of `SearchQAOptions` that concern an episode: ``top_k``, ``style``, ``projection``,
            ``max_turns``, ``history_length``, ``template``.

    ``score`` is the exact match (0 or 1) of the answer, ``won`` says that it is 1, ``done`` that there was an answer.
    The reward is 1.0 at a right answer and 0.0 otherwise. Only the answer's own text is scored, never an observation: a
    passage that holds an answer tag earns nothing.

    Raises:
        ValueError: on an option that is unknown or has a value that it can't have.
    """

    concurrent = True  # it draws nothing, and retrievers take calls at once

    def __init__(self, retriever: Retriever, **options: Any):
        self.retriever, self.options = retriever, SearchQAOptions.of(options)
        self.max_turns, self.history_length = self.options.max_turns, self.options.history_length
        self.prompt = prompt_of(self.options.template)
        self._golden: tuple[str, ...] | None = None

    def reset(
        self,
        question: str,
        golden_answers: str | Sequence[str],
        data_source: str | None = None,
        category: str | None = None,
        **_: Any,
    ) -> Opening:
        """Starts an episode. The first observation is the question. Other columns of the row are ignored."""
        self._golden = accepted(golden_answers)
        self._turn, self._searches, self._failed = 0, 0, 0
        self._done, self._answer, self._score = False, None, 0.0
        return Opening(question, question, category=category or data_source or "", data_source=data_source)

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        return PROJECTIONS[self.options.projection](response)

    def step(self, action: str) -> Step:
        query = self.begin(action)
        return self.complete(None if query is None else self.retriever.search([query], self.options.top_k)[0])

    def begin(self, action: str) -> str | None:
        """Takes the turn's action and returns the query if a search must be executed.

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
        """Completes the turn that `begin` opened, with the result of the search (None without a search)."""
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
            return show(outcome, self.options.style)
        correct = self.options.projection == "search_r1" and not self._action.kind and self._turn < self.max_turns
        return CORRECTION if correct else ""

    def _facts(self, outcome: Outcome | None) -> dict[str, Any]:
        return {
            "action": self._action.kind,
            "passages": [p.id for p in outcome] if isinstance(outcome, list) else [],
            "failure": outcome.message if isinstance(outcome, SearchFailure) else None,
        }

    def _totals(self) -> dict[str, float]:
        """Returns the counters of the episode so far."""
        return {
            "turns": self._turn,
            "searches": self._searches,
            "failed_searches": self._failed,
            "answered": self._answer is not None,
            "contains_match": contains_match(self._answer, self._golden or ()),
        }


class SearchQABatch(SerialBatch):
    """Episodes side by side, addressed by slot.

    A search that fails costs its turn; an episode that raises becomes a `Failure` of its own slot.

    Raises:
        RetrieverDown: at construction or in `step`, if the retrieval service stays away.
    """

    def __init__(self, factory: Callable[[], SearchQA], retriever: Retriever, size: int):
        retriever.check()
        self._episodes = [factory() for _ in range(size)]
        super().__init__(self._episodes)
        self._retriever = retriever
        self._top_k = self._episodes[0].options.top_k

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Step | Failure]:
        episodes = [self._episodes[slot] for slot in slots]
        queries = [guarded(partial(episode.begin, action)) for episode, action in zip(episodes, actions, strict=True)]
        distinct = list(dict.fromkeys(query for query in queries if isinstance(query, str)))
        outcomes = dict(zip(distinct, self._retriever.search(distinct, self._top_k), strict=True)) if distinct else {}
        return [
            query if isinstance(query, Failure) else guarded(partial(episode.complete, outcomes.get(query)))
            for episode, query in zip(episodes, queries, strict=True)
        ]

    def worker(self, slot: int) -> int:
        """Returns 0 for all slots: one worker sends the queries that have come in together, one request at a time."""
        return 0

    def metrics(self) -> dict[str, float]:
        """Returns retrieval counters since the factory was made. All batches of the factory share its retriever, which
        stays open when one is closed."""
        return self._retriever.metrics()


class SearchQAFactory:
    """Makes `SearchQA` environments over one shared, cached retriever.

    Args:
        retriever: any backend.
        cache: queries whose passages are remembered.
        kind: of the environments.
        options: of `SearchQA`.
    """

    def __init__(self, retriever: Retriever, cache: int = 65_536, kind: type[SearchQA] = SearchQA, **options: Any):
        self.retriever = CachedRetriever(retriever, cache)
        self.options, self.kind = options, kind
        SearchQA(self.retriever, **options)  # refuses a wrong option here, before anything runs

    def __call__(self) -> SearchQA:
        return self.kind(self.retriever, **self.options)

    def batch(self, size: int, time_limit: float) -> SearchQABatch:
        """Makes a batch of ``size`` episodes. ``time_limit`` is not used: an episode waits only for the retriever,
        which limits its own time, and a slow service must not end an episode."""
        return SearchQABatch(self, self.retriever, size)

    def close(self) -> None:
        self.retriever.close()
