"""The prepared catalogue: cleaned products and postings, built once on disk and shared by every process.

Arrays of the store (N products in file order, numbered by row): ``records`` (uint8, JSON of all products end to end),
``record_start`` (int64, N+1), ``cards`` and ``card_start`` (the same for what a page of results shows), ``asins`` (U10,
N, ascending), ``asin_order`` (int32, N: their rows), ``price_low`` and
``price_high`` (float64, N), ``price_count`` (int8, N: 1 or 2), ``category`` and ``query`` (int32, N: numbers into the
lists of the notes) and the postings of `alignopsd_trl.environments.webshop.engine.search`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import regex

from alignopsd_trl.environments.cache import cache_folder, write_atomically
from alignopsd_trl.environments.webshop.engine import store
from alignopsd_trl.environments.webshop.engine.files import Cleaner, DataFiles
from alignopsd_trl.environments.webshop.engine.search import PostingsBuilder, Searcher, document_text

# A prepared catalogue depends on these besides the data: a change to any of them rebuilds it.
_RULES = (
    *("files.py", "json_stream.py", "search.py", "store.py", "index.py"),
    *("../../text/porter.py", "../../text/lucene.py", "../../text/bm25.py"),
)
LARGE_FILE = 1 << 26  # bytes from which on the digest of a data file is remembered
KEPT_PRODUCTS = 4096  # decoded products that a process remembers


class Catalogue:
    """The products of a prepared catalogue, by row (file order after cleaning)."""

    def __init__(self, arrays: store.Store):
        self._arrays = arrays
        self._records, self._start = arrays["records"], arrays["record_start"]
        self._cards, self._card_start = arrays["cards"], arrays["card_start"]
        self._by_asin, self._asins = arrays["asin_order"], arrays["asins"]
        self._searcher = Searcher(arrays)
        self.notes = arrays.notes
        self.product = lru_cache(maxsize=KEPT_PRODUCTS)(self.record)  # what it returns must not be changed
        self.search = lru_cache(maxsize=KEPT_PRODUCTS)(self._search)

    def __len__(self) -> int:
        return len(self._start) - 1

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    @property
    def checksum(self) -> str:
        """16 hex digits over the data files, ``num_products`` and ``lenient``."""
        return self.notes["checksum"]

    @property
    def folder(self) -> Path:
        """The folder of the prepared catalogue."""
        return self._arrays.folder

    def record(self, row: int) -> dict[str, Any]:
        """Decodes a cleaned product. ``Title``, ``Reviews`` and ``Rating`` as in the reference."""
        record = _read(self._records, self._start, row)
        record["Title"], record["Reviews"], record["Rating"] = record["name"], [], "N.A."
        return record

    def card(self, row: int) -> dict[str, str]:
        """Returns the ``asin``, ``name`` and ``Price`` of a product, without decoding the rest of it."""
        return _read(self._cards, self._card_start, row)

    def row(self, asin: str) -> int:
        """Returns the row of a product.

        Raises:
            KeyError: if there is none.
        """
        place = int(np.searchsorted(self._asins, asin))
        if place < len(self) and self._asins[place] == asin:
            return int(self._by_asin[place])
        raise KeyError(f"no product {asin!r} in this catalogue of {len(self)}")

    def ranking(self, query: str, limit: int = 50) -> list[tuple[str, float]]:
        """Returns the (asin, score) pairs of a query, best first; scores are 32-bit floats."""
        documents, scores = self._searcher.rank(query, limit)
        return list(zip(self._asins[documents].tolist(), scores.tolist(), strict=True))

    def _search(self, query: str) -> tuple[int, ...]:
        """Returns the rows of the 50 best products."""
        return tuple(self._by_asin[self._searcher.rank(query)[0]].tolist())

    def having(self, column: str, value: str) -> tuple[int, ...]:
        """Returns the rows whose ``category`` or ``query`` is ``value``, in catalogue order."""
        names: list[str] = self.notes[column]
        return tuple(np.flatnonzero(self[column] == names.index(value)).tolist()) if value in names else ()


def open_catalogue(
    data_dir: str | Path | None = None,
    *,
    data_variant: str | None = None,
    num_products: int | None = None,
    cache_dir: str | Path | None = None,
    lenient: bool = False,
    progress: bool = True,
) -> Catalogue:
    """Opens the prepared catalogue of a folder, building it first if it is missing, stale or damaged.

    Args:
        data_dir: folder of the official files; the embedded catalogue if None.
        data_variant: see `DataFiles.find`.
        num_products: look at the first so many raw entries only.
        cache_dir: where prepared catalogues live; see `alignopsd_trl.environments.cache.cache_folder`.
        lenient: repair or skip records that the reference would fail on.
        progress: show a bar while large files load.

    Raises:
        DataError: on data that cannot be used.
    """
    files = DataFiles.find(data_dir, data_variant)
    cache = Path(cache_dir) if cache_dir is not None else cache_folder("webshop")
    checksum = data_checksum(files, cache, num_products, lenient)

    def build(writer: store.Writer) -> None:
        cleaner = Cleaner(files, num_products, lenient, progress)
        _build(writer, cleaner)
        names = [files.items.name, files.attributes.name]
        writer.notes.update(checksum=checksum, repairs=dict(cleaner.repairs), files=names)

    return Catalogue(store.open_or_build(cache, f"{checksum}-{_rules_digest()}", build))


def data_checksum(files: DataFiles, cache: Path, num_products: int | None, lenient: bool) -> str:
    """Returns 16 hex digits over the data files and the options that select from them."""
    return _hash([num_products, lenient, *(_file_digest(path, cache) if path else None for path in files)])


def _hash(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _rules_digest() -> str:
    folder = Path(__file__).parent
    return _hash([regex.__version__, *(store.digest(folder / name) for name in _RULES)])


def _file_digest(path: Path, cache: Path) -> str:
    """Returns the sha256 of a file. For a large file it is cached by size and modification time."""
    status = path.stat()
    if status.st_size < LARGE_FILE:
        return store.digest(path)
    identity = json.dumps([str(path.resolve()), status.st_size, status.st_mtime_ns])
    memo = cache / "digests" / hashlib.sha256(identity.encode()).hexdigest()[:32]
    if memo.is_file() and len(known := memo.read_text()) == 64:
        return known
    found = store.digest(path)
    write_atomically(memo, found.encode())
    return found


def _spelled(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _read(texts: np.ndarray, starts: np.ndarray, row: int) -> dict[str, Any]:
    return json.loads(texts[starts[row] : starts[row + 1]].tobytes().decode("utf-8", "surrogatepass"))


def _build(writer: store.Writer, cleaner: Cleaner) -> None:
    postings, starts, card_starts, asins = PostingsBuilder(), [0], [0], []
    prices: list[tuple[float, float, int]] = []
    codes: dict[str, dict[str, int]] = {"category": {}, "query": {}}
    columns: dict[str, list[int]] = {"category": [], "query": []}
    with open(writer.folder / "records", "wb") as file, open(writer.folder / "cards", "wb") as card_file:
        for product in cleaner:
            starts.append(starts[-1] + file.write(_spelled(product)))
            card = {key: product[key] for key in ("asin", "name", "Price")}
            card_starts.append(card_starts[-1] + card_file.write(_spelled(card)))
            asins.append(product["asin"])
            postings.add(document_text(product))
            low, high = product["pricing"][0], product["pricing"][-1]
            prices.append((low, high, len(product["pricing"])))
            for name, column in columns.items():
                column.append(codes[name].setdefault(product[name], len(codes[name])))
    writer.declare("records", np.uint8, (starts[-1],))
    writer.declare("cards", np.uint8, (card_starts[-1],))
    writer.add("card_start", np.array(card_starts, np.int64))
    _write_columns(writer, starts, prices, columns)
    order = np.array(sorted(range(len(asins)), key=asins.__getitem__), np.int32)
    writer.add("asin_order", order)
    writer.add("asins", np.array(asins, "U10")[order])
    position = np.empty(len(asins), np.int64)
    position[order] = np.arange(len(asins))
    for name, array in postings.arrays(position).items():
        writer.add(name, array)
    writer.notes.update({name: list(values) for name, values in codes.items()})


def _write_columns(
    writer: store.Writer,
    starts: list[int],
    prices: list[tuple[float, float, int]],
    columns: Mapping[str, list[int]],
) -> None:
    writer.add("record_start", np.array(starts, np.int64))
    table = np.array(prices, np.float64).reshape(-1, 3)
    writer.add("price_low", table[:, 0])
    writer.add("price_high", table[:, 1])
    writer.add("price_count", table[:, 2].astype(np.int8))
    for name, column in columns.items():
        writer.add(name, np.array(column, np.int32))
