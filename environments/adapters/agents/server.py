"""A server of this machine for agents in other processes. A key opens its own episode alone."""

from __future__ import annotations

import secrets
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from weakref import WeakValueDictionary

from alignopsd_trl.environments.adapters.agents.answers import Answer, exchange, refused
from alignopsd_trl.environments.adapters.agents.line import Line
from alignopsd_trl.environments.adapters.agents.requests import Refused


class Server(ThreadingHTTPServer):
    """Answers ``POST /KEY/v1/chat/completions``; the key may be the bearer's token instead."""

    request_queue_size = 1024
    daemon_threads = True

    def __init__(self, host: str):
        super().__init__((host, 0), _Handler)
        self._host = host
        self.lines: WeakValueDictionary[str, Line] = WeakValueDictionary()
        threading.Thread(target=self.serve_forever, daemon=True, name="agents-server").start()

    def open(self, line: Line) -> tuple[str, str]:
        """Returns address and key of an episode."""
        key = secrets.token_hex(16)
        self.lines[key] = line
        return f"http://{self._host}:{self.server_port}/{key}/v1", key


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 3600  # of a connection that says nothing

    def do_POST(self) -> None:  # noqa: N802 (http.server's name)
        data = self.rfile.read(int(self.headers.get("content-length", 0)))
        status, kind, body = self._answer(data)
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, data: bytes) -> Answer:
        lines: Any = getattr(self.server, "lines")  # noqa: B009
        keys = (self.path.split("/")[1], self.headers.get("authorization", "").removeprefix("Bearer "))
        line = next((found for key in keys if (found := lines.get(key)) is not None), None)
        if line is None:
            return refused(Refused("no episode has this key", "invalid_api_key", 401))
        if not self.path.endswith("/v1/chat/completions"):
            return refused(Refused(f"{self.path.rpartition('/v1')[2]} is not served", "unknown_url", 404))
        return exchange(line, data, {name.lower(): value for name, value in self.headers.items()}).result()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: a request is an episode's, whose records hold it."""


@cache
def server(host: str) -> Server:
    """Returns this process's server at an address."""
    return Server(host)
