"""What samples responses: the one thing that playing and privileged thinking know of a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from alignopsd_trl.reading import Reader


class Responses(NamedTuple):
    """One response a prompt.

    Attributes:
        ids: sampled tokens of each response, with the end token if there is one.
        log_probs: the sampler's float log-probs of these tokens, `None` if it gives none.
    """

    ids: list[list[int]]
    log_probs: list[list[float]] | None


class Sampler(Protocol):
    """Samples from one policy with one temperature and token limit, chosen when the sampler is made."""

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        """Samples one response for each prompt of token ids, in the prompts' order.

        With several processes this is a collective: all of them make equally many calls with equally many prompts.

        Args:
            until: a response may end as soon as this reader finds complete thinking in it.
        """


class SortedByLength:
    """A [`Sampler`] that hands prompts of mixed length to another one in batches of neighbours in length, so that
    little is computed for padding and few caches are held at once.

    Args:
        sampler: what samples.
        size: how many of these prompts go into a batch; equally many prompts make equally many calls.
    """

    def __init__(self, sampler: Sampler, size: Callable[[Sequence[Sequence[int]]], int]):
        self._sampler, self._size = sampler, size

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        size = self._size(prompts)
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        responses: list[list[int]] = [[] for _ in prompts]
        for first in range(0, len(order), size):
            rows = order[first : first + size]
            sampled = self._sampler.respond([prompts[row] for row in rows], until).ids
            for row, response in zip(rows, sampled, strict=True):
                responses[row] = response
        return Responses(responses, None)
