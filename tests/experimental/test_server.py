"""Requests to vLLM's server: tried again, failed one by one, and given up when it stays away."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes.lockstep_cases import on_processes
from fakes.servers import Fault, ScriptedServer, echo

from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.experimental.server import Server, ServerSampler
from alignopsd_trl.rollout.sampler import RequestFailed, SamplerDown

QUICK = {"tries": 3, "backoff": 0.01, "timeout": 2.0, "away": 1.5}


@contextmanager
def asked(server: ScriptedServer, in_flight: int = 8, **patience: Any) -> Generator[Server]:
    pool = Server(server.address, in_flight, **{**QUICK, **patience})
    try:
        yield pool
    finally:
        pool.close()


def body(number: int) -> dict:
    return {"prompt": [number], "seed": 3}


def test_a_request_is_the_whole_body_and_goes_to_the_model_that_is_served() -> None:
    with ScriptedServer() as server, asked(server) as pool:
        found = pool.submit({"prompt": [4, 5], "seed": 7, "temperature": 0.3}).result()
        assert found.ids == [16, 5, 2] and found.log_probs == [-0.5] * 3
        assert server.bodies == [{"model": "scripted", "prompt": [4, 5], "seed": 7, "temperature": 0.3}]


def test_no_more_requests_are_on_their_way_than_the_limit_says() -> None:
    with ScriptedServer(delay=lambda body: 0.03) as server, asked(server, in_flight=4) as pool:
        futures = [pool.submit(body(number)) for number in range(20)]
        assert [future.result().ids[0] for future in futures] == [number + 3 for number in range(20)]
        assert server.most == 4


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.GARBAGE, Fault.CLOSE, Fault.SHORT])
def test_a_fault_that_passes_costs_nothing(fault: str) -> None:
    with ScriptedServer(fault=lambda body, before: fault if before < 2 else None) as server, asked(server) as pool:
        assert pool.submit(body(1)).result().ids == echo(body(1))
        assert len(server.bodies) == 3


def test_a_request_that_hangs_is_asked_again() -> None:
    patience = {"tries": 2, "backoff": 0.01, "timeout": 0.3, "away": 1.0}
    with ScriptedServer(fault=lambda body, before: None if before else Fault.HANG) as server:
        with asked(server, **patience) as pool:
            assert pool.submit(body(1)).result(timeout=5).ids == echo(body(1))


@pytest.mark.parametrize(
    ("fault", "tries", "says"),
    [
        (Fault.ERROR, 3, "no response after 3 tries.*this is a 500"),
        (Fault.GARBAGE, 3, "no completion of token ids"),
        (Fault.CLOSE, 3, "no response after 3 tries"),
        (Fault.REFUSE, 1, "answered 400: this is a 400"),
    ],
)
def test_a_fault_that_stays_costs_its_request_alone(fault: str, tries: int, says: str) -> None:
    poison = body(13)["prompt"]
    with ScriptedServer(fault=lambda body, before: fault if body["prompt"] == poison else None) as server:
        with asked(server) as pool:
            futures = [pool.submit(body(number)) for number in range(10, 16)]
            with pytest.raises(RequestFailed, match=says):
                futures[3].result()
            assert [future.result().ids[0] for future in futures[:3] + futures[4:]] == [13, 14, 15, 17, 18]
            assert server.seen["[[13], 3]"] == tries


def test_a_server_that_comes_back_in_time_costs_nothing() -> None:
    patience = {"tries": 3, "backoff": 0.01, "timeout": 2.0, "away": 30.0}
    with ScriptedServer(delay=lambda body: 0.1) as server, asked(server, **patience) as pool:
        futures = [pool.submit(body(number)) for number in range(24)]
        time.sleep(0.15)
        server.away(0.6)
        assert [future.result().ids[0] for future in futures] == [number + 3 for number in range(24)]


def test_a_server_that_stays_away_is_given_up() -> None:
    with ScriptedServer() as server, asked(server) as pool:
        pool.submit(body(1)).result()
        server.stop()
        futures = [pool.submit(body(number)) for number in range(5)]
        for future in futures:
            with pytest.raises(SamplerDown, match=f"no answer from {server.address} for 1.5 s; start the server"):
                future.result(timeout=10)


def test_a_server_that_one_process_lost_ends_the_thinking_of_all() -> None:
    def think(process: int, agree: Any) -> Any:
        group = object.__new__(ProcessGroup)
        group.each = agree.each
        with ScriptedServer() as server, asked(server) as pool:
            if process:
                server.stop()
            return ServerSampler(pool, {}, group.together).respond([[4], [5]])

    assert [type(one) for one in on_processes(2, think)] == [SamplerDown] * 2


def test_a_server_that_was_restarted_has_other_weights_and_is_refused() -> None:
    with ScriptedServer() as server, asked(server) as pool:
        pool.submit(body(1)).result()
        pool.check()
        server.away(0.2, born=2000.0)
        with pytest.raises(SamplerDown, match="was restarted and has its first weights again"):
            pool.submit(body(2)).result(timeout=10)
        with pytest.raises(SamplerDown, match="was restarted"):
            pool.check()


def test_a_server_that_is_not_there_at_the_start_is_waited_for() -> None:
    with ScriptedServer() as server:
        server.away(0.4)
        with asked(server, away=30.0) as pool:
            assert pool.submit(body(1)).result().ids == echo(body(1))
        server.stop()
        with pytest.raises(SamplerDown, match="no vLLM server answers at"):
            Server(server.address, 2, away=0.3)


def resources() -> tuple[int, int]:
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_is_left_over_after_200_rounds() -> None:
    def fault(body: dict, before: int) -> str | None:
        return (Fault.ERROR, Fault.CLOSE, None)[sum(body["prompt"]) % 3] if before == 0 else None

    before = resources()
    with ScriptedServer(fault=fault) as server:
        with asked(server, tries=2, backoff=0.0, timeout=2.0, away=2.0) as pool:
            for number in range(200):
                wait([pool.submit(body(3 * number + one)) for one in range(3)])
                if number == 50:
                    early = resources()
            late = resources()
    assert late[0] <= early[0] + 3 and late[1] <= early[1] + 12, "connections and threads are kept, not heaped up"
    end = time.monotonic() + 5
    while resources() > before and time.monotonic() < end:
        time.sleep(0.05)
    assert resources()[0] <= before[0] and resources()[1] <= before[1] + 2


def test_closing_does_not_wait_for_what_waits() -> None:
    with ScriptedServer(delay=lambda body: 0.2) as server:
        with asked(server, in_flight=1) as pool:
            futures = [pool.submit(body(number)) for number in range(50)]
            futures[0].result()
            started = time.monotonic()
        assert time.monotonic() - started < 5, "all of them would take 10"
        with pytest.raises(RequestFailed, match="dropped"):
            futures[-1].result(timeout=1)
