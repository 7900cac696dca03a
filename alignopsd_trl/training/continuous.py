"""vLLM as each process asks it by itself: an engine in the process, or servers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.policy.process_group import ProcessGroup
from alignopsd_trl.policy.servers import Patience, Servers, order
from alignopsd_trl.policy.vllm_samplers import ServerSampler, TogetherSampler
from alignopsd_trl.rollout import BatchSampler, Sampler, SamplerDown


@dataclass(eq=False)
class ContinuousEngine:
    """Makes samplers with which no episode waits for another.

    Args:
        args: where the servers are, how often a request is tried.
        processes: which push the weights together.
        push: gives vLLM the weights that an update has changed, and says how many updates they have had.
        options: of requests to servers, by temperature and token limit.
        stepping: makes a sampler on this process's engine, by temperature and token limit.
    """

    args: AlignOPSDConfig
    processes: ProcessGroup
    push: Callable[[], int]
    options: Callable[[float, int], dict[str, Any]]
    stepping: Callable[[float, int], Sampler]

    def __post_init__(self) -> None:
        self._servers: dict[bool, Servers] = {}
        self._weights: int | None = None

    def push_weights(self, update: int) -> None:
        """Gives vLLM the policy's weights after so many updates. A collective. Requests on their way, of a round that
        is played ahead, are frozen meanwhile.

        Raises:
            SamplerDown: on all processes.
        """
        frozen = self.args.rounds_ahead and self._weights not in (None, update)
        with self._frozen() if frozen else contextlib.nullcontext():
            self._weights = self.processes.together(self.push, SamplerDown)
            if False in self._servers:
                self._servers[False].weights = self._weights

    @contextlib.contextmanager
    def _frozen(self) -> Generator[None]:
        self._order("pause?mode=keep")
        try:
            yield
        except SamplerDown:
            with contextlib.suppress(SamplerDown):  # the first error is the one to tell
                self._order("resume")
            raise
        self._order("resume")

    def _order(self, what: str) -> None:
        addresses = self.args.server_addresses if self.processes.process == 0 else []
        act = partial(order, addresses, what, self.args.vllm_request_timeout)
        self.processes.together(act, SamplerDown)

    def sampler(self, temperature: float, max_tokens: int, initial: bool = False) -> Sampler:
        """Makes what samples from the weights that were pushed. A collective with servers.

        Args:
            initial: the servers are asked that keep the initial weights.

        Raises:
            SamplerDown: on all processes, if one of them does not reach a server, or another process answers there.
        """
        if self.args.vllm_mode == "colocate" and not initial:
            return self.stepping(temperature, max_tokens)
        servers = self.processes.together(lambda: self._open(initial), SamplerDown)
        return ServerSampler(servers, self.options(temperature, max_tokens))

    def together(self, sampler: BatchSampler) -> BatchSampler:
        """The same sampler for a call that all processes make."""
        return TogetherSampler(sampler, self.processes.together)

    def close(self) -> None:
        """Ends the connections to servers; who samples next opens new ones."""
        for servers in self._servers.values():
            servers.close()
        self._servers.clear()

    def _open(self, initial: bool) -> Servers:
        if initial in self._servers:
            self._servers[initial].check()
            return self._servers[initial]
        args = self.args
        patience = Patience(
            args.vllm_request_tries, args.vllm_request_backoff, args.vllm_request_timeout, args.vllm_server_timeout
        )
        addresses = args.vllm_teacher_addresses if initial else args.server_addresses
        found = Servers(addresses or [], args.vllm_requests_in_flight, patience, pushed=not initial)
        found.weights = None if initial else self._weights
        return self._servers.setdefault(initial, found)
