"""Finds, streams, checks and cleans the official data files (WebShop facts 1.1 to 1.4).

Data flow: ``items_shuffle*.json`` (a list, read in pieces) with ``items_ins_v2*.json`` and ``items_human_ins.json``
(two objects by asin) -> one cleaned `dict` a product, in file order. Every refusal names the file, the record, the
field and what to do; ``lenient=True`` repairs or skips the record instead, and counts it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from alignopsd_trl.environments.base import DataError
from alignopsd_trl.environments.webshop.engine.json_stream import JsonError, stream_list

DEFAULT_PRICE = 100.0
MAX_ASIN = 10
EMBEDDED = Path(__file__).parents[1] / "catalogue"


@dataclass(frozen=True)
class DataFiles:
    """The three files of a catalogue. ``human`` may be missing if no human goals are used."""

    items: Path
    attributes: Path
    human: Path | None

    def __iter__(self) -> Iterator[Path | None]:
        yield from (self.items, self.attributes, self.human)

    @classmethod
    def find(cls, folder: str | Path | None = None, variant: str | None = None) -> DataFiles:
        """Finds the files of a folder; without a folder, the embedded catalogue.

        Args:
            folder: holds ``items_shuffle*.json``, ``items_ins_v2*.json`` and ``items_human_ins*.json``.
            variant: what stands for the star, e.g. ``"_1000"`` or ``""``. Without it the plain name is taken, else the
                only one there is.

        Raises:
            DataError: if a file is missing or several would do.
        """
        folder = EMBEDDED if folder is None else Path(folder)
        if not folder.is_dir():
            raise DataError(f"data_dir {str(folder)!r} is not a folder; name the folder with items_shuffle*.json")
        items = _pick(folder, "items_shuffle", variant)
        attributes = _pick(folder, "items_ins_v2", variant)
        human = folder / "items_human_ins.json"
        return cls(items, attributes, human if human.is_file() else None)


def _pick(folder: Path, stem: str, variant: str | None) -> Path:
    found = sorted(folder.glob(f"{stem}*.json"))
    if variant is not None:
        found = [path for path in found if path.name == f"{stem}{variant}.json"]
    exact = folder / f"{stem}.json"
    if exact in found:
        return exact
    if len(found) == 1:
        return found[0]
    names = [path.name for path in found]
    problem = f"none called {stem}{'*' if variant is None else variant}.json" if not found else f"several: {names}"
    raise DataError(f"folder {str(folder)!r} has {problem}; add the file, or say which with data_variant='_1000' or ''")


@dataclass
class Cleaner:
    """Turns raw entries into cleaned products, and counts its repairs in lenient mode."""

    files: DataFiles
    num_products: int | None = None
    lenient: bool = False
    progress: bool = True
    repairs: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields cleaned products in file order, the first occurrence of an asin only.

        Keys: those of the reference (``asin``, ``name``, ``Description``, ``BulletPoints``, ``pricing``, ``Price``,
        ``options``, ``Attributes``, ``query``, ``category``, ``product_category``, ``MainImage``,
        ``instruction_text``, ``instruction_attributes``), ``human`` (list of records) and ``listed`` (bool: the asin
        occurs in the attribute file).

        Raises:
            DataError: see the module.
        """
        attributes = load_object(self.files.attributes)
        human = load_object(self.files.human) if self.files.human else {}
        seen: set[str] = set()
        for number, entry in enumerate(self._entries()):
            if self.num_products is not None and number >= self.num_products:
                return
            try:
                asin = self._identity(number, entry)
                if asin == "nan" or len(asin) > MAX_ASIN or asin in seen:
                    continue
                seen.add(asin)
                product = self._product(number, asin, entry)
                product.update(self._attributes(asin, attributes))
                product["human"] = self._human(asin, human.get(asin))
            except DataError:
                if not self.lenient:
                    raise
                self.repairs["record skipped"] += 1
                continue
            yield product

    def _entries(self) -> Iterator[Any]:
        try:
            yield from stream_list(self.files.items, self.progress)
        except (JsonError, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.files.items}: {error}; fetch the official file again") from error

    def _fail(self, file: Path, record: str, name: str, problem: str, remedy: str) -> DataError:
        return DataError(f"{file.name}: {record}, field {name!r}: {problem}; {remedy}, or load with lenient=True")

    def _identity(self, number: int, entry: Any) -> str:
        record = f"record {number}"
        if not isinstance(entry, dict):
            problem = f"is {_kind(entry)}, not an object"
            raise self._fail(self.files.items, record, "(whole record)", problem, "make it a product object")
        asin = entry.get("asin")
        if not isinstance(asin, str):
            problem = "is missing" if "asin" not in entry else f"is {_kind(asin)}, not a string"
            raise self._fail(self.files.items, record, "asin", problem, "give the product an identifier")
        if asin != "nan" and len(asin) <= MAX_ASIN and (asin.lower().upper() != asin or not asin):
            problem = f"{asin!r} is not upper case"
            raise self._fail(self.files.items, record, "asin", problem, "write it in capitals (links are looked up so)")
        return asin

    def _product(self, number: int, asin: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        record = f"record {number} ({asin})"
        text = {key: self._text(record, entry, key) for key in ("name", "full_description", "category", "query")}
        images = self._required(record, entry, "images")
        if not isinstance(images, list) or not images:
            raise self._fail(self.files.items, record, "images", "is not a non-empty list", "list at least one image")
        prices, tag = self._prices(record, entry.get("pricing"))
        return {
            "asin": asin,
            "name": text["name"],
            "Description": text["full_description"],
            "BulletPoints": self._bullets(record, self._required(record, entry, "small_description")),
            "pricing": prices,
            "Price": tag,
            "options": self._options(record, self._required(record, entry, "customization_options")),
            "query": text["query"].lower().strip(),
            "category": text["category"],
            "product_category": self._text(record, entry, "product_category"),
            "MainImage": images[0],
        }

    def _required(self, record: str, entry: Mapping[str, Any], key: str) -> Any:
        if key not in entry:
            raise self._fail(self.files.items, record, key, "is missing", "add it to the record")
        return entry[key]

    def _text(self, record: str, entry: Mapping[str, Any], key: str) -> str:
        value = self._required(record, entry, key)
        if isinstance(value, str):
            return value
        if self.lenient:
            self.repairs[f"{key} emptied"] += 1
            return ""
        raise self._fail(self.files.items, record, key, f"is {_kind(value)}, not a string", "make it a string")

    def _bullets(self, record: str, value: Any) -> list[str]:
        bullets = value if isinstance(value, list) else [value]
        good = [bullet for bullet in bullets if isinstance(bullet, str)]
        if len(good) < len(bullets):
            if not self.lenient:
                problem, remedy = "holds something that is not a string", "make it a list of strings"
                raise self._fail(self.files.items, record, "small_description", problem, remedy)
            self.repairs["bullets dropped"] += len(bullets) - len(good)
        return good

    def _prices(self, record: str, value: Any) -> tuple[list[float], str]:
        if value is None or value == "":
            return [DEFAULT_PRICE], f"${DEFAULT_PRICE}"
        try:
            if not isinstance(value, str) or "$" not in value:
                raise ValueError(f"{value!r} has no '$'")
            prices = [_price(part) for part in value.split("$")[1:]][:2]
        except ValueError as error:
            if not self.lenient:
                remedy = "write it like '$12.50' or '$10.00 - $12.50', or leave it empty"
                raise self._fail(self.files.items, record, "pricing", str(error), remedy) from error
            self.repairs["price replaced"] += 1
            return [DEFAULT_PRICE], f"${DEFAULT_PRICE}"
        return prices, " to ".join(f"${price}" for price in prices)

    def _options(self, record: str, value: Any) -> dict[str, list[str]]:
        if not value:
            return {}
        options: dict[str, list[str]] = {}
        try:
            for name, contents in value.items():
                if contents is not None:
                    values = (content["value"].strip() for content in contents)
                    options[name.lower()] = [value.replace("/", " | ").lower() for value in values]
        except (AttributeError, KeyError, TypeError) as error:
            problem = f"is not an object of lists of {{'value': text}} ({type(error).__name__}: {error})"
            remedy = "write {name: [{'value': text}, ...]}"
            raise self._fail(self.files.items, record, "customization_options", problem, remedy) from error
        return options

    def _attributes(self, asin: str, table: Mapping[str, Any]) -> dict[str, Any]:
        entry = table.get(asin, {})
        if not isinstance(entry, dict):
            problem = f"is {_kind(entry)}, not an object"
            raise self._fail(self.files.attributes, asin, "(whole record)", problem, "make it an object")
        for key, kind in (("attributes", list), ("instruction", str), ("instruction_attributes", list)):
            if entry.get(key) is not None and not isinstance(entry[key], kind):
                problem = f"is {_kind(entry[key])}, not {_kind(kind())}"
                raise self._fail(self.files.attributes, asin, key, problem, "correct its type")
        return {
            "Attributes": entry["attributes"] if entry.get("attributes") is not None else ["DUMMY_ATTR"],
            "instruction_text": entry.get("instruction"),
            "instruction_attributes": entry.get("instruction_attributes"),
            "listed": asin in table,
        }

    def _human(self, asin: str, records: Any) -> list[dict[str, Any]]:
        wanted = (("instruction", str), ("instruction_attributes", list), ("instruction_options", list))
        kept = []
        for number, record in enumerate(records or ()):
            for key, kind in wanted:
                if not isinstance(record, dict) or not isinstance(record.get(key), kind):
                    where, problem = f"{asin}, record {number}", f"is missing or not {_kind(kind())}"
                    raise self._fail(self.files.human, where, key, problem, "complete the record")
            kept.append({key: record[key] for key, _ in wanted})
        return kept


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", type(None): "null", bool: "a truth value"}
    return names.get(type(value), "a number")


def _price(part: str) -> float:
    digits = re.sub(r"[^\d.]", "", part)
    try:
        return float(Decimal(digits))
    except InvalidOperation as error:
        raise ValueError(f"the part {part!r} is no decimal number") from error


def load_object(path: Path) -> dict[str, Any]:
    """Loads a JSON file whose top level is an object.

    Raises:
        DataError: if it is missing, truncated or of another type.
    """
    try:
        with open(path, encoding="utf-8") as file:
            loaded = json.load(file)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error}); fetch the file again") from error
    if not isinstance(loaded, dict):
        raise DataError(f"{path}: the top level is {_kind(loaded)}, not an object by asin; use the official format")
    return loaded
