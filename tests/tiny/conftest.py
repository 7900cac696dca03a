"""One suite for the tiny tests."""

from __future__ import annotations

import pytest

from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.loading import load
from assets.tiny_policies.curricula import CURRICULA


@pytest.fixture(scope="session")
def suite() -> Suite:
    return load("webshop_tiny", **CURRICULA["webshop_tiny"].setting.environment_options)
