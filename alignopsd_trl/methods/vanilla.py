"""Vanilla: the initial policy, evaluated as it is."""

from __future__ import annotations

from alignopsd_trl.methods.baseline import Baseline
from alignopsd_trl.methods.registry import register


@register
class Vanilla(Baseline):
    """The initial weights, evaluated without skills. Nothing is trained. Confidence: high."""

    name = "vanilla"
    trains = False
