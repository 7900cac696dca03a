"""Recorded exchanges of the reference service against our server, our client and our rendering."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import urllib3
from searchqa_helpers import cases

from alignopsd_trl.environments.searchqa import BM25Retriever, HttpRetriever, SearchFailure
from alignopsd_trl.environments.searchqa.engine.client import read_reply
from alignopsd_trl.environments.searchqa.engine.observations import show
from alignopsd_trl.environments.searchqa.serve import RetrievalServer, Service

Start = Callable[..., RetrievalServer]
PAIRS = cases("retrieval_protocol*.json", "pairs")


def without_scores(reply: Any) -> Any:
    """Scores depend on the engine; they only have to be numbers in falling order."""
    if not isinstance(reply, dict) or "result" not in reply:
        return reply
    for hits in reply["result"]:
        scores = [hit["score"] for hit in hits if "score" in hit]
        assert scores == sorted(scores, reverse=True)
    return [[hit.get("document", hit) for hit in hits] for hits in reply["result"]]


@pytest.fixture(scope="module")
def start(bm25: BM25Retriever) -> Iterator[Start]:
    running: dict[tuple[str, str], RetrievalServer] = {}

    def server(dialect: str = "both", documents: str = "plain") -> RetrievalServer:
        if (dialect, documents) not in running:
            running[dialect, documents] = RetrievalServer(Service(bm25, dialect=dialect, documents=documents), port=0)
            loop = running[dialect, documents].serve_forever
            threading.Thread(target=loop, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return running[dialect, documents]

    yield server
    for each in running.values():
        each.shutdown()
        each.server_close()


def ask(server: RetrievalServer, body: Any, method: str = "POST", path: str = "/retrieve") -> tuple[int, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    url = server.url.removesuffix("/retrieve") + path
    reply = urllib3.request(method, url, body=content, headers={"Content-Type": "application/json"}, retries=False)
    assert reply.headers["Content-Type"] == "application/json"
    return reply.status, json.loads(reply.data) if reply.data else None


@pytest.mark.parametrize("pair", PAIRS)
def test_server_answers_as_recorded(pair: dict[str, Any], start: Start) -> None:
    request, expected = pair["request"], pair["response"]
    strict = expected["status"] == 422  # recorded at servers that speak one dialect only
    dialect = ("list" if "query" in request["json"] else "single") if strict else "both"
    status, found = ask(start(dialect, pair.get("index", "plain")), request["json"], request["method"], request["path"])
    if "queries" in request["json"] and not request["json"].get("return_scores"):
        assert status == 200  # the reference list server breaks here: status 500, or a wrong structure
        return
    assert status == expected["status"]
    assert without_scores(found) == without_scores(expected["json"])


def readable(pair: dict[str, Any]) -> bool:
    return pair["response"]["status"] == 200 and pair["request"]["json"].get("return_scores") is True


@pytest.mark.parametrize("pair", [p for p in PAIRS if readable(p.values[0])])
def test_client_reads_and_shows_as_recorded(pair: dict[str, Any], serve: Callable[..., Any]) -> None:
    asked, expected = pair["request"]["json"], pair["response"]["json"]

    def replay(handler: Any, body: dict[str, Any]) -> None:
        content = json.dumps(expected).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    server = serve(replay)
    dialect = "list" if "queries" in asked else "single"
    queries = asked["queries"] if dialect == "list" else [asked["query"]]
    outcomes = HttpRetriever(server.url, dialect).search(queries, asked["topk"])
    assert server.bodies == [asked]
    assert [[p.contents for p in found] for found in outcomes] == [
        [hit["document"]["contents"] for hit in hits] for hits in expected["result"]
    ]
    texts = pair.get("client_text", {})
    if "search_r1" in texts:
        assert [show(found, "plain") for found in outcomes] == texts["search_r1"]
    if "agent_loop" in texts:
        assert show(outcomes[0], "json") == texts["agent_loop"]


@pytest.mark.parametrize("pair", [p for p in PAIRS if p.values[0]["response"]["status"] == 422])
def test_the_wrong_dialect_is_refused_without_a_retry(pair: dict[str, Any], start: Start) -> None:
    dialect = "single" if "query" in pair["request"]["json"] else "list"
    client = HttpRetriever(start("list" if dialect == "single" else "single").url, dialect)
    with pytest.raises(RuntimeError, match="use dialect="):
        client.check()
    assert client.metrics()["refused"] == 1 and client.metrics()["retries"] == 0


@pytest.mark.parametrize("dialect", ["list", "single"])
def test_client_and_server_agree_with_the_backend(dialect: str, start: Start, bm25: BM25Retriever) -> None:
    queries = ["capital of Marevia", "Lumloom", "zzzz qqqq", "", "Lumloom", "où coule la rivière Æ ☕ \ud800?"]
    client = HttpRetriever(start("both").url, dialect)
    client.check()
    assert client.search(queries, 3) == bm25.search(queries, 3)
    assert client.search([], 3) == []
    assert client.metrics()["requests"] == (2 if dialect == "list" else 7)


def test_scores_can_be_left_out(start: Start) -> None:
    _, wrapped = ask(start(), {"queries": ["Lumloom", "Feploom", "Ouswend"], "topk": 2, "return_scores": True})
    for body in ({"return_scores": False}, {}):
        status, bare = ask(start(), {"queries": ["Lumloom", "Feploom", "Ouswend"], "topk": 2, **body})
        assert status == 200
        assert bare["result"] == without_scores(wrapped)


@pytest.mark.parametrize(("topk", "expected"), [(None, 3), (0, 3), (1, 1), (5, 5), (100_000, None)])
def test_topk(topk: int | None, expected: int | None, start: Start) -> None:
    status, found = ask(start(), {"query": "town on the banks of the river", "topk": topk, "return_scores": True})
    assert status == 200 and len(found["result"]) == 1
    assert len(found["result"][0]) == expected if expected else len(found["result"][0]) > 40


def test_no_queries_and_extra_fields(start: Start) -> None:
    assert ask(start(), {"queries": [], "return_scores": True}) == (200, {"result": []})
    assert ask(start(), {"queries": ["zzzz"], "colour": "red"}) == (200, {"result": [[]]})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "queries"),
        ({"queries": "one"}, "queries"),
        ({"queries": [1]}, "queries"),
        ({"query": ["one"]}, "query"),
        ({"query": None}, "query"),
        ({"query": "a", "topk": "3"}, "topk"),
        ({"query": "a", "topk": -1}, "topk"),
        ({"query": "a", "topk": True}, "topk"),
        ({"query": "a", "return_scores": "yes"}, "return_scores"),
        ([], None),
        (b"{", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
    ],
)
def test_bad_requests(body: Any, field: str | None, start: Start) -> None:
    status, found = ask(start(), body)
    assert status == 422
    assert found["detail"][0]["loc"] == (["body", field] if field else ["body"])


def test_routes(start: Start, bm25: BM25Retriever) -> None:
    status, found = ask(start(), b"", "GET", "/health")
    assert status == 200 and found["status"] == "ok" and found["passages"] == len(bm25.corpus)
    assert ask(start(), b"", "GET")[0] == 405
    assert ask(start(), {}, "PUT")[0] == 405
    assert ask(start(), {}, "POST", "/health")[0] == 405
    assert ask(start(), {}, "POST", "/elsewhere")[0] == 404
    assert start().server_address[0] == "127.0.0.1"


def test_a_failing_backend_is_a_500_and_the_server_lives(bm25: BM25Retriever) -> None:
    class Broken(BM25Retriever):
        def __init__(self) -> None:
            self.description = {}

        def search(self, queries: Any, k: int) -> Any:
            raise OSError("disk gone")

    server = RetrievalServer(Service(Broken()), port=0)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        assert [ask(server, {"query": "a"})[0] for _ in range(2)] == [500, 500]
        client = HttpRetriever(server.url, attempts=2, pause=0.01)
        assert isinstance(client.search(["a"], 3)[0], SearchFailure)
    finally:
        server.shutdown()
        server.server_close()


def test_a_score_is_optional_for_the_client() -> None:
    reply = json.dumps({"result": [[{"document": {"contents": '"T"\nx'}}]]}).encode()
    assert read_reply(reply, 1, 3)[0][0].score is None


def raw(server: RetrievalServer, request: bytes) -> tuple[bytes, Any]:
    """Status line and decoded body of the reply to bytes that no client library would send."""
    with socket.create_connection(server.server_address[:2], timeout=30) as connection:
        connection.sendall(request)
        pieces = []
        while piece := connection.recv(1 << 16):
            pieces.append(piece)
    head, _, body = b"".join(pieces).partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], json.loads(body)


def test_requests_that_can_t_be_read_get_json_and_the_service_goes_on(start: Start) -> None:
    server = start()
    post = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: "
    assert raw(server, post + b"9" * 5000 + b"\r\n\r\n")[0].startswith(b"HTTP/1.1 413 ")
    assert raw(server, post + b"1048577\r\n\r\n")[1] == {"detail": "a request has at most 1048576 bytes"}
    assert raw(server, post + b"-1\r\n\r\n")[1] == {"detail": "a Content-Length is required"}
    status, reply = raw(server, b'QU"OTE /retrieve HTTP/1.1\r\nHost: x\r\n\r\n')
    assert b" 501 " in status and 'QU"OTE' in reply["detail"]
    assert ask(server, {"query": "Lumloom"})[0] == 200


def test_long_inputs_are_refused_and_not_sent_back_whole(start: Start) -> None:
    server = start()
    status, reply = ask(server, {"query": "word " * 20_000})
    assert status == 422 and "at most 65536 characters" in reply["detail"][0]["msg"]
    status, reply = ask(server, {"queries": "x" * 900_000})
    assert status == 422 and len(json.dumps(reply)) < 2000


def test_a_turn_of_long_queries_is_sent_in_parts(start: Start) -> None:
    queries = [f"Lumloom {number} " + "a" * 30_000 for number in range(40)]
    retriever = HttpRetriever(start().url)
    found = retriever.search(queries, 1)
    assert len(found) == 40 and not any(isinstance(one, SearchFailure) for one in found)
    assert retriever.metrics()["requests"] == 3
    retriever.close()
