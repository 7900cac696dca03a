"""Shared pieces of the WebShop tests: a cache for prepared catalogues, shops by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from webshop_files import COPIES, FIXTURES

from alignopsd_trl.environments.webshop.engine.goals import GoalList
from alignopsd_trl.environments.webshop.engine.index import Catalogue, open_catalogue
from alignopsd_trl.environments.webshop.engine.shop import Shop


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prepared")


@pytest.fixture(scope="session")
def catalogue_of(cache: Path) -> Callable[[str], Catalogue]:
    """The catalogue of a fixture folder by name (``catalogue_a``)."""
    known: dict[str, Catalogue] = {}

    def find(name: str) -> Catalogue:
        if name not in known:
            known[name] = open_catalogue(FIXTURES / name, cache_dir=cache, progress=False)
        return known[name]

    return find


@pytest.fixture(scope="session")
def small(cache: Path) -> Catalogue:
    """A catalogue of 88 products, for tests that need any."""
    return open_catalogue(COPIES / "catalogue_a", cache_dir=cache, progress=False)


@pytest.fixture
def shop(small: Catalogue) -> Shop:
    return Shop(small, GoalList(small, construct_seed=7))


@pytest.fixture
def options(cache: Path) -> dict[str, str]:
    """Of an environment with these products."""
    return {"data_dir": str(COPIES / "catalogue_a"), "cache_dir": str(cache)}
