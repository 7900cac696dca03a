"""Finds the credit temperature T at which the weights of a round have a given standard deviation.

The effect of a given T depends on the size of the gaps, which differs between policies and skills. The standard
deviation is that of W over the optimised tokens of all rollouts with an advantage. The mean of W is 1 by the token
budget, so that two sums over the tokens of each process suffice.

Beyond the paper, which fixes T.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

COLDEST, HOTTEST = 1e-3, 1e3
STEPS = 36  # halves the range of log T until W moves by less than 1e-9


@torch.no_grad()
def weight_std(
    weight: torch.Tensor,
    tokens: torch.Tensor,
    advantage: torch.Tensor,
    gather: Callable[[torch.Tensor], torch.Tensor],
) -> float:
    """Standard deviation of W over the optimised tokens of all processes; 0 if no rollout has an advantage.

    Args:
        weight, tokens, advantage: ``(M,)``.
        gather: function that turns values ``(n,)`` of this process into those ``(N,)`` of all processes.
    """
    counted = tokens * (advantage != 0)
    sums = torch.stack([(counted * (weight - 1.0).square()).sum(), counted.sum()])
    squares, total = gather(sums).view(-1, 2).sum(0).tolist()
    return math.sqrt(squares / total) if total else 0.0


def temperature_of_std(deviation: float, at: Callable[[float], float]) -> float:
    """Finds the T whose weights have the wanted standard deviation, by bisection of log T.

    The result is the coldest T if no T reaches it. Every process calls ``at`` equally often, so that it may gather.

    Args:
        deviation: wanted.
        at: T -> the standard deviation of its weights, which falls to 0 as T rises.
    """
    cold, hot = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(STEPS):
        middle = (cold + hot) / 2
        if at(math.exp(middle)) >= deviation:
            cold = middle
        else:
            hot = middle
    return math.exp(cold)
