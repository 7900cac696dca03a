"""A vLLM server as a decoding back end: each process sends its own request for each turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from alignopsd_trl.distributed.process_group import ProcessGroup
from alignopsd_trl.experimental.server import Patience, Server, order
from alignopsd_trl.rollout import AnySampler, Continuous, Request, Response, SamplerDown
from alignopsd_trl.scoring.prefix_cache import PrefixCache
from alignopsd_trl.trl_compat.sampling import ColocatedBackend

if TYPE_CHECKING:
    from alignopsd_trl.trl_compat import Trainer

Options = Callable[[float, int], Mapping[str, Any]]
"""(temperature, token limit) -> the sampling options in a body of ``/v1/completions``."""


class ServerSampler(Continuous):
    """A [`~alignopsd_trl.rollout.Sampler`] on vLLM's server. A failing request ends its episode.

    Args:
        server: with the policy's weights.
        options: sampling options in the body of ``/v1/completions``.
    """

    def __init__(self, server: Server, options: Mapping[str, Any]):
        self._server, self._options = server, dict(options)
        self._asked: set[Future[Response]] = set()
        self._drops = 0

    @property
    def waiting(self) -> int:
        return len(self._asked)

    def submit(self, request: Request) -> Future[Response]:
        asks = {"prompt": list(request.prompt_ids), "seed": request.seed, "return_token_ids": True}
        drops = self._drops
        future = self._server.submit({**self._options, **asks}, lambda: self._drops == drops)
        self._asked.add(future)
        future.add_done_callback(self._asked.discard)
        return future

    def advance(self) -> bool:
        return False  # the server does the work

    def drop(self) -> None:
        self._drops += 1
        self._asked.clear()


class ServerBackend(ColocatedBackend):
    """vLLM's server, which gets the policy's weights before each round.

    Args:
        push: sends the weights to the server and returns the number of updates in them.
        options: of requests.
    """

    def __init__(self, trainer: Trainer, processes: ProcessGroup, push: Callable[[], int], options: Options):
        super().__init__(trainer, processes)
        self._push, self._options = push, options
        self._server: Server | None = None
        self._weights: int | None = None

    def push(self, update: int) -> None:
        """Sends the policy's weights to the server. With `rounds_ahead` the next round's requests are frozen.

        Raises:
            SamplerDown: on all processes, if the push fails.
        """
        frozen = self._trainer.args.rounds_ahead and self._weights not in (None, update)
        with self._frozen() if frozen else contextlib.nullcontext():
            self._weights = self._processes.together(self._push, SamplerDown)
        if self._server is not None:
            self._server.weights = self._weights

    @contextlib.contextmanager
    def _frozen(self) -> Generator[None]:
        self._order("pause?mode=keep")
        try:
            yield
        except SamplerDown:
            with contextlib.suppress(SamplerDown):  # the first error is the one to report
                self._order("resume")
            raise
        self._order("resume")

    def _order(self, what: str) -> None:
        args = self._trainer.args
        act = partial(order, args.server_address, what, args.vllm_request_timeout)
        self._processes.together(act if self._processes.process == 0 else lambda: None, SamplerDown)

    def sampler(self, temperature: float, max_tokens: int, prefixes: PrefixCache | None = None) -> AnySampler:
        """Makes a sampler, and connects to the server when the first one is made. A collective.

        Raises:
            SamplerDown: on all processes, if one of them does not reach the server, or it was restarted.
        """
        return ServerSampler(self._processes.together(self._open, SamplerDown), self._options(temperature, max_tokens))

    def _open(self) -> Server:
        if self._server is not None:
            self._server.check()
            return self._server
        args = self._trainer.args
        patience = Patience(
            args.vllm_request_tries, args.vllm_request_backoff, args.vllm_request_timeout, args.vllm_server_timeout
        )
        self._server = Server(args.server_address, args.vllm_requests_in_flight, patience)
        self._server.weights = self._weights
        return self._server

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._server = None
