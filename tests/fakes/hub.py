"""A server on loopback that speaks as much of the Hub's API as a push needs, and keeps what was pushed.

Facts of the protocol: huggingface_hub's client. It can refuse tokens, or break off in the middle of an upload.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


def points_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets huggingface_hub push there; it reads its endpoint once, so the constants are what is replaced."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the client's tries


class Hub:
    """Use it as a context; ``files`` maps (kind, repository, path) to bytes, ``commits`` counts by repository."""

    def __init__(self, refuse: bool = False, break_off: bool = False):
        self.refuse, self.break_off = refuse, break_off
        self.files: dict[tuple[str, str, str], bytes] = {}
        self.commits: dict[str, int] = {}
        self.tokens: list[str | None] = []
        self._blobs: dict[str, bytes] = {}

    def __enter__(self) -> Hub:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                hub.tokens.append(self.headers.get("Authorization"))
                if hub.refuse:
                    return self._answer(401, {"error": "Invalid username or password."})
                self._answer(200, hub.answer(self.path, body))

            def do_PUT(self) -> None:
                if hub.break_off:
                    self.close_connection = True
                    return self.connection.shutdown(socket.SHUT_RDWR)
                length = int(self.headers.get("Content-Length", 0))
                hub._blobs[self.path.rpartition("/")[2]] = self.rfile.read(length)
                self._answer(200, {})

            def _answer(self, code: int, content: Any) -> None:
                text = json.dumps(content).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, body: bytes) -> Any:
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(part for part in (asked.get("organization") or "somebody", asked["name"]) if part)
            return {"url": f"{self.endpoint}/{name}", "name": name}
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if path.endswith("/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            return {"transfer": "basic", "objects": [self._place(one) for one in wanted]}
        _, _, kind, owner, name, verb, *_ = path.split("/")
        if verb == "preupload":
            return {"files": [self._mode(one) for one in json.loads(body)["files"]]}
        return self._commit(kind, f"{owner}/{name}", body)

    def _place(self, wanted: dict[str, Any]) -> dict[str, Any]:
        return {**wanted, "actions": {"upload": {"href": f"{self.endpoint}/blob/{wanted['oid']}"}}}

    def _mode(self, file: dict[str, Any]) -> dict[str, Any]:
        large = file["path"].endswith((".safetensors", ".parquet", ".bin"))
        return {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}

    def _commit(self, kind: str, repository: str, body: bytes) -> dict[str, Any]:
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                self.files[kind, repository, value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                self.files[kind, repository, value["path"]] = self._blobs[value["oid"]]
        self.commits[repository] = self.commits.get(repository, 0) + 1
        return {"success": True, "commitOid": "0" * 40, "commitUrl": f"{self.endpoint}/{repository}/commit/{'0' * 40}"}
