"""Samplers of responses: all that rollouts and privileged thinking know of a policy.

A [`Sampler`] takes requests one by one and fulfils each as soon as it can. A [`BatchSampler`] samples for many prompts
in one call; [`driver.Lockstep`] turns it into a `Sampler` of synchronous batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from alignopsd_trl.common.errors import RunEnded
from alignopsd_trl.rollout.reading import Reader

logger = logging.getLogger(__name__)

PATIENCE = 0.2  # seconds that a wait for other threads takes at most


class RequestFailed(RuntimeError):
    """Raised when a request got no response in all its tries. It ends its own episode only."""


class SamplerDown(RunEnded):
    """Raised when a sampler can't be used any more. It ends the play of all processes."""


class Request(NamedTuple):
    """A request for one response to one prompt.

    Attributes:
        seed: in [0, 2**31), for samplers that draw random numbers by request.
        until: the response may end as soon as this reader finds a complete reasoning trace in it.
        episode: the number of the episode among those that are played together.
        schema: JSON schema that the response must follow, for samplers whose attribute ``takes_schemas`` is true.
    """

    prompt_ids: Sequence[int]
    seed: int = 0
    until: Reader | None = None
    episode: int = 0
    schema: Mapping[str, Any] | None = None


class Response(NamedTuple):
    """One sampled response.

    Attributes:
        ids: its tokens, with the end token if there is one.
        log_probs: the sampler's float log-probs of these tokens, `None` if it gives none.
        weights: the number of updates in the sampler's weights at the request; `None` if the sampler does not know it.
    """

    ids: Sequence[int]
    log_probs: Sequence[float] | None = None
    weights: int | None = None


class Responses(NamedTuple):
    """One response a prompt: `Response.ids` of each, and `Response.log_probs`, `None` if the sampler gives none."""

    ids: list[list[int]]
    log_probs: list[list[float]] | None


class BatchSampler(Protocol):
    """Samples from one policy with one temperature and token limit, chosen when the sampler is made."""

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        """Samples one response for each prompt of token ids, in the prompts' order.

        With several processes this is a collective: all of them make equally many calls with equally many prompts.

        Args:
            until: a response may end as soon as this reader finds a complete reasoning trace in it.
        """


@runtime_checkable
class Sampler(Protocol):
    """Fulfils requests in any order. All its methods are called from one thread.

    Attributes:
        waits_for_all: whether `advance` is a collective that fulfils all requests. It is then called when every live
            episode of this process waits, equally often on all processes. Else each process calls it on its own.
        waiting: the number of requests without a response.
    """

    waits_for_all: bool

    @property
    def waiting(self) -> int: ...

    def submit(self, request: Request) -> Future[Response]:
        """Takes a request and returns at once.

        The future returns the response, or raises `RequestFailed`, which ends the episode, or `SamplerDown`, which ends
        the play. Any thread may fulfil it.
        """

    def advance(self) -> bool:
        """Does the work of this thread, such as one decoding step, and says whether there was any. It does not wait
        for other threads or machines."""

    def drop(self) -> None:
        """Cancels all requests without a response. Called when a play ends, also by an error or Ctrl-C."""


AnySampler = Sampler | BatchSampler


class Continuous(Sampler):
    """Base of samplers that fulfil each request on its own, so that no episode waits for another. They are also a
    [`BatchSampler`], without collectives. Subclasses implement the rest of [`Sampler`]."""

    waits_for_all = False

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        first = int(torch.randint(2**30, ()))
        seeds = [(first + place) % 2**31 for place in range(len(prompts))]
        futures = [self.submit(Request(*one, until)) for one in zip(prompts, seeds, strict=True)]
        try:
            while left := [one for one in futures if not one.done()]:
                if not self.advance():
                    wait(left, PATIENCE, FIRST_COMPLETED)
        finally:
            self.drop()
        found = [_or_empty(future) for future in futures]
        known = bool(found) and found[0].log_probs is not None
        return Responses(
            [list(one.ids) for one in found], [list(one.log_probs or ()) for one in found] if known else None
        )


def _or_empty(future: Future[Response]) -> Response:
    """Returns the response, an empty one if the request failed: the other responses of the batch stay usable."""
    try:
        return future.result()
    except RequestFailed as error:
        logger.warning(f"A request failed and counts as an empty response: {error}")
        return Response([], [])


@dataclass(frozen=True)
class SortedByLength:
    """A [`BatchSampler`] that passes prompts to another one in batches of similar length, which saves padding.

    Args:
        size: returns how many of the prompts go into a batch. The number of calls must depend on that of prompts alone.
    """

    sampler: BatchSampler
    size: Callable[[Sequence[Sequence[int]]], int]

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        size, order = self.size(prompts), sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        parts = [order[first : first + size] for first in range(0, len(order), size)]
        found = [self.sampler.respond([prompts[row] for row in part], until) for part in parts]
        back = sorted(range(len(order)), key=order.__getitem__)
        ids = [one for part in found for one in part.ids]
        log_probs = [one for part in found for one in part.log_probs or ()]
        return Responses([ids[place] for place in back], [log_probs[place] for place in back] if log_probs else None)
