"""A vLLM server as a decoding back end: each process sends its own request for each turn.

A request that fails on a healthy server has used up a try. A server that does not report itself healthy is away: its
requests wait for it, and use up no try.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.experimental.config import ContinuousConfig
from alignopsd_trl.experimental.trl_colocated import ColocatedBackend
from alignopsd_trl.rollout.reading import Reader
from alignopsd_trl.rollout.sampler import Continuous, Request, RequestFailed, Response, Responses, SamplerDown
from alignopsd_trl.scoring.prefix_cache import PrefixCache

if TYPE_CHECKING:
    from alignopsd_trl.scoring.trl_trainer import Trainer

IDLE = 2.0
"""Seconds that an unused connection is kept: less than the 5 after which vLLM closes it."""
PROBE = 5.0
"""Seconds within which a healthy server answers ``/health``."""
PAUSE = 0.25
"""Seconds between two tries while the server is away."""
PASSING = (408, 425, 429)
"""Status codes of temporary refusals."""
PATIENCE: dict[str, Any] = {"in_flight": 256, "tries": 4, "backoff": 1.0, "timeout": 600.0}
"""How a process asks the server: arguments of `Server`."""
SECONDS_TO_END = 5.0
"""Seconds that a server or a round that is closed waits for calls whose results are dropped."""
_REMEDY = "start the server again and resume, so that it takes the policy's weights"
Result = TypeVar("Result")


def in_background(act: Callable[[], Result], name: str) -> Future[Result]:
    """Runs a call in a daemon thread: unlike with `concurrent.futures`, a call that hangs does not keep the process
    from ending."""
    result: Future[Result] = Future()

    def run() -> None:
        try:
            result.set_result(act())
        except BaseException as error:  # the future raises it
            result.set_exception(error)

    threading.Thread(target=run, daemon=True, name=name).start()
    return result


class _Fault(Exception):
    """A failure that another try may mend."""


class Server:
    """A vLLM server to which the policy's weights are pushed.

    Args:
        address: e.g. ``http://10.0.0.5:8000``.
        tries: how often a request is sent while the server is healthy.
        backoff: seconds before the second try; twice as long before each further one.
        timeout: seconds that one try may take.
        away: seconds that the server may be away.

    Attributes:
        weights: the number of updates in the pushed weights, for `Response.weights`.

    Raises:
        SamplerDown: if the server does not answer within ``away`` seconds.
    """

    weights: int | None = None

    def __init__(
        self, address: str, in_flight: int, tries: int = 4, backoff: float = 1, timeout: float = 600, away: float = 240
    ):
        self._address, self._tries, self._backoff, self._away = address.rstrip("/"), tries, backoff, away
        limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight, keepalive_expiry=IDLE)
        self._client = httpx.Client(timeout=httpx.Timeout(timeout, connect=PROBE), limits=limits)
        self._probes = httpx.Client(timeout=PROBE)
        self._closed, self._slots = threading.Event(), threading.Semaphore(in_flight)
        self._requests = set[Future[Response]]()
        try:
            self._meet()
        except BaseException:
            self.close()
            raise

    def submit(self, body: Mapping[str, Any], wanted: Callable[[], bool] = lambda: True) -> Future[Response]:
        """Posts a body of ``/v1/completions``, without its ``model``. The future raises `RequestFailed` for this
        request alone, or `SamplerDown`. ``wanted`` returns whether the request is still needed, and so tried again."""
        request = in_background(lambda: self._complete(body, wanted), "request")
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)
        return request

    def check(self) -> None:
        """Raises `SamplerDown` if the server was restarted and so has lost the pushed weights."""
        if self._born and self._birth() not in ("", self._born):
            raise SamplerDown(f"{self._address} was restarted and has its first weights again; {_REMEDY}")

    def order(self, what: str) -> None:
        """Posts to an endpoint of vLLM's dev mode: ``pause?mode=keep`` freezes requests and drops their keys and
        values, ``resume`` goes on with them. Raises `SamplerDown` if that fails."""
        try:
            reply = self._probes.post(f"{self._address}/{what}", timeout=self._client.timeout)  # requests may take all
            reply.raise_for_status()  # connections of the other client
        except httpx.HTTPError as error:
            told = f"{self._address} does not {what.partition('?')[0]} ({_named(error)}); {_REMEDY}"
            raise SamplerDown(told) from error

    def close(self) -> None:
        """Stops all retries and waits `SECONDS_TO_END` for requests in flight."""
        self._closed.set()
        wait(tuple(self._requests), SECONDS_TO_END)
        self._client.close()
        self._probes.close()

    def _meet(self) -> None:
        """Waits for the server at the start; reads which model it serves, and when its process began."""
        self._was_away(f"no vLLM server answers at {self._address}; start `vllm serve` there, {_REMEDY}")
        try:
            self._model = self._probes.get(f"{self._address}/v1/models").json()["data"][0]["id"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            message = f"{self._address} does not say which model it serves ({_named(error)}); is it a vLLM server?"
            raise SamplerDown(message) from error
        self._born = self._birth()

    def _complete(self, body: Mapping[str, Any], wanted: Callable[[], bool]) -> Response:
        faults, gone = 0, f"no answer from {self._address} for {self._away:g} s; {_REMEDY}"
        with self._slots:
            while not self._closed.is_set() and wanted():
                weights = self.weights
                try:
                    return self._ask(body)._replace(weights=weights)
                except (httpx.HTTPError, _Fault) as error:
                    problem = f"{self._address}: {_named(error)}"
                away = self._was_away(gone, wanted)
                self.check()
                if away:
                    continue
                faults += 1
                if faults == self._tries:
                    raise RequestFailed(f"no response after {faults} tries; the last: {problem}")
                self._closed.wait(self._backoff * 2 ** (faults - 1))
        raise RequestFailed("it was dropped")

    def _was_away(self, gone: str, wanted: Callable[[], bool] = lambda: True) -> bool:
        """Waits for the server while it is away, and returns whether it was. Raises `SamplerDown` with the message
        ``gone`` if it stays away."""
        began, away = time.monotonic(), False
        while not self._closed.is_set() and wanted() and not self._is_well():
            if time.monotonic() - began > self._away:
                raise SamplerDown(gone)
            away = True
            self._closed.wait(PAUSE)
        return away

    def _ask(self, body: Mapping[str, Any]) -> Response:
        reply = self._client.post(f"{self._address}/v1/completions", json={"model": self._model, **body})
        if 400 <= reply.status_code < 500 and reply.status_code not in PASSING:
            raise RequestFailed(f"{self._address} answered {reply.status_code}: {reply.text:.300}")
        if reply.status_code != 200:
            raise _Fault(f"answered {reply.status_code}: {reply.text:.300}")
        try:
            choice = reply.json()["choices"][0]
            ids, log_probs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            known = all(one is None or isinstance(one, int | float) for one in log_probs)  # TRL's None is not finite
            if not known or len(ids) != len(log_probs) or any(type(one) is not int for one in ids):
                raise TypeError("token_ids and token_logprobs must be equally long lists of numbers")
        except (ValueError, LookupError, TypeError) as error:
            raise _Fault(f"answered with no completion of token ids: {reply.text!r:.120}") from error
        return Response(ids, log_probs)

    def _is_well(self) -> bool:
        try:
            return self._probes.get(f"{self._address}/health").status_code < 500
        except httpx.HTTPError:
            return False

    def _birth(self) -> str:
        """Returns the start time of the server's process from ``/metrics``, ``""`` if unknown."""
        try:
            lines = self._probes.get(f"{self._address}/metrics").text.splitlines()
        except httpx.HTTPError:
            return ""
        return next((line for line in lines if line.startswith("process_start_time_seconds")), "")


def _named(error: Exception) -> str:
    return str(error) if isinstance(error, _Fault) else f"{type(error).__name__}: {error}"


class ServerSampler(Continuous):
    """A [`~alignopsd_trl.rollout.Sampler`] on vLLM's server. A failing request ends its episode.

    Args:
        options: sampling options in the body of ``/v1/completions``.
        together: as `ProcessGroup.together`, for calls that all processes make together.
    """

    def __init__(self, server: Server, options: Mapping[str, Any], together: Callable[..., Any] = lambda act, _: act()):
        self._server, self._options, self._together = server, options, together
        self._asked: set[Future[Response]] = set()

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        return self._together(partial(super().respond, prompts, until), SamplerDown)

    @property
    def waiting(self) -> int:
        return len(self._asked)

    def submit(self, request: Request) -> Future[Response]:
        asks = {"prompt": list(request.prompt_ids), "seed": request.seed, "return_token_ids": True}
        asked = self._asked
        future = self._server.submit({**self._options, **asks}, lambda: self._asked is asked)
        asked.add(future)
        future.add_done_callback(asked.discard)
        return future

    def advance(self) -> bool:
        return False  # the server does the work

    def drop(self) -> None:
        self._asked = set()


class ServerBackend(ColocatedBackend):
    """vLLM's server, which gets the policy's weights before each round.

    Args:
        push: sends the weights to the server and returns the number of updates in them.
        options: (temperature, token limit) -> the sampling options in a body of ``/v1/completions``.
    """

    _server: Server | None = None

    def __init__(
        self,
        trainer: Trainer,
        config: ContinuousConfig,
        processes: ProcessGroup,
        push: Callable[[], int],
        options: Callable[..., Any],
    ):
        super().__init__(trainer, processes)
        self._push, self._options, self._config = push, options, config

    def push(self, update: int) -> None:
        """Sends the policy's weights to the server. With `rounds_ahead` the next round's requests are frozen. Raises
        `SamplerDown` on all processes if the push fails."""
        server = self._connected()
        frozen = self._config.rounds_ahead and server.weights not in (None, update)
        with self._frozen(server) if frozen else contextlib.nullcontext():
            server.weights = self._processes.together(self._push, SamplerDown)

    @contextlib.contextmanager
    def _frozen(self, server: Server) -> Generator[None]:
        self._order(server, "pause?mode=keep")
        try:
            yield
        except SamplerDown:
            with contextlib.suppress(SamplerDown):  # the first error is the one to report
                self._order(server, "resume")
            raise
        self._order(server, "resume")

    def _order(self, server: Server, what: str) -> None:
        act = partial(server.order, what) if self._processes.process == 0 else lambda: None
        self._processes.together(act, SamplerDown)

    def sampler(self, temperature: float, max_tokens: int, prefixes: PrefixCache | None = None) -> ServerSampler:
        return ServerSampler(self._connected(), self._options(temperature, max_tokens), self._processes.together)

    def _connected(self) -> Server:
        """Returns the server, to which the first call connects. A collective. Raises `SamplerDown` on all processes if
        one of them does not reach the server, or it was restarted."""
        return self._processes.together(self._open, SamplerDown)

    def _open(self) -> Server:
        if self._server is None:
            config = self._config
            address = config.vllm_server_base_url or f"http://{config.vllm_server_host}:{config.vllm_server_port}"
            self._server = Server(address, **PATIENCE, away=config.vllm_server_timeout)
        self._server.check()
        return self._server

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._server = None
