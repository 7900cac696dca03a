"""`benchmarks/continuous_play.py` from outside: half the decoding steps."""

from __future__ import annotations

import runpy

import pytest
from launching import TESTS


@pytest.mark.full
def test_half_the_steps_where_nobody_waits() -> None:
    benchmark = runpy.run_path(str(TESTS.parent / "benchmarks" / "continuous_play.py"))
    for latency in (0.0, 0.5, 2.0):
        shape = benchmark["Shape"](variation=0.6, latency=latency)
        found = benchmark["modelled"](shape, 64, 64, benchmark["Costs"](), 0)
        assert found["step_ratio"] >= 1.8 or latency
        assert found["continuous"]["live_share"] >= 0.99 * found["lockstep"]["live_share"] or latency
