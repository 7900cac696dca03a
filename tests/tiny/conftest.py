"""One suite for the tiny tests."""

from __future__ import annotations

import pytest

from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.loading import load
from alignopsd_trl.environments.webshop_tiny import OPTIONS


@pytest.fixture(scope="session")
def suite() -> Suite:
    return load("webshop_tiny", **OPTIONS, reward="won", validity="format")
