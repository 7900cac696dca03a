"""Where the recorded behaviour is that the WebShop tests compare with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

COPIES = Path(__file__).resolve().parents[1] / "data" / "webshop"
FIXTURES = Path(os.environ.get("ALIGNOPSD_WEBSHOP_FIXTURES") or COPIES)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
