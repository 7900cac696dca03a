"""The order of tasks: by chance as TRL's, or with each category's share in each round."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from fakes.toy import toy_dataset
from fakes.trainers import make_trainer
from hypothesis import given
from hypothesis import strategies as st

from alignopsd_trl.common.statistics import spread


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60), st.integers(1, 12), st.randoms())
def test_any_stretch_holds_about_each_kinds_share(kinds: list[str], stretch: int, draw) -> None:
    order = list(range(len(kinds)))
    draw.shuffle(order)
    rows = spread(order, kinds)
    assert sorted(rows) == sorted(order)
    for kind, count in Counter(kinds).items():
        assert [row for row in rows if kinds[row] == kind] == [row for row in order if kinds[row] == kind]
        for first in range(len(rows) - stretch + 1):
            held = sum(kinds[row] == kind for row in rows[first : first + stretch])
            assert abs(held - stretch * count / len(kinds)) < 3


@pytest.mark.parametrize("column", [True, False])
def test_each_round_has_its_share_of_each_category(tmp_path: Path, column: bool) -> None:
    trainer = make_trainer(tmp_path, spread_categories=True)
    kinds = ["cup" if number % 4 else "pan" for number in range(16)]
    tasks = toy_dataset(16)
    trainer.train_dataset = tasks.add_column("category", kinds) if column else tasks
    siblings, orders, shares = trainer.args.num_generations, [], []
    for epoch in (0, 1, 2):
        order = trainer._get_train_sampler()
        order.epoch = epoch
        orders.append(list(dict.fromkeys(order)))
        fours = [orders[-1][first : first + 4] for first in range(0, 16, 4)]
        shares += [sum(kinds[row] == "pan" for row in four) for four in fours]
        assert len(list(order)) == 16 * siblings * order.repeat_count
    assert (set(shares) == {1}) is column
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])
