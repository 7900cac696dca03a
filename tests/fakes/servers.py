"""A vLLM server as far as samplers know one: answers from a rule, with delays and faults, and can go away."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from fakes.toy import build_tokenizer, toy_response
from fakes.trainers import DEFAULTS, Watched, make_trainer

from alignopsd_trl.experimental.config import ContinuousConfig
from alignopsd_trl.experimental.server import PATIENCE, ServerBackend
from alignopsd_trl.experimental.trainer import ContinuousTrainer

PATIENCE["backoff"] = 0.01  # seconds


class Fault:
    """What a `ScriptedServer` does in place of an answer."""

    ERROR, HANG, GARBAGE, CLOSE, REFUSE, SHORT = "500", "hang", "garbage", "close", "400", "short"


def echo(body: dict[str, Any]) -> list[int]:
    """A response that depends on prompt and seed alone."""
    return [(sum(body["prompt"]) + body.get("seed", 0)) % 97, 5, 2]


def acting(body: dict[str, Any]) -> list[int]:
    """A response of the toy game that depends on prompt and seed alone."""
    return toy_response(_tokenizer(), [*body["prompt"], body["seed"]])


_tokenizer = cache(build_tokenizer)


class Served(Watched, ContinuousTrainer):
    """Believes that it samples with vLLM's server; ``pushes`` has the update before each push."""

    def make_backend(self) -> ServerBackend:
        pushes: list[int] = []
        self.pushes, self._last_loaded_step = pushes, -1
        self.use_vllm, self.vllm_mode, self.vllm_importance_sampling_correction = True, "server", False

        def push() -> int:
            pushes.append(self.state.global_step)
            self._last_loaded_step = self.state.global_step
            return self.state.global_step

        def asks(temperature: float, max_tokens: int) -> dict[str, Any]:
            return {"temperature": temperature, "max_tokens": max_tokens, "logprobs": 0}

        return ServerBackend(self, self._config, self.processes, push, asks)


def served_config(folder: Path, server: ScriptedServer, **options: Any) -> ContinuousConfig:
    """A configuration for `Served`: vLLM is switched off again, since TRL would join its server."""
    settings = {"vllm_mode": "server", "vllm_server_timeout": 30.0}
    settings |= {"vllm_server_base_url": server.address}
    config = ContinuousConfig(str(folder), **DEFAULTS | settings | options)
    config.use_vllm = False
    return config


def make_served(folder: Path, server: ScriptedServer, **options: Any) -> Any:
    """A trainer of the toy game on a server, with the arguments of `make_trainer`."""
    make = partial(served_config, server=server)
    return make_trainer(folder, script=False, kind=Served, config=make, **options)


def same(one: Any, *parts: Any) -> bool:
    """Whether a trainer had the rows that others had one after another."""
    rows = [row for part in parts for row in part.seen_rows]
    pairs = [(left[name], right[name]) for left, right in zip(one.seen_rows, rows, strict=True) for name in left]
    return all(left.shape == right.shape and torch.allclose(left, right, 0, 0, equal_nan=True) for left, right in pairs)


class ScriptedServer:
    """Serves on loopback.

    Args:
        answer: response ids of a request's body.
        delay: seconds that a request takes, of its body.
        fault: of a request's body and how often that body was met before, one of `Fault` or `None`.
        born: when its process began, as ``/metrics`` says it.

    Attributes:
        bodies: of all requests, in the order in which they came.
        most: requests that it had at once.
        orders: to pause and to go on, by their path.
        lifted: set to end all hanging requests.
    """

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], list[int]] = echo,
        delay: Callable[[dict[str, Any]], float] = lambda body: 0.0,
        fault: Callable[[dict[str, Any], int], str | None] = lambda body, before: None,
        born: float = 1000.0,
    ):
        self.answer, self.delay, self.fault, self.born = answer, delay, fault, born
        self.bodies: list[dict[str, Any]] = []
        self.seen: Counter[str] = Counter()
        self.orders: list[str] = []
        self.most = self._now = 0
        self._lock, self.lifted, self.goes_on = threading.Lock(), threading.Event(), threading.Event()
        self.goes_on.set()
        self._server: Any = None
        self._port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listens, at the port that it had."""
        self._server = _Listener(("127.0.0.1", self._port), _handler(self))
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> bool:
        """Goes away, if it is there: open connections are cut and new ones are refused. Whether it was there."""
        with self._lock:
            server, self._server = self._server, None
        if server is None:
            return False
        server.shutdown()
        server.server_close()
        server.cut()
        return True

    def away(self, seconds: float, born: float | None = None) -> None:
        """Goes away for a while, if it is there; another ``born`` is another process."""

        def back() -> None:
            time.sleep(seconds)
            self.born = self.born if born is None else born
            self.start()

        if self.stop():
            threading.Thread(target=back, daemon=True).start()

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.lifted.set()
        self.stop()

    def meet(self, body: dict[str, Any]) -> str | None:
        """Notes a request and says which fault it meets."""
        key = json.dumps([body["prompt"], body.get("seed")])
        with self._lock:
            self.bodies.append(body)
            before, self.seen[key] = self.seen[key], self.seen[key] + 1
            self._now += 1
            self.most = max(self.most, self._now)
        return self.fault(body, before)

    def leave(self) -> None:
        with self._lock:
            self._now -= 1


class _Listener(ThreadingHTTPServer):
    daemon_threads, allow_reuse_address, request_queue_size = True, True, 512

    def __init__(self, *rest: Any):
        self._open: set[Any] = set()
        super().__init__(*rest)

    def process_request(self, request: Any, address: Any) -> None:
        self._open.add(request)
        super().process_request(request, address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, address: Any) -> None:
        """Clients that have gone are nothing to show."""

    def cut(self) -> None:
        for request in list(self._open):
            self.shutdown_request(request)


def _handler(server: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

        def log_message(self, *rest: Any) -> None:
            """Nothing is written."""

        def reply(self, text: str, status: int = 200) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            pages = {
                "/health": "",
                "/v1/models": json.dumps({"data": [{"id": "scripted"}]}),
                "/metrics": f"# HELP\nprocess_start_time_seconds {server.born}\n",
            }
            self.reply(pages.get(self.path, ""), 200 if self.path in pages else 404)

        def do_POST(self) -> None:
            if self.path in ("/pause?mode=keep", "/resume"):
                server.orders.append(self.path)
                (server.goes_on.set if self.path == "/resume" else server.goes_on.clear)()
                self.reply("")
                return
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fault = server.meet(body)
            try:
                time.sleep(server.delay(body))
                server.goes_on.wait()
                self.act(body, fault)
            finally:
                server.leave()

        def act(self, body: dict[str, Any], fault: str | None) -> None:
            if fault == Fault.HANG:
                server.lifted.wait()
            if fault in (Fault.CLOSE, Fault.HANG):
                self.close_connection = True
            elif fault in (Fault.ERROR, Fault.REFUSE):
                self.reply(f"this is a {fault}", int(fault))
            elif fault == Fault.GARBAGE:
                self.reply("<html>not JSON")
            else:
                ids = server.answer(body)
                log_probs = [-0.5] * (len(ids) - (fault == Fault.SHORT))
                self.reply(json.dumps({"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": log_probs}}]}))

    return Handler
