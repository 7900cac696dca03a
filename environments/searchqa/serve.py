"""A retrieval service for Search-QA that speaks both dialects on one route.

Usage:

    python -m alignopsd_trl.environments.searchqa.serve --corpus corpus.jsonl --backend bm25
    python -m alignopsd_trl.environments.searchqa.serve --corpus wiki-18.jsonl --backend dense --index e5_Flat.index \\
        --encoder intfloat/e5-base-v2 --device cuda

``POST /retrieve`` takes ``{"queries": [...]}`` or ``{"query": "..."}``, with ``topk`` (default: ``--topk``) and
``return_scores``; ``GET /health`` describes the service. It listens on the loopback address by default.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from alignopsd_trl.environments.searchqa.engine.corpus import CorpusError
from alignopsd_trl.environments.searchqa.engine.retrieval import Passage, Retriever, SearchFailure

log = logging.getLogger(__name__)

DOCUMENTS = ("plain", "stored_raw")
LARGEST_BODY = 1 << 20  # bytes
LONGEST_QUERY = 1 << 16  # characters
_SHOWN = 1000  # characters of a refused input that the reply quotes


class BadRequest(ValueError):
    """Raised for a request that the service refuses, with the list of reasons for the reply."""

    def __init__(self, kind: str, field: str | None, message: str, given: Any):
        super().__init__(message)
        place = ["body", field] if field else ["body"]
        self.detail = [{"type": kind, "loc": place, "msg": message, "input": _quoted(given)}]


def _quoted(given: Any) -> Any:
    """Returns a refused input, or the beginning of its JSON if that is long."""
    text = json.dumps(given)
    return given if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class Service:
    """Answers requests, without HTTP.

    Args:
        retriever: the backend.
        topk: passages a query where the request names none.
        dialect: ``both``, or one of ``list`` and ``single`` to refuse the other.
        documents: ``plain`` (``id`` and ``contents``) or ``stored_raw`` (``title``, ``text``, ``contents``), the two
            shapes of the reference service.
    """

    def __init__(self, retriever: Retriever, topk: int = 3, dialect: str = "both", documents: str = "plain"):
        self.retriever, self.topk, self.dialect, self.documents = retriever, topk, dialect, documents

    def retrieve(self, body: Any) -> dict[str, Any]:
        """Returns the reply to a decoded request.

        Raises:
            BadRequest: if a field is missing or has the wrong type.
        """
        queries, topk, scores = self._read(body)
        found = []
        for passages in self.retriever.search(queries, topk):
            if isinstance(passages, SearchFailure):
                raise RuntimeError(passages.message)
            found.append([self._hit(passage, scores) for passage in passages])
        return {"result": found}

    def health(self) -> dict[str, Any]:
        return {"status": "ok", "dialect": self.dialect, "topk": self.topk, **self.retriever.description}

    def _read(self, body: Any) -> tuple[list[str], int, bool]:
        if not isinstance(body, dict):
            raise BadRequest("model_attributes_type", None, "Input should be a valid dictionary", body)
        field = "query" if self.dialect == "single" or (self.dialect == "both" and "queries" not in body) else "queries"
        if field not in body:
            missing = "queries" if self.dialect == "both" else field
            raise BadRequest("missing", missing, "Field required", body)
        queries = [body["query"]] if field == "query" else body["queries"]
        if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
            kind = "string" if field == "query" else "list of strings"
            raise BadRequest("type", field, f"Input should be a valid {kind}", body[field])
        if max(map(len, queries), default=0) > LONGEST_QUERY:
            message = f"A query should have at most {LONGEST_QUERY} characters"
            raise BadRequest("string_too_long", field, message, body[field])
        return queries, _topk(body, self.topk), _flag(body, "return_scores")

    def _hit(self, passage: Passage, scores: bool) -> dict[str, Any]:
        if self.documents == "stored_raw":
            document = {"title": passage.title.strip('"'), "text": passage.text, "contents": passage.contents}
        else:
            document = {"id": passage.id, "contents": passage.contents}
        return {"document": document, "score": passage.score} if scores else document


def _topk(body: Mapping[str, Any], default: int) -> int:
    topk = body.get("topk")
    if topk is not None and (isinstance(topk, bool) or not isinstance(topk, int) or topk < 0):
        raise BadRequest("int_type", "topk", "Input should be a valid integer that is not negative", topk)
    return topk or default


def _flag(body: Mapping[str, Any], field: str) -> bool:
    value = body.get(field, False)
    if not isinstance(value, bool):
        raise BadRequest("bool_type", field, "Input should be a valid boolean", value)
    return value


class RetrievalServer(ThreadingHTTPServer):
    """Serves with one thread per connection; ``port`` 0 takes a free one."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, service: Service, host: str = "127.0.0.1", port: int = 8000):
        super().__init__((host, port), partial(_Handler, service))

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]}:{self.server_address[1]}/retrieve"

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, ConnectionError | TimeoutError):
            log.debug("client %s went away: %s", client_address, error)
        else:
            log.error("request of %s failed", client_address, exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16  # head and body leave in one piece
    timeout = 600  # seconds that an idle connection is kept

    def __init__(self, service: Service, *connection: Any):
        self._service = service
        super().__init__(*connection)

    def do_POST(self) -> None:
        content = self._body()
        if content is None:
            return
        if self.path != "/retrieve":
            return self._refuse()
        try:
            self._reply(200, self._service.retrieve(_decode(content)))
        except BadRequest as refusal:
            self._reply(422, {"detail": refusal.detail})
        except Exception as error:  # the backend failed: the client may try again, the service goes on
            log.exception("search failed")
            self._reply(500, {"detail": f"{type(error).__name__}: {error}"})

    def do_GET(self) -> None:
        if "Content-Length" in self.headers and self._body() is None:
            return
        if self.path == "/health" and self.command == "GET":
            self._reply(200, self._service.health())
        else:
            self._refuse()

    do_PUT = do_DELETE = do_PATCH = do_HEAD = do_GET

    def _refuse(self) -> None:
        known = self.path in ("/retrieve", "/health")
        self._reply(405 if known else 404, {"detail": "Method Not Allowed" if known else "Not Found"})

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            return self.send_error(411, "a Content-Length is required")
        if len(length) > len(str(LARGEST_BODY)) or int(length) > LARGEST_BODY:
            return self.send_error(413, f"a request has at most {LARGEST_BODY} bytes")
        return self.rfile.read(int(length))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Replies in JSON and ends the connection. The base class calls it for unreadable requests too."""
        self.close_connection = True
        self._reply(code, {"detail": message or self.responses[code][0]})

    def _reply(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


def _decode(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadRequest("json_invalid", None, f"JSON decode error: {error}", {}) from error


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python -m alignopsd_trl.environments.searchqa.serve", description="Retrieval service for Search-QA."
    )
    options.add_argument("--corpus", type=Path, required=True, help=".jsonl file, or folder with corpus.jsonl")
    options.add_argument("--backend", choices=("bm25", "dense"), default="bm25")
    options.add_argument(
        "--index", type=Path, help="BM25: index folder; dense: FAISS file (default: beside the corpus)"
    )
    options.add_argument("--encoder", default="intfloat/e5-base-v2", help="dense: sentence-transformers id or path")
    options.add_argument("--device", default="cpu", help="dense: cpu or cuda")
    options.add_argument("--topk", type=int, default=3, help="passages where a request names no number")
    options.add_argument("--dialect", choices=("both", "list", "single"), default="both")
    options.add_argument("--documents", choices=DOCUMENTS, default="plain", help="shape of a document in a reply")
    options.add_argument("--host", default="127.0.0.1", help="address to listen on; the default is this machine only")
    options.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    from alignopsd_trl.environments.searchqa.engine.backends import open_local

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    given = parser().parse_args(arguments)
    try:
        retriever = open_local(
            given.backend, given.corpus, given.index, encoder=given.encoder, device=given.device, progress=True
        )
        server = RetrievalServer(Service(retriever, given.topk, given.dialect, given.documents), given.host, given.port)
    except (CorpusError, ImportError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"serving {retriever.description} at {server.url}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("stopped", flush=True)
    finally:
        server.server_close()
        retriever.close()


if __name__ == "__main__":
    main()
