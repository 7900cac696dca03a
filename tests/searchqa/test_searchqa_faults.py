"""A retrieval service that fails in every way it can: no hang, no lost trajectory, no silent empty passage."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from searchqa_helpers import ScriptedServer

from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.environments.searchqa import (
    CLOSED_WORLD,
    HttpRetriever,
    Passage,
    RetrieverDown,
    SearchFailure,
    SearchQAFactory,
)
from alignopsd_trl.environments.searchqa.engine.observations import FAILED_SEARCH

SERVE = (sys.executable, "-m", "alignopsd_trl.environments.searchqa.serve")

QUESTION = {"question": "where?", "golden_answers": ["here"], "data_source": "nq"}


def hit(text: str, identity: str = "0") -> dict[str, Any]:
    return {"document": {"id": identity, "contents": f'"Title"\n{text}'}, "score": 1.0}


def send(handler: Any, status: int, content: bytes, length: int | None = None) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(content) if length is None else length))
    handler.end_headers()
    handler.wfile.write(content)


def good(handler: Any, body: dict[str, Any]) -> None:
    queries = body["queries"] if "queries" in body else [body["query"]]
    send(handler, 200, json.dumps({"result": [[hit(f"about {query}")] for query in queries]}).encode())


def reply(content: bytes, status: int = 200, length: int | None = None) -> Callable[..., None]:
    return lambda handler, body: send(handler, status, content, length)


def result(value: Any) -> Callable[..., None]:
    return reply(json.dumps({"result": value}).encode())


def slow(handler: Any, body: dict[str, Any]) -> None:
    time.sleep(1.5)
    good(handler, body)


def trickle(handler: Any, body: dict[str, Any]) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    for _ in range(40):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def hang_up(handler: Any, body: dict[str, Any]) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


TRANSIENT = {
    "500": reply(b"oops", 500),
    "502": reply(b"", 502),
    "503": reply(b"", 503),
    "504": reply(b"", 504),
    "hang_up": hang_up,
    "truncated_json": reply(b'{"result": [[{"docu'),
    "truncated_body": reply(b'{"result": []}', length=1000),
    "not_json": reply(b"<html>"),
    "not_utf8": reply(b"\xff\xfe"),
    "too_few_results": result([]),
    "too_many_results": result([[], []]),
    "too_many_hits": result([[hit("a"), hit("b", "1"), hit("c", "2"), hit("d", "3")]]),
    "result_missing": reply(b"{}"),
    "result_null": result(None),
    "hits_not_a_list": result([{}]),
    "bare_document": result([[{"contents": "x"}]]),
    "empty_passage": result([[{"document": {"contents": " \n"}, "score": 1.0}]]),
    "null_passage": result([[{"document": {"contents": None}, "score": 1.0}]]),
}
SLOW = {"slow": slow, "trickle": trickle}


def client(url: str, dialect: str = "list", **options: Any) -> HttpRetriever:
    """A client whose time runs out on a busy machine too only where a test asks for it."""
    settings = {"timeout": 60.0, "attempts": 3, "pause": 0.01, "patience": 120.0, **options}
    return HttpRetriever(url, dialect, **settings)


@pytest.mark.parametrize("fault", TRANSIENT)
@pytest.mark.parametrize("dialect", ["list", "single"])
def test_a_passing_fault_is_retried_and_counted(fault: str, dialect: str, serve: Callable[..., ScriptedServer]) -> None:
    retriever = client(serve(TRANSIENT[fault], TRANSIENT[fault], good).url, dialect)
    assert retriever.search(["x"], 3) == [[Passage('"Title"\nabout x', "0", 1.0)]]
    metrics = retriever.metrics()
    assert (metrics["requests"], metrics["retries"], metrics["failures"]) == (3, 2, 0)
    assert metrics["unreachable"] + metrics["malformed"] == 2


@pytest.mark.parametrize("fault", SLOW)
@pytest.mark.parametrize("dialect", ["list", "single"])
def test_a_reply_that_takes_too_long_is_asked_for_again(
    fault: str, dialect: str, serve: Callable[..., ScriptedServer]
) -> None:
    retriever = client(serve(SLOW[fault], SLOW[fault], good).url, dialect, timeout=0.3, attempts=100)
    assert retriever.search(["x"], 3) == [[Passage('"Title"\nabout x', "0", 1.0)]]
    metrics = retriever.metrics()  # on a busy machine a good reply may come late as well
    assert metrics["requests"] - 1 == metrics["retries"] == metrics["unreachable"] >= 2
    assert metrics["failures"] == metrics["malformed"] == 0


def test_an_outage_is_one_line_at_its_begin_and_one_at_its_end(
    serve: Callable[..., ScriptedServer], caplog: pytest.LogCaptureFixture
) -> None:
    fault = TRANSIENT["500"]
    client(serve(fault, fault, good).url).search(["x"], 3)
    begun, ended = [record.getMessage() for record in caplog.records if record.name.endswith("searchqa.engine.client")]
    assert "HTTP 500; trying again for up to" in begun and "the service answers again after" in ended
    caplog.clear()
    client(serve(fault).url, attempts=2).search(["x"], 3)
    assert "given up after" in [record.getMessage() for record in caplog.records][-1]


@pytest.mark.parametrize("fault", ["500", "slow", "truncated_json", "too_few_results", "empty_passage"])
def test_a_lasting_fault_becomes_a_failure_that_the_policy_reads(
    fault: str, serve: Callable[..., ScriptedServer]
) -> None:
    def lasting(handler: Any, body: dict[str, Any]) -> None:
        (good if body["queries"] == ["probe"] else {**TRANSIENT, **SLOW}[fault])(handler, body)

    options = {"timeout": 0.5, "attempts": 4} if fault in SLOW else {"attempts": 2}
    batch = open_batch(SearchQAFactory(client(serve(lasting).url, **options)), 3)
    batch.reset([0, 1, 2], [QUESTION] * 3)
    steps = batch.step([0, 1, 2], ["<search>a</search>", "<search>b</search>", "<answer>here</answer>"])
    assert [step.observation for step in steps] == [f"<information>{FAILED_SEARCH}</information>"] * 2 + [""]
    assert [step.done for step in steps] == [False, False, True]
    assert steps[0].info["failure"] and steps[0].metrics["failed_searches"] == 1
    assert [step.won for step in steps] == [False, False, True]
    assert batch.step([0], ["<answer>here</answer>"])[0].won
    assert batch.metrics()["failed"] == 2 and batch.metrics()["backend_failures"] == 1


def test_a_refusal_is_not_retried(serve: Callable[..., ScriptedServer]) -> None:
    server = serve(reply(b'{"detail": "no"}', 404))
    outcome = client(server.url).search(["x"], 3)[0]
    assert isinstance(outcome, SearchFailure) and "404" in outcome.message
    assert len(server.bodies) == 1


def test_duplicate_passages_are_shown_once_and_counted(serve: Callable[..., ScriptedServer]) -> None:
    retriever = client(serve(result([[hit("a"), hit("a"), hit("b", "1")]])).url)
    assert [p.text for p in retriever.search(["x"], 3)[0]] == ["a", "b"]
    assert retriever.metrics()["duplicates"] == 1


def test_connection_refused_ends_the_run_with_one_clear_error() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/retrieve"
    with pytest.raises(RetrieverDown, match="Check that a service runs at"):
        open_batch(SearchQAFactory(client(url)), 2)


def test_a_service_that_stays_away_ends_the_run(serve: Callable[..., ScriptedServer]) -> None:
    server = serve(good, reply(b"", 503))
    batch = open_batch(SearchQAFactory(client(server.url, tolerated=2, attempts=2)), 2)
    batch.reset([0, 1], [QUESTION] * 2)
    batch.step([0, 1], ["<search>a</search>"] * 2)
    with pytest.raises(RetrieverDown, match="2 turns in a row.*503.*resume from the last checkpoint"):
        batch.step([0, 1], ["<search>b</search>"] * 2)


def test_success_closes_the_circuit_again(serve: Callable[..., ScriptedServer]) -> None:
    bad = reply(b"", 503)
    retriever = client(serve(bad, good, bad, good, bad, good).url, attempts=1, tolerated=2)
    kinds = [isinstance(retriever.search([str(i)], 3)[0], SearchFailure) for i in range(6)]
    assert kinds == [True, False] * 3


def test_one_bad_query_costs_its_own_episode_only(serve: Callable[..., ScriptedServer]) -> None:
    def picky(handler: Any, body: dict[str, Any]) -> None:
        if body["query"] == "bad":
            send(handler, 400, b"no")
        else:
            good(handler, body)

    found = client(serve(picky).url, "single").search(["a", "bad", "b"], 3)
    assert [isinstance(outcome, SearchFailure) for outcome in found] == [False, True, False]


def test_patience_bounds_the_waiting(serve: Callable[..., ScriptedServer]) -> None:
    retriever = client(serve(reply(b"", 503)).url, attempts=1000, pause=0.05, patience=0.4)
    started = time.monotonic()
    assert isinstance(retriever.search(["x"], 3)[0], SearchFailure)
    assert time.monotonic() - started < 5.0  # a bound against hanging, far above the 0.4 s


def test_several_addresses_take_turns(serve: Callable[..., ScriptedServer]) -> None:
    first, second, down = serve(good), serve(good), serve(reply(b"", 503))
    retriever = client((first.url, second.url))
    for number in range(4):
        retriever.search([str(number)], 3)
    assert len(first.bodies) == len(second.bodies) == 2
    assert not isinstance(client((down.url, down.url, second.url)).search(["x"], 3)[0], SearchFailure)


def test_all_queries_of_a_turn_are_one_request(serve: Callable[..., ScriptedServer]) -> None:
    server = serve(good)
    batch = open_batch(SearchQAFactory(client(server.url)), 4)
    server.bodies.clear()
    batch.reset(range(4), [QUESTION] * 4)
    searches = [f"<search>{query}</search>" for query in "abba"]
    steps = batch.step(range(4), searches)
    assert server.bodies == [{"queries": ["a", "b"], "topk": 3, "return_scores": True}]
    assert steps[0].observation == steps[3].observation != steps[1].observation
    batch.step([3, 0], searches[:2])
    assert len(server.bodies) == 1  # remembered


@pytest.mark.parametrize(
    "wrong",
    [{"dialect": "both"}, {"urls": ()}, {"urls": "127.0.0.1:8000"}, {"attempts": 0}, {"timeout": -1.0}],
)
def test_wrong_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        HttpRetriever(**{"urls": "http://127.0.0.1:1/retrieve", **wrong})


def start_process(corpus: Any, port: int = 0) -> tuple[subprocess.Popen[str], str]:
    command = [*SERVE, "--corpus", str(corpus), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    found = re.search(r"http://127\.0\.0\.1:\d+/retrieve", process.stdout.readline())
    assert found, process.wait(10)
    return process, found[0]


def test_a_server_process_that_dies_in_a_batch_and_comes_back(tmp_path: Any) -> None:
    shutil.copy(CLOSED_WORLD / "corpus.jsonl", tmp_path)  # an index is written beside it
    process, url = start_process(tmp_path)
    port = int(url.split(":")[2].split("/")[0])
    try:
        factory = SearchQAFactory(client(url, timeout=5.0, attempts=1000, pause=0.01, patience=60.0))
        batch = open_batch(factory, 2)
        batch.reset([0, 1], [QUESTION] * 2)
        before = batch.step([0, 1], ["<search>Lumloom</search>", "<search>Feploom</search>"])
        process.kill()
        process.wait(10)
        with ThreadPoolExecutor(1) as other:
            waiting = other.submit(batch.step, [0, 1], ["<search>Ouswend</search>", "<search>Velgarth</search>"])
            while not factory.retriever.metrics()["backend_retries"]:
                time.sleep(0.01)  # the batch has met the dead server
            process, _ = start_process(tmp_path, port)
            after = waiting.result(60)
        assert all("<information>Doc 1(Title:" in step.observation for step in (*before, *after))
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait(10)


def test_the_server_refuses_a_missing_corpus(tmp_path: Any) -> None:
    command = [*SERVE, "--corpus", str(tmp_path / "none.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and done.stderr.startswith("error: corpus") and "Traceback" not in done.stderr
