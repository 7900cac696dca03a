"""Requests to a vLLM server: they are retried, and it is decided when to give up.

A request that fails on a healthy server has used up a try. A server that does not report itself healthy is away: its
requests wait for it, and use up no try.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
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
        away: seconds that the server may be away.
    """

    tries: int = 4
    backoff: float = 1.0
    timeout: float = 600.0
    away: float = 240.0


class _Fault(Exception):
    """A failure that another try may mend."""


class _Refused(Exception):
    """A request that the server refused for good."""


class Server:
    """A vLLM server to which the policy's weights are pushed.

    Args:
        address: e.g. ``http://10.0.0.5:8000``.
        in_flight: the number of requests in flight at most. Each request has a thread of its own.
        patience: limits of retries.

    Attributes:
        weights: the number of updates in the pushed weights, for `Response.weights`.

    Raises:
        SamplerDown: if the server does not answer within ``patience.away`` seconds.
    """

    def __init__(self, address: str, in_flight: int, patience: Patience | None = None):
        self._address, self._patience = address.rstrip("/"), patience or Patience()
        limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight, keepalive_expiry=IDLE)
        self._client = httpx.Client(timeout=httpx.Timeout(self._patience.timeout, connect=PROBE), limits=limits)
        self._probes = httpx.Client(timeout=PROBE)
        self._probing, self._closed = threading.Lock(), threading.Event()
        self._slots, self._requests = threading.Semaphore(in_flight), set[Future[Response]]()
        self._away_since: float | None = time.monotonic()
        self.weights: int | None = None
        try:
            self._meet()
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
        """Raises `SamplerDown` if the server was restarted and so has lost the pushed weights."""
        if self._is_new():
            raise SamplerDown(f"{self._address} was restarted and has its first weights again; {_REMEDY}")

    def close(self) -> None:
        """Stops all retries and waits `SECONDS_TO_END` for requests in flight."""
        self._closed.set()
        wait(tuple(self._requests), SECONDS_TO_END)
        self._client.close()
        self._probes.close()

    def _meet(self) -> None:
        """Waits for the server at the start; reads which model it serves, and when its process began."""
        began = time.monotonic()
        while not self._is_well():
            if time.monotonic() - began > self._patience.away:
                raise SamplerDown(f"no vLLM server answers at {self._address}; start `vllm serve` there, {_REMEDY}")
            time.sleep(PAUSE)
        try:
            self._model = self._probes.get(f"{self._address}/v1/models").json()["data"][0]["id"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            message = f"{self._address} does not say which model it serves ({_named(error)}); is it a vLLM server?"
            raise SamplerDown(message) from error
        self._born, self._away_since = self._birth(), None

    def _complete(self, body: Mapping[str, Any], wanted: Callable[[], bool]) -> Response:
        with self._slots:
            return self._tried(body, wanted)

    def _tried(self, body: Mapping[str, Any], wanted: Callable[[], bool]) -> Response:
        faults = losses = 0
        problem = ""
        while max(faults, losses) < self._patience.tries:  # losses count: a request may crash the server each time
            self._wait_for_it(wanted)
            weights = self.weights
            try:
                return self._read(self._post(body))._replace(weights=weights)
            except _Refused as refusal:
                raise RequestFailed(str(refusal)) from None
            except (httpx.HTTPError, _Fault) as error:
                problem = f"{self._address}: {_named(error)}"
            if self._is_well() and not self._is_new():
                faults += 1
                if faults < self._patience.tries:
                    self._closed.wait(self._patience.backoff * 2 ** (faults - 1))
            else:
                losses += 1
                self._away_since = self._away_since or time.monotonic()
        raise RequestFailed(f"no response after {max(faults, losses)} tries; the last: {problem}")

    def _post(self, body: Mapping[str, Any]) -> httpx.Response:
        reply = self._client.post(f"{self._address}/v1/completions", json={"model": self._model, **body})
        if 400 <= reply.status_code < 500 and reply.status_code not in PASSING:
            raise _Refused(f"{self._address} answered {reply.status_code}: {reply.text:.300}")
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

    def _wait_for_it(self, wanted: Callable[[], bool]) -> None:
        """Waits while the server is away.

        Raises:
            SamplerDown: if that lasts too long, or it comes back without the pushed weights.
        """
        while wanted() and not self._closed.is_set():
            self._look_for_it()
            if (since := self._away_since) is None:
                return
            if time.monotonic() - since > self._patience.away:
                raise SamplerDown(f"no answer from {self._address} for {self._patience.away:g} s; {_REMEDY}")
            self._closed.wait(PAUSE)
        raise RequestFailed("it was dropped")

    def _look_for_it(self) -> None:
        """Checks whether a server that is away is back, in one thread at a time."""
        if self._away_since is None or not self._probing.acquire(blocking=False):
            return
        try:
            if self._is_well():
                self.check()
                self._away_since = None
        finally:
            self._probing.release()

    def _is_well(self) -> bool:
        try:
            return self._probes.get(f"{self._address}/health").status_code < 500
        except httpx.HTTPError:
            return False

    def _is_new(self) -> bool:
        """Whether the server was restarted, so that it has the weights that it was started with."""
        return bool(self._born) and self._birth() not in ("", self._born)

    def _birth(self) -> str:
        """Returns the start time of the server's process from ``/metrics``, ``""`` if unknown."""
        try:
            lines = self._probes.get(f"{self._address}/metrics").text.splitlines()
        except httpx.HTTPError:
            return ""
        return next((line for line in lines if line.startswith("process_start_time_seconds")), "")


def order(address: str, what: str, timeout: float) -> None:
    """Posts to an endpoint of vLLM's dev mode: ``pause?mode=keep`` freezes requests and drops their keys and values,
    ``resume`` goes on with them.

    Raises:
        SamplerDown: if the post fails.
    """
    try:
        httpx.post(f"{address.rstrip('/')}/{what}", timeout=timeout).raise_for_status()
    except httpx.HTTPError as error:
        raise SamplerDown(f"{address} does not {what.partition('?')[0]} ({_named(error)}); {_REMEDY}") from error


_REMEDY = "start the server again and resume, so that it takes the policy's weights"


def _number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)  # TRL writes None where a log-prob is not finite


def _named(error: Exception) -> str:
    return str(error) if isinstance(error, _Fault) else f"{type(error).__name__}: {error}"
