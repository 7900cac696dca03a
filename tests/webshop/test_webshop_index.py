"""Prepared catalogues: built once, shared, rebuilt when stale or damaged; search by hand-computed numbers."""

from __future__ import annotations

import json
import multiprocessing
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from webshop_catalogues import entry, write

from alignopsd_trl.environments.base import DataError
from alignopsd_trl.environments.text.bm25 import quantised
from alignopsd_trl.environments.webshop.engine import goals, index, store
from alignopsd_trl.environments.webshop.engine.goals import GoalList
from alignopsd_trl.environments.webshop.engine.index import open_catalogue


def folders(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.is_dir())


def opened(data: Path, cache: Path) -> index.Catalogue:
    return open_catalogue(data, cache_dir=cache, progress=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data", [entry(), entry("B000000002", name="Wool Socks")])


def test_a_second_opening_builds_nothing(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(data, tmp_path / "cache")
    monkeypatch.setattr(index, "_build", lambda *_: pytest.fail("built again"))
    again = opened(data, tmp_path / "cache")
    assert again.checksum == first.checksum
    assert again.record(1) == first.record(1)


@pytest.mark.parametrize("name", ["records", "posting_counts", "asins", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_is_noticed_and_repaired(data: Path, tmp_path: Path, name: str, damage: str) -> None:
    cache = tmp_path / "cache"
    wanted = opened(data, cache).ranking("wool socks")
    (folder,) = folders(cache)
    whole = (folder / name).read_bytes()
    if damage == "remove":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(whole[:-1] if damage == "cut" else whole[:-1] + bytes([whole[-1] ^ 1]))
    assert opened(data, cache).ranking("wool socks") == wanted
    assert (folder / name).read_bytes() == whole
    assert folders(cache) == [folder]


def test_changed_data_gives_another_catalogue(data: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    old = opened(data, cache)
    write(data, [entry(), entry("B000000002", name="Wool Boots")])
    new = opened(data, cache)
    assert new.checksum != old.checksum
    assert new.record(1)["name"] == "Wool Boots"
    assert old.record(1)["name"] == "Wool Socks"


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(DataError):
        opened(write(tmp_path / "data", [entry(), entry("B000000002", pricing="12")]), cache)
    assert folders(cache) == []


def _build_at_once(data: str, cache: str, barrier: Any) -> list[tuple[str, float]]:
    barrier.wait()
    return open_catalogue(data, cache_dir=cache, progress=False).ranking("shirt")


def test_two_processes_that_build_at_once(data: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager, context.Pool(2) as pool:
        barrier, cache = manager.Barrier(2), tmp_path / "cache"
        jobs = [pool.apply_async(_build_at_once, (str(data), str(cache), barrier)) for _ in range(2)]
        first, second = (job.get(timeout=60) for job in jobs)
    assert first == second == opened(data, cache).ranking("shirt")
    assert len(folders(cache)) == 1


def test_digest_of_a_large_file_is_remembered_until_it_changes(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "LARGE_FILE", 0)
    first = opened(data, tmp_path / "cache")
    assert opened(data, tmp_path / "cache").checksum == first.checksum
    write(data, [entry(), entry("B000000002", name="Wool Boots!")])
    assert opened(data, tmp_path / "cache").checksum != first.checksum


def test_goal_lists_of_large_catalogues_are_shared(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = opened(data, tmp_path / "cache")
    in_memory = GoalList(catalogue, construct_seed=3)
    monkeypatch.setattr(goals, "SHARED_FROM", 1)
    built, reopened = GoalList(catalogue, construct_seed=3), GoalList(catalogue, construct_seed=3)
    draws = [in_memory.draw() for _ in range(5)]
    for shared in (built, reopened):
        assert [shared[i] for i in range(len(shared))] == [in_memory[i] for i in range(len(in_memory))]
        assert [shared.draw() for _ in range(5)] == draws


def test_rows_by_asin(data: Path, tmp_path: Path) -> None:
    catalogue = opened(data, tmp_path / "cache")
    assert [catalogue.row("B000000002"), catalogue.row("B000000001")] == [1, 0]
    with pytest.raises(KeyError, match="B000000003"):
        catalogue.row("B000000003")


@pytest.mark.parametrize(("length", "stored"), [(0, 0), (39, 39), (40, 40), (41, 40), (57, 56), (100, 96), (300, 280)])
def test_quantised_lengths(length: int, stored: int) -> None:
    assert quantised(np.array([length])).tolist() == [stored]


def test_scores_by_hand(tmp_path: Path) -> None:
    bare = {"full_description": "", "small_description": [], "customization_options": {}}
    items = [
        entry("B000000003", name="red red shoe", **bare),
        entry("B000000001", name="blue shoe", **bare),
        entry("B000000002", name="blue shoe", **bare),
        entry("B000000004", name="", **bare),
    ]
    found = opened(write(tmp_path / "data", items), tmp_path / "cache").ranking("red red SHOES the")
    norm = [0.9 * (0.6 + 0.4 * length / (7 / 3)) for length in (3, 2)]
    rare, common = log(1 + (3 - 1 + 0.5) / 1.5), log(1 + 0.5 / 3.5)
    best = 2 * rare * 2 / (2 + norm[0]) + common / (1 + norm[0])
    rest = common / (1 + norm[1])
    assert [asin for asin, _ in found] == ["B000000003", "B000000001", "B000000002"]
    np.testing.assert_allclose([score for _, score in found], [best, rest, rest], rtol=1e-6)


def test_a_store_of_another_key_is_not_used(tmp_path: Path) -> None:
    built = store.open_or_build(tmp_path, "one", lambda writer: writer.add("x", np.arange(3)))
    built.folder.rename(tmp_path / "two")
    with pytest.raises(store.StoreError, match="another version or from other data"):
        store.read(tmp_path / "two", "two")
    manifest = tmp_path / "two" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "key": "two", "format": -1}))
    with pytest.raises(store.StoreError):
        store.read(tmp_path / "two", "two")
