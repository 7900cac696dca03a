"""HTTP client of a retrieval service, in the two dialects that are in use.

``list`` (Search-R1): ``{"queries": [...]}``, one request for all queries of a turn. ``single`` (the agent loop's
fork): ``{"query": "..."}``, one request a query, sent side by side. Both answer ``{"result": [[hit, ...], ...]}``.

Connection errors, timeouts, status 500, 502, 503, 504 and unreadable replies are retried after 1, 2, 3, ... pauses,
within one budget of seconds per request; other refusals are not. A request that fails for good returns a
`SearchFailure`; ``tolerated`` failing turns in a row raise `RetrieverDown`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import urllib3

from alignopsd_trl.environments.searchqa.engine.retrieval import (
    Outcome,
    Passage,
    Retriever,
    RetrieverDown,
    SearchFailure,
)

log = logging.getLogger(__name__)

DIALECTS = ("list", "single")
_TRANSIENT = frozenset({500, 502, 503, 504})
_LARGEST_REPLY = 1 << 28  # bytes
_LARGEST_REQUEST = 1 << 19  # bytes of queries; a turn with more is sent in parts, since services limit a body


class _TryAgain(Exception):
    """A failure that another try may mend."""


class _Refused(Exception):
    """A request that the service refused for good."""


class HttpRetriever(Retriever):
    """Sends queries to one or several equal services.

    Args:
        urls: of the routes, e.g. ``http://127.0.0.1:8000/retrieve``; requests go round robin, a retry to the next one.
        dialect: of the service, ``list`` or ``single``.
        timeout: seconds that one attempt may take, from the connection to the last byte.
        attempts: per request, at most.
        pause: seconds before the second attempt; the n-th retry waits n times as long.
        patience: seconds for a request with all its attempts and pauses.
        tolerated: failing turns in a row after which the run ends.
        connections: that are kept open and used side by side (``single`` dialect).

    Raises:
        ValueError: on an unknown dialect, no address or a number out of range.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        dialect: str = "list",
        timeout: float = 60.0,
        attempts: int = 10,
        pause: float = 1.0,
        patience: float = 180.0,
        tolerated: int = 3,
        connections: int = 64,
    ):
        self.urls = (urls,) if isinstance(urls, str) else tuple(urls)
        _check_arguments(self.urls, dialect, timeout, attempts, pause, patience, tolerated, connections)
        self.dialect, self.timeout, self.attempts, self.pause = dialect, timeout, attempts, pause
        self.patience, self.tolerated = patience, tolerated
        self.description = {"backend": "http", "dialect": dialect, "urls": list(self.urls)}
        self._pool = urllib3.PoolManager(maxsize=connections, retries=False)
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="retrieval")
        self._lock = threading.Lock()
        self._counters: Counter[str] = Counter()
        self._turns = 0
        self._failing = 0
        self._outage = _Outage()

    def search(self, queries: Sequence[str], k: int) -> list[Outcome]:
        if not queries:
            return []
        started = time.perf_counter()
        with self._lock:
            self._turns += 1
            first = self._turns
        outcomes = self._send(queries, k, first)
        self._count(queries=len(queries), seconds=time.perf_counter() - started)
        self._watch([o for o in outcomes if isinstance(o, SearchFailure)], len(queries))
        return outcomes

    def check(self) -> None:
        """Sends one query, with all retries.

        Raises:
            RetrieverDown: if it fails; the message says which dialect to try, or how to start a service.
        """
        outcome = self._send(["probe"], 1, 0)[0]
        if isinstance(outcome, SearchFailure):
            raise RetrieverDown(f"the retrieval service can't be used: {outcome.message}. {self._remedy()}")

    def metrics(self) -> dict[str, float]:
        names = ("queries", "requests", "retries", "unreachable", "malformed", "refused", "failures", "duplicates")
        with self._lock:
            return {name: float(self._counters[name]) for name in (*names, "seconds")}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._pool.clear()

    def _send(self, queries: Sequence[str], k: int, first: int) -> list[Outcome]:
        clean = [query.encode("utf-8", "replace").decode() for query in queries]
        if self.dialect == "list":
            return [
                outcome for part in _parts(clean) for outcome in self._request({"queries": part}, len(part), k, first)
            ]
        waiting = [self._threads.submit(self._request, {"query": q}, 1, k, first + i) for i, q in enumerate(clean)]
        return [future.result()[0] for future in waiting]

    def _request(self, question: dict[str, Any], expected: int, k: int, first: int) -> list[Outcome]:
        """Makes all attempts of a request with their pauses; never raises."""
        body = json.dumps({**question, "topk": k, "return_scores": True}).encode()
        deadline = time.monotonic() + self.patience
        outcomes = self._attempt(body, expected, k, first, deadline)
        self._outage.leave(answered=not isinstance(outcomes[0], SearchFailure))
        return outcomes

    def _attempt(self, body: bytes, expected: int, k: int, first: int, deadline: float) -> list[Outcome]:
        for attempt in range(self.attempts):
            url = self.urls[(first + attempt) % len(self.urls)]
            try:
                reply = self._exchange(url, body, min(time.monotonic() + self.timeout, deadline))
                return self._read(reply, expected, k)
            except _Refused as refusal:
                return self._fail("refused", str(refusal), expected)
            except _TryAgain as fault:
                problem = str(fault)
            wait = self.pause * (attempt + 1)
            if attempt + 1 == self.attempts or time.monotonic() + wait >= deadline:
                break
            self._count(retries=1)
            self._outage.enter(f"{problem}; trying again for up to {self.patience:g} s")
            time.sleep(wait)
        return self._fail("failures", f"{problem} ({attempt + 1} attempts)", expected)

    def _exchange(self, url: str, body: bytes, deadline: float) -> bytes:
        """Returns the body of a 200 reply, read piece by piece so that a trickle of bytes can't exceed the deadline."""
        self._count(requests=1)
        limit = urllib3.Timeout(total=max(deadline - time.monotonic(), 0.001))
        headers = {"Content-Type": "application/json"}
        try:
            reply = self._pool.request(
                "POST", url, body=body, headers=headers, timeout=limit, preload_content=False, redirect=False
            )
            try:
                content = _read_until(reply, deadline)
            except BaseException:
                reply.close()
                raise
            reply.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self._count(unreachable=1)
            raise _TryAgain(f"{url}: {type(error).__name__}: {error}") from error
        if reply.status in _TRANSIENT:
            self._count(unreachable=1)
            raise _TryAgain(f"{url}: HTTP {reply.status}")
        if reply.status != 200:
            raise _Refused(f"{url}: HTTP {reply.status} {content[:200].decode('utf-8', 'replace')}")
        return content

    def _read(self, content: bytes, expected: int, k: int) -> list[Outcome]:
        try:
            lists = read_reply(content, expected, k)
        except (ValueError, RecursionError) as error:
            self._count(malformed=1)
            raise _TryAgain(f"malformed reply: {error}") from error
        unique = [list(dict.fromkeys(passages)) for passages in lists]
        self._count(duplicates=sum(map(len, lists)) - sum(map(len, unique)))
        return list(unique)

    def _fail(self, kind: str, message: str, expected: int) -> list[Outcome]:
        self._count(**{kind: 1})
        return [SearchFailure(message)] * expected

    def _watch(self, failed: Sequence[SearchFailure], asked: int) -> None:
        with self._lock:
            self._failing = self._failing + 1 if len(failed) == asked else 0
            failing = self._failing
        if failing >= self.tolerated:
            raise RetrieverDown(
                f"no search succeeded in {failing} turns in a row; last fault: {failed[-1].message}. {self._remedy()}, "
                "then resume from the last checkpoint"
            )

    def _remedy(self) -> str:
        other = DIALECTS[1 - DIALECTS.index(self.dialect)]
        return (
            f"Check that a service runs at {', '.join(self.urls)} "
            "(python -m alignopsd_trl.environments.searchqa.serve --corpus ...) "
            f"and speaks the {self.dialect!r} dialect (HTTP 422 means: use dialect={other!r})"
        )

    def _count(self, **amounts: float) -> None:
        with self._lock:
            self._counters.update(amounts)


class _Outage:
    """Prints one line when requests begin to be retried, and one when none is retried any more. A thread makes one
    request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[int] = set()  # threads
        self._since = 0.0

    def enter(self, message: str) -> None:
        with self._lock:
            if not self._waiting:
                self._since = time.monotonic()
                log.warning("retrieval: %s", message)
            self._waiting.add(threading.get_ident())

    def leave(self, answered: bool) -> None:
        with self._lock:
            if self._waiting == {threading.get_ident()}:
                verdict = "the service answers again" if answered else "given up"
                log.warning("retrieval: %s after %.0f s", verdict, time.monotonic() - self._since)
            self._waiting.discard(threading.get_ident())


def _parts(queries: Sequence[str]) -> list[list[str]]:
    """Splits the queries, in order, into parts of at most `_LARGEST_REQUEST` bytes of JSON or one query."""
    parts: list[list[str]] = []
    size = 0
    for query in queries:
        length = len(json.dumps(query)) + 2
        if not parts or size + length > _LARGEST_REQUEST:
            parts.append([])
            size = 0
        parts[-1].append(query)
        size += length
    return parts


def read_reply(content: bytes, expected: int, k: int) -> list[list[Passage]]:
    """Returns the result lists of a reply.

    Raises:
        ValueError: if it is not JSON, has another number of result lists than queries, more than ``k`` hits in one, or
            a hit without text.
    """
    reply = json.loads(content)
    lists = reply.get("result") if isinstance(reply, dict) else None
    if not isinstance(lists, list) or len(lists) != expected:
        count = len(lists) if isinstance(lists, list) else "no"
        raise ValueError(f"{count} result lists for {expected} queries")
    if any(not isinstance(hits, list) or len(hits) > k for hits in lists):
        raise ValueError(f"a result that is not a list of at most {k} hits")
    return [[_passage(hit) for hit in hits] for hits in lists]


def _passage(hit: Any) -> Passage:
    document = hit.get("document") if isinstance(hit, dict) else None
    contents = document.get("contents") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(contents, str) or not contents.strip():
        raise ValueError("a hit without document.contents")
    score = hit.get("score")
    number = float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None
    return Passage(contents, str(document["id"]) if "id" in document else None, number)


def _read_until(reply: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
    pieces, size = [], 0
    while piece := reply.read1(1 << 16):
        pieces.append(piece)
        size += len(piece)
        if time.monotonic() > deadline:
            raise TimeoutError("the reply was not complete in time")
        if size > _LARGEST_REPLY:
            raise OSError(f"the reply is larger than {_LARGEST_REPLY} bytes")
    return b"".join(pieces)


def _check_arguments(urls: Sequence[str], dialect: str, *positive: float) -> None:
    if dialect not in DIALECTS:
        raise ValueError(f"dialect {dialect!r} is unknown; use 'list' (Search-R1) or 'single' (agent loop)")
    for url in urls or [""]:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"address {url!r} must look like http://127.0.0.1:8000/retrieve")
    if any(number <= 0 for number in positive):
        raise ValueError("timeout, attempts, pause, patience, tolerated and connections must be positive")
