"""Shipped weights and data are those that a page tells the origin of."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "research" / "shipped_policies.md"
SHIPPED = {
    "alignopsd_trl/data": ("*/model.safetensors", "*/tokenizer.json", "*/recipe.json"),
    "environments": ("searchqa/data/*.jsonl", "searchqa/data/hops/*.jsonl", "webshop/catalogue/*.json"),
}


def test_every_shipped_file_has_the_checksum_of_the_page() -> None:
    lines = re.findall(r"^([0-9a-f]{64})  (\S+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    files = {file for folder, every in SHIPPED.items() for one in every for file in (ROOT / folder).rglob(one)}
    found = {file.relative_to(ROOT).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    assert len(found) > 20 and found == {name: checksum for checksum, name in lines}
