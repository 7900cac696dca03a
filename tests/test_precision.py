"""bfloat16 is used where it is measured to be faster."""

from __future__ import annotations

import pytest
import torch

from alignopsd_trl import precision


@pytest.mark.parametrize(("float32", "bfloat16", "pays"), [(3.0, 1.0, True), (1.0, 3.0, False), (1.0, 0.95, False)])
def test_bfloat16_pays_where_it_is_clearly_faster(
    float32: float, bfloat16: float, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {torch.float32: float32, torch.bfloat16: bfloat16}
    monkeypatch.setattr(precision, "seconds_of_product", lambda width, kind: seconds[kind])
    assert precision.bfloat16_pays(576) is pays


def test_the_quickest_of_many_products_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 0.0, 0.5, 0.5, 0.7, 0.7, 1.1, 9.0])
    monkeypatch.setattr(precision.time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(precision, "SECONDS", 1.0)
    assert precision.seconds_of_product(4, torch.float32) == pytest.approx(0.2)
