"""Many episodes over one retriever: all queries of a turn leave as one request, equal ones once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from environments.base import Failure, Step
from environments.batch import SerialBatch, guarded
from environments.searchqa.episode import SearchQA
from environments.searchqa.retrieval import CachedRetriever, Retriever


class SearchQABatch(SerialBatch):
    """Episodes side by side, addressed by slot.

    A search that fails costs its turn; an episode that raises becomes a `Failure` of its own slot.

    Raises:
        RetrieverDown: at construction or in `step`, if the retrieval service stays away.
    """

    def __init__(self, factory: Callable[[], SearchQA], retriever: Retriever, size: int):
        retriever.check()
        super().__init__([factory() for _ in range(size)])
        self._retriever = retriever
        self._top_k = self._environments[0].top_k

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Step | Failure]:
        episodes = [self._environments[slot] for slot in slots]
        queries = [guarded(partial(one.begin, action)) for one, action in zip(episodes, actions, strict=True)]
        distinct = list(dict.fromkeys(query for query in queries if isinstance(query, str)))
        found = dict(zip(distinct, self._retriever.search(distinct, self._top_k), strict=True)) if distinct else {}
        return [
            query if isinstance(query, Failure) else guarded(partial(one.complete, found.get(query)))
            for one, query in zip(episodes, queries, strict=True)
        ]

    def metrics(self) -> dict[str, float]:
        """Retrieval counters since the factory was made. The retriever is the factory's: it is shared by all batches
        and stays open when one is closed."""
        return self._retriever.metrics()


class SearchQAFactory:
    """Makes `SearchQA` environments over one shared, cached retriever.

    Args:
        retriever: any backend.
        cache: queries whose passages are remembered.
        options: of `SearchQA`.
    """

    def __init__(self, retriever: Retriever, cache: int = 65_536, **options: Any):
        self.retriever = CachedRetriever(retriever, cache)
        self.options = options
        SearchQA(self.retriever, **options)  # refuses a wrong option here, before anything runs

    def __call__(self) -> SearchQA:
        return SearchQA(self.retriever, **self.options)

    def batch(self, size: int, time_limit: float) -> SearchQABatch:
        """A batch of ``size`` episodes. ``time_limit`` is not used: an episode waits for nothing but the retriever,
        which bounds its own time, and a slow service must not cost a trajectory."""
        return SearchQABatch(self, self.retriever, size)

    def close(self) -> None:
        self.retriever.close()
