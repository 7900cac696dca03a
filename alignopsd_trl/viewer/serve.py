"""Serves the page of a run on loopback, step by step, for runs too big for one file."""

from __future__ import annotations

from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from alignopsd_trl.viewer.page import Page


def make_server(page: Page, port: int = 0) -> ThreadingHTTPServer:
    """Makes a server on 127.0.0.1 that isn't running yet; ``port=0`` takes a free port (``server.server_address``).

    Requests for another host name than this machine's are refused, so that no web page can read a run.
    """

    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:
            with suppress(ConnectionError):  # a reader who leaves
                super().handle()

        def do_GET(self) -> None:
            if self.headers.get("Host", "").rpartition(":")[0] not in ("127.0.0.1", "localhost"):
                return self.send_error(403)
            if self.path == "/":
                return self._send(page.head().encode(), "text/html; charset=utf-8")
            found = page.blob(self.path[1:])
            return self._send(found, "application/json", Encoding="gzip") if found else self.send_error(404)

        def _send(self, body: bytes, kind: str, **more: str) -> None:
            self.send_response(200)
            for name, value in {"Type": kind, "Length": str(len(body)), **more}.items():
                self.send_header(f"Content-{name}", value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Logs nothing."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
