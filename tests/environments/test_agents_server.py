"""The API of an episode as a server that behaves as one: whatever comes over its socket, and whoever leaves."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fakes.agent_play import GUESS, START, text_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alignopsd_trl.environments.adapters.agents import Client, Refused, server
from alignopsd_trl.environments.adapters.agents.api import HttpCall, exchange
from alignopsd_trl.environments.adapters.agents.line import RequestLine
from alignopsd_trl.environments.adapters.agents.requests import Rules
from alignopsd_trl.environments.base import Reply

BODY = json.dumps({"messages": START}).encode()


class Policy:
    """Answers the requests of a line with numbers, one after another."""

    def __init__(self) -> None:
        self.line = RequestLine({"task_id": "one"}, Rules(native=True, ignores=False))
        self.client, self.go_on = Client(self.line), threading.Event()
        self.go_on.set()
        self.place = self.client.url.partition("//")[2].partition("/")[0]
        self.path = f"/{self.client.key}/v1"
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        with contextlib.suppress(TimeoutError):  # nobody asks any more
            while self.line.take(time.monotonic() + 60) is not None:
                self.go_on.wait()
                self.line.answer(Reply(json.dumps({"content": str(len(self.line.turns))})))
                self.line.now = None

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.place, timeout=20)

    def ask(self, path: str = "/chat/completions", body: Any = BODY, method: str = "POST", **headers: str) -> Any:
        """Sends a request and returns the status and the answer's JSON."""
        with_key = path if path.startswith("//") else self.path + path
        asking = self.connect()
        asking.request(method, with_key, body, headers, encode_chunked=not isinstance(body, bytes))
        answer = asking.getresponse()
        return answer.status, json.loads(answer.read())

    def raw(self, data: bytes) -> tuple[int, Any]:
        host, port = self.place.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(data)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            return answer.status, json.loads(answer.read())

    @property
    def head(self) -> bytes:
        return f"POST {self.path}/chat/completions HTTP/1.1\r\nhost: x\r\n".encode()


@pytest.fixture
def policy() -> Iterator[Policy]:
    made = Policy()
    yield made
    made.go_on.set()
    made.line.hang_up()


@pytest.mark.parametrize(
    "path", ["/chat/completions/", "/chat/completions?api-version=1", "/openai/deployments/gpt/chat/completions"]
)
def test_paths_of_other_clients_are_known(policy: Policy, path: str) -> None:
    assert policy.ask(path)[0] == 200
    assert policy.ask(f"//openai{path}", **{"api-key": policy.client.key})[0] == 200


def test_models_are_listed_and_what_is_not_served_says_so(policy: Policy) -> None:
    assert policy.ask("/models", None, "GET")[1]["data"][0]["id"] == "policy"
    assert policy.ask("/models/mine", None, "GET")[1]["id"] == "mine"
    for path, method in (("/embeddings", "POST"), ("/models", "PATCH"), ("/responses/resp_1", "GET"), ("/", "BREW")):
        status, told = policy.ask(path, None, method)
        assert status in (404, 405, 501) and told["error"]["type"] == "invalid_request_error" and told["error"]["code"]


def test_no_answer_holds_the_key(policy: Policy) -> None:
    asked = [("/embeddings", "POST"), ("/models", "PATCH"), ("/responses/resp_1", "GET"), ("/", "GET")]
    told = [policy.ask(path, None, method) for path, method in asked]
    told += [policy.ask(f"//x/{policy.client.key}/y", None, "GET", **{"x-api-key": policy.client.key})]
    told += [policy.ask(f"//{policy.client.key}", None, "GET")]
    told += [policy.ask(f"/{policy.client.key}", None, policy.client.key)]
    assert [status for status, _ in told] == [404, 405, 404, 404, 404, 404, 501]
    assert "/v1/embeddings is not served" in told[0][1]["error"]["message"]
    assert not any(policy.client.key in json.dumps(one) for one in told)


@pytest.mark.parametrize("header", ["x-api-key", "api-key", "authorization"])
@pytest.mark.parametrize("value", ["{}", "Bearer {}", "bearer\t{} "])
def test_the_key_may_be_a_header(policy: Policy, header: str, value: str) -> None:
    assert policy.ask("//v1/chat/completions", **{header: value.format(policy.client.key)})[0] == 200


def test_bodies_come_in_chunks(policy: Policy) -> None:
    status, answer = policy.ask(body=iter([BODY[:5], BODY[5:]]), **{"transfer-encoding": "chunked"})
    assert status == 200 and text_of(answer) == "0"


@pytest.mark.parametrize(
    "rest, status",
    [
        (b"content-length: -1\r\n\r\n", 400),
        (b"content-length: ten\r\n\r\n", 400),
        (b"content-length: 99999999999\r\n\r\n", 413),
        (b"content-length: 9999999999999999999999\r\n\r\n", 400),
        (b"content-length: 1\r\n\r\n{}", 400),
        (b"\r\n", 400),
        (b"transfer-encoding: gzip\r\n\r\n", 400),
        (b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"transfer-encoding: chunked\r\n\r\n-2\r\n{}", 400),
        (b"transfer-encoding: chunked\r\n\r\n1\r\n{}}}}}}\r\n", 400),
        (b"content-length: 100000\r\n\r\n" + b"[" * 100_000, 400),
        (b"content-length: 2\r\n\r\n[]", 400),
        (b"content-length: 2\r\n\r\n\xff\xfe", 400),
        (b"x: y\r\n" * 200 + b"\r\n", 431),
    ],
)
def test_what_is_no_request_gets_the_apis_error(policy: Policy, rest: bytes, status: int) -> None:
    found, told = policy.raw(policy.head + rest)
    assert found == status and told["error"]["message"], (found, told)


def test_a_body_that_ends_early_is_refused(policy: Policy) -> None:
    host, port = policy.place.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(policy.head + b"content-length: 50\r\n\r\n{}")
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(10_000), b""))
    assert b"ends after 2 of 50 bytes" in answer


def test_a_body_that_no_context_holds_is_refused_whole(policy: Policy) -> None:
    status, told = policy.ask(body=b" " * (50 << 20))
    assert (status, told["error"]["code"]) == (413, "context_length_exceeded")


def test_connections_leave_room_for_files(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed, pytest.raises(ConnectionError):
        changed.setattr(server, "SPARE", os.sysconf("SC_OPEN_MAX"))
        policy.ask()
    assert policy.ask()[0] == 200


def test_a_stranger_is_told_before_the_body_is_read(policy: Policy) -> None:
    head = policy.head.replace(policy.client.key.encode(), b"0" * 32)
    status, told = policy.raw(head + b"content-length: 9000000\r\n\r\n{")
    assert status == 401 and told["error"]["code"] == "invalid_api_key"
    assert policy.client.url.startswith("http://127.0.0.1:")


def test_who_leaves_prints_nothing_and_is_not_sampled(policy: Policy, capfd: Any) -> None:
    policy.go_on.clear()
    first = ThreadPoolExecutor(1).submit(policy.ask, body=json.dumps({"messages": [START[1]]}).encode())
    time.sleep(0.3)
    for data in (BODY, BODY[:9], b""):
        asking = policy.connect()
        asking.putrequest("POST", policy.path + "/chat/completions")
        asking.putheader("content-length", str(len(BODY)))
        asking.endheaders(data)
        time.sleep(0.1)
        asking.close()
    time.sleep(0.3)
    policy.go_on.set()
    assert first.result()[0] == 200
    assert policy.ask()[0] == 200 and len(policy.line.turns) == 2
    assert capfd.readouterr() == ("", "")


def test_a_retried_request_gets_its_first_answer(policy: Policy) -> None:
    first, again = (policy.ask(**{"x-stainless-retry-count": count}) for count in "01")
    assert first == again and first[0] == 200 and len(policy.line.turns) == 1


def test_an_equal_request_after_the_first_caller_left_is_a_retry(policy: Policy) -> None:
    policy.go_on.clear()
    asking = policy.connect()
    asking.request("POST", policy.path + "/chat/completions", BODY)
    time.sleep(0.3)  # it is being sampled
    asking.close()
    again = ThreadPoolExecutor(1).submit(policy.ask)
    time.sleep(0.3)
    policy.go_on.set()
    assert again.result()[0] == 200 and len(policy.line.turns) == 1
    assert text_of(policy.ask()[1]) == "1"  # answered, so that this is another one


def test_equal_requests_side_by_side_are_samples_of_their_own(policy: Policy) -> None:
    policy.go_on.clear()
    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(policy.ask) for _ in range(3)]
        time.sleep(0.3)
        policy.go_on.set()
        assert sorted(text_of(one.result()[1]) for one in asking) == ["0", "1", "2"]
    assert len({one.place for one in policy.line.turns}) == 3


def test_a_program_elsewhere_says_that_the_policy_lost(policy: Policy) -> None:
    program = "import sys, urllib.request as u; u.urlopen(sys.argv[1] + '/lost', b'arguments: 3')"
    subprocess.run([sys.executable, "-c", program, policy.client.url], check=True)
    assert policy.line.lost == "arguments: 3"


def test_the_client_without_a_socket_is_the_same_api(policy: Policy) -> None:
    openai = pytest.importorskip("openai")
    client = policy.client.openai_sync
    assert client.models.list().data[0].id == "policy"
    with pytest.raises(openai.NotFoundError, match="embeddings is not served"):
        client.embeddings.create(model="policy", input="x")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="policy", messages=START, max_tokens=-3)
    assert caught.value.param == "max_tokens"
    asked: dict[str, Any] = {"model": "policy", "messages": START}
    client.chat.completions.create(**asked, extra_headers={"x-not-trained": "1"})
    assert not policy.line.turns and len(policy.line.asides) == 1
    client.chat.completions.create(**asked)
    assert len(policy.line.turns) == 1


def test_of_allowed_tools_the_policy_is_offered_those_alone(policy: Policy) -> None:
    other = {"type": "function", "function": {"name": "wait", "parameters": {"type": "object", "properties": {}}}}
    named = [{"type": "function", "function": {"name": "guess"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}
    policy.client.chat_sync(messages=START, tools=[other, GUESS], tool_choice=choice)
    assert [one["function"]["name"] for one in policy.line.turns[0].tools] == ["guess"]
    choice["allowed_tools"]["mode"] = "required"
    with pytest.raises(Refused) as caught:
        policy.client.chat_sync(messages=START, tools=[other, GUESS], tool_choice=choice)
    assert caught.value.code == "tool_use_failed"
    with pytest.raises(Refused, match="tools has no such function"):
        policy.client.chat_sync(messages=START, tools=[other], tool_choice=choice)


def test_one_call_is_shown_to_those_who_take_one() -> None:
    calls = [{"function": {"name": "guess", "arguments": {"number": n}}} for n in range(2)]
    ask = {"messages": START, "tools": [GUESS]}
    with ThreadPoolExecutor(1) as pool:
        line = RequestLine({}, Rules(native=True, ignores=False))
        answer = pool.submit(Client(line).chat_sync, **ask, parallel_tool_calls=False)
        line.take(time.monotonic() + 9)
        line.answer(Reply(json.dumps({"content": "", "tool_calls": calls})))
        assert len(answer.result()["choices"][0]["message"]["tool_calls"]) == 1


def test_refused_threads_wait_longer_and_longer(policy: Policy) -> None:
    policy.line.hang_up()
    count = [0]

    def spin() -> None:
        while True:
            try:
                policy.client.chat_sync(messages=START)
            except Refused:
                count[0] += 1

    threading.Thread(target=spin, daemon=True).start()
    time.sleep(0.5)
    assert count[0] < 40


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["function", "user"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "role", "content"]), inner),
    max_leaves=6,
)
FIELDS = "messages tools tool_choice stop n max_tokens temperature top_p stream input text response_format".split()
FIELDS += ["stream_options", "instructions", "include", "previous_response_id", "max_output_tokens"]
FIELDS += ["system", "stop_sequences", "thinking", "context_management", "output_config"]
BODIES: dict[str, Any] = {
    "chat/completions": {"messages": START},
    "responses": {"input": "Guess."},
    "messages": {"messages": START[1:], "max_tokens": 9},
    "messages/count_tokens": {"messages": START[1:]},
}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(FIELDS), JUNK, min_size=1, max_size=3), st.sampled_from([*BODIES]))
def test_any_request_is_answered_or_refused(policy: Policy, changed: dict[str, Any], path: str) -> None:
    changed = changed | ({"n": 1} if isinstance(changed.get("n"), int) else {})
    policy.client.chat_sync(messages=START)  # between refusals, which would come later and later
    call = HttpCall("POST", f"/v1/{path}", {}, json.dumps(BODIES[path] | changed).encode())
    assert exchange(policy.line, call).result(20).status in (200, 400, 404, 422)


@pytest.mark.parametrize("data", [b"", b"GET", b"\0" * 50, b"POST / HTTP/9.9\r\n\r\n", b"x" * 70_000])
def test_noise_on_the_socket_is_harmless(policy: Policy, data: bytes, capfd: Any) -> None:
    host, port = policy.place.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(data + b"\r\n\r\n")
    assert policy.ask()[0] == 200 and capfd.readouterr() == ("", "")
