"""Pools of vLLM servers as a decoding back end: each process sends its own request for each turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.distributed.process_group import ProcessGroup
from alignopsd_trl.experimental.servers import Patience, Servers, order
from alignopsd_trl.rollout import AnySampler, Continuous, Request, Response, SamplerDown
from alignopsd_trl.scoring.prefix_cache import PrefixCache
from alignopsd_trl.trl_compat.sampling import ColocatedBackend, join_servers, push_weights, sampling_options

if TYPE_CHECKING:
    from alignopsd_trl.trl_compat import Trainer

Options = Callable[[float, int], Mapping[str, Any]]
"""(temperature, token limit) -> the sampling options in a body of ``/v1/completions``."""


class ServerSampler(Continuous):
    """A [`~alignopsd_trl.rollout.Sampler`] on vLLM's servers. A failing request ends its episode.

    Args:
        servers: with the policy's weights.
        options: sampling options in the body of ``/v1/completions``.
    """

    def __init__(self, servers: Servers, options: Mapping[str, Any]):
        self._servers, self._options = servers, dict(options)
        self._asked: set[Future[Response]] = set()
        self._drops = 0

    @property
    def waiting(self) -> int:
        return len(self._asked)

    def submit(self, request: Request) -> Future[Response]:
        asks = {"prompt": list(request.prompt_ids), "seed": request.seed, "return_token_ids": True}
        drops = self._drops
        future = self._servers.submit({**self._options, **asks}, lambda: self._drops == drops)
        self._asked.add(future)
        future.add_done_callback(self._asked.discard)
        return future

    def advance(self) -> bool:
        return False  # the servers do the work

    def drop(self) -> None:
        self._drops += 1
        self._asked.clear()


@dataclass(eq=False)
class ServerPool:
    """Makes samplers on servers, and connects to these when the first sampler is made.

    Args:
        args: the run's configuration, with the limits of requests.
        addresses: of the servers.
        processes: open the pool together.
        options: of requests.
        pushed: whether the servers get the policy's weights; else they keep those that they were started with.
    """

    args: AlignOPSDConfig
    addresses: list[str]
    processes: ProcessGroup
    options: Options
    pushed: bool

    def __post_init__(self) -> None:
        self._servers: Servers | None = None
        self._weights: int | None = None

    @property
    def weights(self) -> int | None:
        """The number of updates in the weights that were pushed last."""
        return self._weights

    @weights.setter
    def weights(self, update: int) -> None:
        self._weights = update
        if self._servers is not None:
            self._servers.weights = update

    def sampler(self, temperature: float, max_tokens: int) -> ServerSampler:
        """Makes a sampler. A collective.

        Raises:
            SamplerDown: on all processes, if one of them does not reach a server, or a server was restarted.
        """
        servers = self.processes.together(self._open, SamplerDown)
        return ServerSampler(servers, self.options(temperature, max_tokens))

    def order(self, what: str) -> None:
        """Posts to an endpoint of all servers, see `servers.order`. A collective."""
        addresses = self.addresses if self.processes.process == 0 else []
        self.processes.together(partial(order, addresses, what, self.args.vllm_request_timeout), SamplerDown)

    def close(self) -> None:
        if self._servers is not None:
            self._servers.close()
        self._servers = None

    def _open(self) -> Servers:
        if self._servers is not None:
            self._servers.check()
            return self._servers
        args = self.args
        patience = Patience(
            args.vllm_request_tries, args.vllm_request_backoff, args.vllm_request_timeout, args.vllm_server_timeout
        )
        self._servers = Servers(self.addresses, args.vllm_requests_in_flight, patience, pushed=self.pushed)
        self._servers.weights = self._weights
        return self._servers


class ServerBackend(ColocatedBackend):
    """vLLM's servers, which get the policy's weights before each round.

    Args:
        push: sends the weights to the servers and returns the number of updates in them.
    """

    def __init__(self, trainer: Trainer, processes: ProcessGroup, push: Callable[[], int], options: Options):
        super().__init__(trainer, processes)
        self._push = push
        self._pool = ServerPool(trainer.args, trainer.args.server_addresses, processes, options, pushed=True)

    @classmethod
    def joined(cls, trainer: Trainer, processes: ProcessGroup) -> ServerBackend:
        """Makes the back end and connects the first process to all servers. A collective."""
        join_servers(trainer, trainer.args.server_addresses)
        return cls(trainer, processes, partial(push_weights, trainer), partial(sampling_options, trainer))

    def push(self, update: int) -> None:
        """Sends the policy's weights to the servers. With `rounds_ahead` the next round's requests are frozen.

        Raises:
            SamplerDown: on all processes, if the push fails.
        """
        frozen = self._trainer.args.rounds_ahead and self._pool.weights not in (None, update)
        with self._frozen() if frozen else contextlib.nullcontext():
            self._pool.weights = self._processes.together(self._push, SamplerDown)

    @contextlib.contextmanager
    def _frozen(self) -> Generator[None]:
        self._pool.order("pause?mode=keep")
        try:
            yield
        except SamplerDown:
            with contextlib.suppress(SamplerDown):  # the first error is the one to report
                self._pool.order("resume")
            raise
        self._pool.order("resume")

    def sampler(self, temperature: float, max_tokens: int, prefixes: PrefixCache | None = None) -> AnySampler:
        return self._pool.sampler(temperature, max_tokens)

    def close(self) -> None:
        super().close()
        self._pool.close()


def teacher_servers(trainer: Trainer, processes: ProcessGroup, options: Options | None = None) -> ServerPool | None:
    """Makes the pool of servers that keep the initial weights; `None` without ``vllm_teacher_addresses``."""
    addresses = trainer.args.vllm_teacher_addresses
    if addresses is None:
        return None
    return ServerPool(trainer.args, addresses, processes, options or partial(sampling_options, trainer), pushed=False)
