"""A server of this machine for agents in other processes. A key opens its own episode alone."""

from __future__ import annotations

import os
import re
import secrets
import selectors
import socket
import threading
import time
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import cache, reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from weakref import WeakValueDictionary

from alignopsd_trl.environments.adapters.agents.api import HttpAnswer, HttpCall, exchange, refused
from alignopsd_trl.environments.adapters.agents.line import RequestLine
from alignopsd_trl.environments.adapters.agents.refusal import Refused

LARGEST = 1 << 24  # bytes of a body: some million tokens, and many may come at once
SILENCE = 60.0  # seconds between two parts of a body
SPARE = 256  # files and sockets that this process may open beside connections
STRANGERS_WAIT = 0.1  # seconds until a wrong key is told, so that none spins


class ApiServer(ThreadingHTTPServer):
    """Serves the API (`exchange`) under ``/KEY/v1``. The key may be the bearer's token, ``api-key`` or ``x-api-key``
    instead. No answer holds it."""

    request_queue_size = 1024
    daemon_threads = True

    def __init__(self, host: str):
        super().__init__((host, 0), _Handler)
        self._host = host
        self.lines: WeakValueDictionary[str, RequestLine] = WeakValueDictionary()
        threading.Thread(target=self.serve_forever, daemon=True, name="agents-server").start()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for a connection. Without room for files the run would end, and not one episode."""
        most = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else 1 << 20  # Windows has none
        return request.fileno() < most - SPARE

    def open(self, line: RequestLine) -> tuple[str, str]:
        """Returns address and key of an episode."""
        key = secrets.token_hex(16)
        self.lines[key] = line
        return f"http://{self._host}:{self.server_port}/{key}/v1", key


class _Caller:
    """Knows whether a client waits for its answer: it does until its connection closes without it."""

    def __init__(self, connection: socket.socket):
        self._connection, self.served = connection, False

    def waits(self) -> bool:
        return self.served or is_open(self._connection)


def is_open(connection: socket.socket) -> bool:
    """Whether the other side has not closed a connection."""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ)
            return not selector.select(0) or connection.recv(1, socket.MSG_PEEK) != b""
    except (OSError, ValueError):
        return False


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 3600  # of a connection that says nothing

    def handle(self) -> None:
        with suppress(OSError):  # a client that leaves says so by that alone
            super().handle()

    def _serve(self) -> None:
        lines: Any = getattr(self.server, "lines")  # noqa: B009
        keys = [one for one in self._keys() if one in lines]
        line = lines.get(keys[0]) if keys else None
        if line is None:
            time.sleep(STRANGERS_WAIT)
            self._refuse(Refused("no episode has this key", "invalid_api_key", 401))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        caller = _Caller(self.connection)
        try:
            path = reduce(lambda path, key: path.replace(key, "KEY"), keys, self.path)
            call = HttpCall(self.command, path, headers, self._body(headers))
            answer = exchange(line, call, caller.waits).result()
            self._send(answer, caller)
        except Refused as error:
            self._refuse(error)
        except CancelledError:
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = _serve  # noqa: N815 (http.server's names)

    def _keys(self) -> list[str]:
        """Returns where a key may be, first the beginning of the path."""
        given = (one for name in ("authorization", "api-key", "x-api-key") for one in self.headers.get_all(name, []))
        return [self.path.lstrip("/").split("/")[0], *(one.split()[-1] for one in given if one.strip())]

    def _body(self, headers: dict[str, str]) -> bytes:
        """Reads the body.

        Raises:
            Refused: if it is not as the headers say, or too long.
        """
        self.connection.settimeout(SILENCE)
        coding = headers.get("transfer-encoding", "identity").strip().lower()
        if coding not in ("identity", "chunked"):
            raise Refused(f"Transfer-Encoding is {coding!r:.80}; send the body whole or in chunks", "invalid_request")
        data = self._chunks() if coding == "chunked" else self._read(_length(headers.get("content-length", "0"), 10))
        self.connection.settimeout(self.timeout)
        return data

    def _chunks(self) -> bytes:
        data = b""
        while size := _length(self.rfile.readline(1024).partition(b";")[0].decode("latin-1"), 16):
            if len(data) + size > LARGEST:
                raise _too_large()
            data += self._read(size)
            if self._read(2) != b"\r\n":
                raise Refused("a chunk of the body is longer than it says", "invalid_request")
        while self.rfile.readline(1 << 16).strip():  # trailers
            pass
        return data

    def _read(self, size: int) -> bytes:
        try:
            data = self.rfile.read(size)
        except TimeoutError:
            raise Refused(f"the body stops for more than {SILENCE:.0f} s", "request_timeout", 408) from None
        if len(data) < size:
            raise Refused(f"the body ends after {len(data)} of {size} bytes", "invalid_request")
        return data

    def _refuse(self, error: Refused) -> None:
        """Sends an error and ends the connection: what comes on it after a body that was not read is no request."""
        self.close_connection = True
        self._send(refused(error, self.path))
        self.connection.shutdown(socket.SHUT_WR)
        self.connection.settimeout(1.0)
        for _ in range(1 << 12):  # an unread body would reset the connection, and the error with it
            if not self.connection.recv(1 << 16):
                break

    def _send(self, answer: HttpAnswer, caller: _Caller | None = None) -> None:
        if caller is not None and not caller.waits():
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("content-type", answer.kind)
        self.send_header("content-length", str(len(answer.body)))
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        if caller is not None:
            caller.served = True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Sends what http.server finds wrong with a request as the API's error, without its words, which hold the
        path."""
        self.close_connection = True
        self._send(refused(Refused(self.responses[code][0], "invalid_request", code)))

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: a request is an episode's, whose records hold it."""


def _length(text: str, base: int) -> int:
    """Returns a length as headers and chunks write it.

    Raises:
        Refused: for anything else, and beyond `LARGEST`.
    """
    text, digits = text.strip(), "0-9" if base == 10 else "0-9a-fA-F"
    if not re.fullmatch(f"[{digits}]{{1,16}}", text):
        raise Refused(f"the body's length is {text!r:.80}; send a number", "invalid_request")
    if (size := int(text, base)) > LARGEST:
        raise _too_large()
    return size


def _too_large() -> Refused:
    return Refused(f"the body has more than {LARGEST:,} bytes", "context_length_exceeded", 413)


@cache
def server(host: str) -> ApiServer:
    """Returns this process's server at an address."""
    return ApiServer(host)
