"""One suite for the tiny tests."""

from __future__ import annotations

import pytest

from alignopsd_trl.tiny.make_policy import RECIPE
from environments.base import Suite, load


@pytest.fixture(scope="session")
def suite() -> Suite:
    return load(RECIPE["environment"], **RECIPE["environment_options"])
