"""A credit temperature by what it does: the T at which the weights of a round reach a stated spread.

How far a given T moves credit depends on how large the gaps of a policy and its skills happen to be. The spread, the
standard deviation of W over the optimised tokens of all rollouts that have an advantage, is what T is turned for. Its
mean is 1 by the token budget, so that two sums over the tokens of each process say all.

Beyond the paper, which fixes T.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

COLDEST, HOTTEST = 1e-3, 1e3
STEPS = 36  # halves the range of log T until W moves by less than 1e-9


@torch.no_grad()
def weight_spread(
    weight: torch.Tensor,
    tokens: torch.Tensor,
    advantage: torch.Tensor,
    gather: Callable[[torch.Tensor], torch.Tensor],
) -> float:
    """Standard deviation of W over the optimised tokens of all processes; 0 if no rollout has an advantage.

    Args:
        weight, tokens, advantage: ``(M,)``.
        gather: ``(n,)`` of this process -> ``(N,)`` of all of them.
    """
    counted = tokens * (advantage != 0)
    sums = torch.stack([(counted * (weight - 1.0).square()).sum(), counted.sum()])
    squares, total = gather(sums).view(-1, 2).sum(0).tolist()
    return math.sqrt(squares / total) if total else 0.0


def temperature_of_spread(spread: float, at: Callable[[float], float]) -> float:
    """The T whose weights spread as wanted, by bisection of log T; the coldest one if none spreads as far.

    Every process asks equally often, so that ``at`` may gather.

    Args:
        spread: wanted.
        at: T -> the spread of its weights, which falls to 0 as T rises.
    """
    cold, hot = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(STEPS):
        middle = (cold + hot) / 2
        if at(math.exp(middle)) >= spread:
            cold = middle
        else:
            hot = middle
    return math.exp(cold)
