from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory):
    """Games and translations of the tests, away from those of the user; worker processes inherit it."""
    before = os.environ.get("ALIGNOPSD_CACHE")
    folder = tmp_path_factory.mktemp("cache")
    os.environ["ALIGNOPSD_CACHE"] = str(folder)
    yield folder / "alfworld"
    if before is None:
        del os.environ["ALIGNOPSD_CACHE"]
    else:
        os.environ["ALIGNOPSD_CACHE"] = before
