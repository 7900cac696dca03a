"""An OpenAI-compatible endpoint on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def answering(answer: Callable[[str], Any]) -> Generator[tuple[str, list[dict[str, Any]]]]:
    """Answers each question by a function: a text is a completion's, a mapping its message, bytes are the whole reply,
    a number is a status (in a pair, with the reply), ``...`` is no reply at all. Yields the address and the requests so
    far."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(request := json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            said = answer(request["messages"][-1]["content"])
            if said is ...:
                return
            status, said = said if isinstance(said, tuple) else (said if isinstance(said, int) else 200, said)
            self.send_response(status)
            self.end_headers()
            if not isinstance(said, bytes):
                message = said if isinstance(said, dict) else {"content": said}
                said = json.dumps({"choices": [{"message": message}]}).encode()
            self.wfile.write(said)

        def log_message(self, *given: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", asked
    server.shutdown()
    server.server_close()
