"""Fixtures folder and HTTP servers that misbehave on request."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

FIXTURES = Path(os.environ.get("ALIGNOPSD_SEARCHQA_FIXTURES", Path(__file__).parents[1] / "data" / "searchqa"))


def cases(pattern: str, key: str) -> list[Any]:
    """All cases of the files that match, as pytest parameters named after file and case."""
    found = []
    paths = sorted(FIXTURES.glob(pattern))
    if not paths:
        raise FileNotFoundError(f"no {pattern} in {FIXTURES} (ALIGNOPSD_SEARCHQA_FIXTURES)")
    for path in paths:
        for number, case in enumerate(json.loads(path.read_text(encoding="utf-8"))[key]):
            name = case.get("id", case.get("name", number))
            found.append(pytest.param(case, id=f"{path.stem}-{name}"))
    return found


class ScriptedServer(ThreadingHTTPServer):
    """Answers requests by the next behaviour of a list, the last one for ever. Keeps the decoded request bodies."""

    daemon_threads = True

    def __init__(self, *behaviours: Callable[[BaseHTTPRequestHandler, dict[str, Any]], None], port: int = 0):
        self.behaviours, self.bodies = list(behaviours), []
        super().__init__(("127.0.0.1", port), _Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/retrieve"

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gives up is part of these tests."""


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        behaviours = self.server.behaviours
        (behaviours.pop(0) if len(behaviours) > 1 else behaviours[0])(self, body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""
