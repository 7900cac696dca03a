"""Golden vectors of the method core.

Every ``*.json`` of the folder in ``ALIGNOPSD_METHOD_VECTORS`` (default: ``tests/data/method``) is read and run by its
``kind``. Discrete values must be equal, real ones within 1e-5.
"""

from __future__ import annotations

import pytest
from method_vectors import FOLDER, Case, cases, compare
from vector_runners import RUNNERS


def test_there_are_vectors() -> None:
    assert cases(), f"no vectors in {FOLDER}"


@pytest.mark.parametrize(("kind", "case"), cases())
def test_vector(kind: str, case: Case) -> None:
    computed = RUNNERS[kind](case["inputs"], case.get("params", {}))
    print(f"largest error {compare(computed, case['expected'], kind):.2e}")  # shown by pytest -rP
