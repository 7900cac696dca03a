"""Many episodes over one retriever: all queries of a turn leave as one request, equal ones once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from environments.base import Failure, Opening, Projection, Step
from environments.searchqa.episode import SearchQA
from environments.searchqa.retrieval import CachedRetriever, Retriever

Result = TypeVar("Result")


class SearchQABatch:
    """Episodes side by side, addressed by slot.

    A search that fails costs its turn; an episode that raises becomes a `Failure` of its own slot.

    Raises:
        RetrieverDown: at construction or in `step`, if the retrieval service stays away.
    """

    def __init__(self, factory: Callable[[], SearchQA], retriever: Retriever, size: int):
        retriever.check()
        self._retriever = retriever
        self._episodes = [factory() for _ in range(size)]
        first = self._episodes[0]
        self.prompt, self.history_length, self.max_turns = first.prompt, first.history_length, first.max_turns
        self._top_k = first.top_k

    def reset(self, slots: Sequence[int], tasks: Sequence[Mapping[str, Any]]) -> list[Opening | Failure]:
        return [_guard(self._episodes[slot].open, task) for slot, task in zip(slots, tasks, strict=True)]

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Step | Failure]:
        episodes = [self._episodes[slot] for slot in slots]
        queries = [_guard(episode.begin, action) for episode, action in zip(episodes, actions, strict=True)]
        distinct = list(dict.fromkeys(query for query in queries if isinstance(query, str)))
        found = dict(zip(distinct, self._retriever.search(distinct, self._top_k), strict=True)) if distinct else {}
        return [
            query if isinstance(query, Failure) else _guard(episode.finish, None if query is None else found[query])
            for episode, query in zip(episodes, queries, strict=True)
        ]

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        return self._episodes[0].project(response)

    def metrics(self) -> dict[str, float]:
        """Retrieval counters since the factory was made."""
        return self._retriever.metrics()

    def close(self) -> None:
        """Nothing: the retriever belongs to the factory and may serve other batches."""


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


def _guard(call: Callable[[Any], Result], argument: Any) -> Result | Failure:
    try:
        return call(argument)
    except Exception as error:  # what one episode raises ends that episode only
        return Failure("error", f"{type(error).__name__}: {error}")
