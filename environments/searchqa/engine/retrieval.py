"""The common interface of all retrieval backends: queries in, ranked passages (or a failure) out.

``bm25.py`` and ``dense.py`` search a local corpus, ``client.py`` calls a server; `CachedRetriever` caches queries in
front of any of them. A failed search is a value, so that it costs a turn and never an episode. A service that stays
away raises, so that it ends the run instead of training on empty results.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from alignopsd_trl.environments.base import EnvironmentsDown


@dataclass(frozen=True)
class Passage:
    """A passage of the corpus. ``contents`` is the title in double quotes, a line break and the text. ``id`` and
    ``score`` are the engine's."""

    contents: str
    id: str | None = None
    score: float | None = None

    @property
    def title(self) -> str:
        """The first line, with its quotation marks."""
        return self.contents.partition("\n")[0]

    @property
    def text(self) -> str:
        return self.contents.partition("\n")[2]


@dataclass(frozen=True)
class SearchFailure:
    """A search without a result after all retries."""

    message: str


Outcome = list[Passage] | SearchFailure


class RetrieverDown(EnvironmentsDown):
    """Raised when the retrieval service can't be used any more; it ends the run."""


class Retriever(ABC):
    """Finds passages. Thread-safe. ``description`` is what a result must record to be comparable."""

    description: dict[str, object]

    @abstractmethod
    def search(self, queries: Sequence[str], k: int) -> list[Outcome]:
        """Returns at most ``k`` passages per query, best first, in the order of the queries.

        Raises:
            RetrieverDown: if the service stays away.
        """

    def check(self) -> None:  # noqa: B027 - a local backend has nothing to check
        """Raises `RetrieverDown` if the service can't be used; called once before an episode starts."""

    def metrics(self) -> dict[str, float]:
        """Returns counters since construction, at least ``queries`` and ``seconds``."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Frees connections and files."""


class LocalRetriever(Retriever):
    """Searches a corpus of this machine, in one thread at a time, and counts queries and seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters = {"queries": 0.0, "seconds": 0.0}

    def search(self, queries: Sequence[str], k: int) -> list[Outcome]:
        started = time.perf_counter()
        with self._lock:
            found = self._searched(queries, k) if queries else []
            self._counters["queries"] += len(queries)
            self._counters["seconds"] += time.perf_counter() - started
        return found

    def metrics(self) -> dict[str, float]:
        return dict(self._counters)

    @abstractmethod
    def _searched(self, queries: Sequence[str], k: int) -> list[Outcome]:
        """As `search`, of at least one query."""


class CachedRetriever(Retriever):
    """Sends each distinct query once and caches the results of the last ``size`` queries, but no failures.

    Retrieval is deterministic, so siblings that ask the same question read the same passages.
    """

    def __init__(self, inner: Retriever, size: int = 65_536):
        self.inner, self.size = inner, size
        self.description = inner.description
        self._known: OrderedDict[tuple[str, int], list[Passage]] = OrderedDict()
        self._lock = threading.Lock()
        self._counters = {"queries": 0.0, "cached": 0.0, "failed": 0.0, "seconds": 0.0}

    def search(self, queries: Sequence[str], k: int) -> list[Outcome]:
        started = time.perf_counter()
        found = self._recall(queries, k)
        missing = [query for query in dict.fromkeys(queries) if query not in found]
        if missing:
            fresh = dict(zip(missing, self.inner.search(missing, k), strict=True))
            self._remember(fresh, k)
            found.update(fresh)
        with self._lock:
            self._counters["queries"] += len(queries)
            self._counters["cached"] += len(queries) - len(missing)
            self._counters["failed"] += sum(isinstance(found[query], SearchFailure) for query in queries)
            self._counters["seconds"] += time.perf_counter() - started
        return [found[query] for query in queries]

    def check(self) -> None:
        self.inner.check()

    def metrics(self) -> dict[str, float]:
        """Returns counters of the cache, and those of the backend under ``backend_``."""
        return {**self._counters, **{f"backend_{name}": value for name, value in self.inner.metrics().items()}}

    def close(self) -> None:
        self.inner.close()

    def _recall(self, queries: Sequence[str], k: int) -> dict[str, Outcome]:
        with self._lock:
            found: dict[str, Outcome] = {}
            for query in queries:
                if (query, k) in self._known:
                    self._known.move_to_end((query, k))
                    found[query] = self._known[query, k]
            return found

    def _remember(self, fresh: dict[str, Outcome], k: int) -> None:
        with self._lock:
            for query, outcome in fresh.items():
                if not isinstance(outcome, SearchFailure):
                    self._known[query, k] = outcome
            while len(self._known) > self.size:
                self._known.popitem(last=False)
