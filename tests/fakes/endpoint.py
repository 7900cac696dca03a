"""An OpenAI-compatible endpoint on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def answering(answer: Callable[[str], Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Answers each question by a function: a text is a completion's, bytes are the whole reply, a number is a status,
    ``...`` is no reply at all. Yields the address and the requests so far."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(request := json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            said = answer(request["messages"][-1]["content"])
            if said is ...:
                return
            self.send_response(said if isinstance(said, int) else 200)
            self.end_headers()
            reply = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
            self.wfile.write(said if isinstance(said, bytes) else reply)

        def log_message(self, *given: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", asked
    server.shutdown()
    server.server_close()
