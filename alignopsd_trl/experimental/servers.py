"""A pool of vLLM servers: it chooses a request's server, retries, and decides when to give up.

A request that fails on a healthy server has used up a try. A server that does not report itself healthy is away: its
requests go to another server, or wait for it, and use up no try.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

import httpx

from alignopsd_trl.experimental.ahead import SECONDS_TO_END, in_background
from alignopsd_trl.rollout import RequestFailed, Response, SamplerDown

IDLE = 2.0
"""Seconds that an unused connection is kept: less than the 5 after which vLLM closes it."""
PROBE = 5.0
"""Seconds within which a healthy server answers ``/health``."""
PAUSE = 0.25
"""Seconds between two health checks of a server that is away."""
PASSING = (408, 425, 429)
"""Status codes of temporary refusals."""


@dataclass(frozen=True)
class Patience:
    """Limits of a request's retries.

    Args:
        tries: the number of tries on healthy servers.
        backoff: seconds before the second try; twice as long before each further one.
        timeout: seconds that one try may take.
        away: seconds that all servers may be away.
    """

    tries: int = 4
    backoff: float = 1.0
    timeout: float = 600.0
    away: float = 240.0


class _Fault(Exception):
    """A failure that another try may mend."""


class _Refused(Exception):
    """A request that the server refused for good."""


@dataclass
class _Server:
    """The state of one server. ``born`` is the start time of its process, ``""`` if unknown."""

    address: str
    model: str = ""
    born: str = ""
    in_flight: int = 0
    away_since: float | None = None


class Servers:
    """Equal vLLM servers, each with the same weights.

    Args:
        addresses: e.g. ``http://10.0.0.5:8000``. A request goes to the server with the fewest requests in flight.
        in_flight: the number of requests in flight at most. Each request has a thread of its own.
        patience: limits of retries.
        pushed: whether weights are pushed to the servers, which a restarted server has lost.

    Attributes:
        weights: the number of updates in the pushed weights, for `Response.weights`.

    Raises:
        SamplerDown: if a server does not answer within ``patience.away`` seconds.
    """

    def __init__(self, addresses: Sequence[str], in_flight: int, patience: Patience | None = None, pushed: bool = True):
        self._patience, self._pushed = patience or Patience(), pushed
        limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight, keepalive_expiry=IDLE)
        self._client = httpx.Client(timeout=httpx.Timeout(self._patience.timeout, connect=PROBE), limits=limits)
        self._probes = httpx.Client(timeout=PROBE)
        self._servers = [_Server(address.rstrip("/")) for address in addresses]
        self._lock, self._probing, self._closed = threading.Lock(), threading.Lock(), threading.Event()
        self._slots, self._requests = threading.Semaphore(in_flight), set[Future[Response]]()
        self.weights: int | None = None
        try:
            for server in self._servers:
                self._meet(server)
        except BaseException:
            self.close()
            raise

    def submit(self, body: Mapping[str, Any], wanted: Callable[[], bool] = lambda: True) -> Future[Response]:
        """Posts a body of ``/v1/completions``, without its ``model``.

        The future raises `RequestFailed` for this request alone, or `SamplerDown`.

        Args:
            wanted: returns whether the request is still needed; else it is not tried again.
        """
        request = in_background(lambda: self._complete(body, wanted), "request")
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)
        return request

    def check(self) -> None:
        """Raises `SamplerDown` if a server was restarted and so has lost the pushed weights."""
        for server in self._servers:
            self._refuse_new(server)

    def close(self) -> None:
        """Stops all retries and waits `SECONDS_TO_END` for requests in flight."""
        self._closed.set()
        wait(tuple(self._requests), SECONDS_TO_END)
        self._client.close()
        self._probes.close()

    def _meet(self, server: _Server) -> None:
        """Waits for a server at the start and reads which model it serves."""
        server.away_since = time.monotonic()
        while not self._is_well(server):
            if time.monotonic() - server.away_since > self._patience.away:
                raise SamplerDown(f"no vLLM server answers at {server.address}; start `vllm serve` there, {_REMEDY}")
            time.sleep(PAUSE)
        try:
            server.model = self._probes.get(f"{server.address}/v1/models").json()["data"][0]["id"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            message = f"{server.address} does not say which model it serves ({_named(error)}); is it a vLLM server?"
            raise SamplerDown(message) from error
        server.born, server.away_since = self._birth(server), None

    def _complete(self, body: Mapping[str, Any], wanted: Callable[[], bool]) -> Response:
        with self._slots:
            return self._tried(body, wanted)

    def _tried(self, body: Mapping[str, Any], wanted: Callable[[], bool]) -> Response:
        faults = losses = 0
        problem = ""
        while max(faults, losses) < self._patience.tries:  # losses count: a request may crash each server it meets
            server, weights = self._choose(wanted), self.weights
            try:
                return self._read(self._post(server, body))._replace(weights=weights)
            except _Refused as refusal:
                raise RequestFailed(str(refusal)) from None
            except (httpx.HTTPError, _Fault) as error:
                problem = f"{server.address}: {_named(error)}"
            finally:
                with self._lock:
                    server.in_flight -= 1
            if self._is_well(server) and not self._is_new(server):
                faults += 1
                if faults < self._patience.tries:
                    self._closed.wait(self._patience.backoff * 2 ** (faults - 1))
            else:
                losses += 1
                self._leave(server)
        raise RequestFailed(f"no response after {max(faults, losses)} tries; the last: {problem}")

    def _post(self, server: _Server, body: Mapping[str, Any]) -> httpx.Response:
        reply = self._client.post(f"{server.address}/v1/completions", json={"model": server.model, **body})
        if 400 <= reply.status_code < 500 and reply.status_code not in PASSING:
            raise _Refused(f"{server.address} answered {reply.status_code}: {reply.text:.300}")
        if reply.status_code != 200:
            raise _Fault(f"answered {reply.status_code}: {reply.text:.300}")
        return reply

    def _read(self, reply: httpx.Response) -> Response:
        try:
            choice = reply.json()["choices"][0]
            ids, log_probs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            if [type(one) for one in ids] != [int] * len(ids) or list(map(_number, log_probs)) != [True] * len(ids):
                raise TypeError("token_ids and token_logprobs must be equally long lists of numbers")
        except (ValueError, LookupError, TypeError) as error:
            raise _Fault(f"answered with no completion of token ids: {reply.text!r:.120}") from error
        return Response(ids, log_probs)

    # Choice of the server

    def _choose(self, wanted: Callable[[], bool]) -> _Server:
        """Returns the server with the fewest requests in flight and counts one more; waits while all are away.

        Raises:
            SamplerDown: if they are away for too long.
        """
        while wanted() and not self._closed.is_set():
            self._look_for_lost()
            with self._lock:
                there = [server for server in self._servers if server.away_since is None]
                if there:
                    chosen = min(there, key=lambda server: server.in_flight)
                    chosen.in_flight += 1
                    return chosen
                latest = max(server.away_since or 0.0 for server in self._servers)
            if time.monotonic() - latest > self._patience.away:
                raise SamplerDown(f"no answer from {self._names()} for {self._patience.away:g} s; {_REMEDY}")
            self._closed.wait(PAUSE)
        raise RequestFailed("it was dropped")

    def _leave(self, server: _Server) -> None:
        with self._lock:
            if server.away_since is None:
                server.away_since = time.monotonic()

    def _look_for_lost(self) -> None:
        """Checks whether servers that are away are back, in one thread at a time."""
        lost = [server for server in self._servers if server.away_since is not None]
        if not lost or not self._probing.acquire(blocking=False):
            return
        try:
            for server in lost:
                if self._is_well(server):
                    self._refuse_new(server)
                    server.away_since = None
        finally:
            self._probing.release()

    def _is_well(self, server: _Server) -> bool:
        try:
            return self._probes.get(f"{server.address}/health").status_code < 500
        except httpx.HTTPError:
            return False

    def _is_new(self, server: _Server) -> bool:
        """Whether the server was restarted, so that it has the weights that it was started with."""
        return self._pushed and bool(server.born) and self._birth(server) not in ("", server.born)

    def _refuse_new(self, server: _Server) -> None:
        if self._is_new(server):
            message = f"{server.address} was restarted and has its first weights again; {_REMEDY}"
            raise SamplerDown(message)

    def _birth(self, server: _Server) -> str:
        """Returns the start time of the server's process from ``/metrics``."""
        try:
            lines = self._probes.get(f"{server.address}/metrics").text.splitlines()
        except httpx.HTTPError:
            return ""
        return next((line for line in lines if line.startswith("process_start_time_seconds")), "")

    def _names(self) -> str:
        return " and ".join(server.address for server in self._servers)


def order(addresses: Sequence[str], what: str, timeout: float) -> None:
    """Posts to an endpoint of vLLM's dev mode on all servers: ``pause?mode=keep`` freezes requests and drops their
    keys and values, ``resume`` goes on with them.

    Raises:
        SamplerDown: if the post fails on one of them.
    """
    for address in addresses:
        try:
            httpx.post(f"{address.rstrip('/')}/{what}", timeout=timeout).raise_for_status()
        except httpx.HTTPError as error:
            raise SamplerDown(f"{address} does not {what.partition('?')[0]} ({_named(error)}); {_REMEDY}") from error


_REMEDY = "start the servers again and resume, so that they take the policy's weights"


def _number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)  # TRL writes None where a log-prob is not finite


def _named(error: Exception) -> str:
    return str(error) if isinstance(error, _Fault) else f"{type(error).__name__}: {error}"
