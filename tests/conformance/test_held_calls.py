"""Held calls of `/run_code`: a caller whose timeout counts between bytes waits as long as the queue takes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import redis
import requests

from tests.conformance.verl_overload import overload
from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import TIMEOUT_S, metric, running_mesh, until
from treadle.testing.servers import running_valkey, temporary_home

BLANK_S = 0.5
MARGIN_S = 1.0
CLIENT_S = 8 * BLANK_S
"""Timeout of a test's caller, counted between bytes."""
HOLD_S = 2.5
QUICK = "print(input())"
ENDLESS = "while True: pass"


@dataclass(frozen=True, slots=True)
class Held:
    """One core, the leader with default holding, and replicas with other settings."""

    exit_stack: ExitStack
    redis_url: str
    leader: Service
    managers: list[Service]

    def replica(self, **settings: str) -> Service:
        """Another proxy on the same store."""
        return self.exit_stack.enter_context(running_service("proxy", self.redis_url, **SETTINGS, **settings))

    def unanswered(self) -> int:
        with redis.Redis.from_url(self.redis_url) as client:
            return int(client.xlen("actions"))

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """Keep the one core in use."""
        body: dict[str, Any] = {"kind": "sleep", "params": {"seconds": 600.0}, "units": {"cores": 1}, "timeout_s": 900}
        action = requests.post(f"{self.leader.url}/v1/actions", json=body, timeout=30).json()["id"]
        self.await_used(True)
        try:
            yield
        finally:
            requests.delete(f"{self.leader.url}/v1/actions/{action}", timeout=30)
            asyncio.run(until(lambda: self.unanswered() == 0))

    def await_used(self, used: bool) -> None:
        def is_so() -> bool:
            (node,) = requests.get(f"{self.leader.url}/v1/nodes", timeout=10).json()["nodes"]
            return bool(node["used"].get("cores")) is used

        asyncio.run(until(is_so))


SETTINGS = {
    "PROXY_HOLD_BLANK_S": str(BLANK_S),
    "PROXY_RUN_CODE_MARGIN_S": str(MARGIN_S),
    "PROXY_LEASE_S": "2.0",
    "PROXY_NODE_LOST_S": "2.0",
    "PROXY_MAX_ATTEMPTS": "1",
}


@pytest.fixture(scope="module")
def held() -> Iterator[Held]:
    with (
        temporary_home() as home,
        running_valkey(home) as url,
        running_mesh(url, proxies=1, managers=1, cores=1, **SETTINGS) as mesh,
        ExitStack() as exit_stack,
    ):
        yield Held(exit_stack, url, mesh.proxies[0], mesh.managers)


@pytest.fixture(scope="module")
def strict(held: Held) -> Service:
    """A replica that holds every caller, one at a time and briefly."""
    return held.replica(PROXY_HOLD="always", PROXY_HOLD_S=str(HOLD_S), PROXY_MAX_HELD="1")


def body_of(code: str, stdin: str = "", run_s: float = 1.0) -> dict[str, Any]:
    return {"code": code, "stdin": stdin, "compile_timeout": 1.0, "run_timeout": run_s}


def call(service: Service, body: dict[str, Any], **fields: Any) -> requests.Response:
    return requests.post(f"{service.url}/run_code", json=body, timeout=CLIENT_S, **fields)


class Wire:
    """One connection, byte for byte."""

    def __init__(self, service: Service) -> None:
        host, _, port = service.url.removeprefix("http://").partition(":")
        self.host = f"{host}:{port}"
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self.received = b""

    def send(
        self, body: dict[str, Any], *headers: str, agent: str = "python-requests/2.32", version: str = "1.1"
    ) -> None:
        payload = json.dumps(body).encode()
        lines = [f"POST /run_code HTTP/{version}", f"host: {self.host}", f"user-agent: {agent}", *headers]
        head = "\r\n".join([*lines, "content-type: application/json", f"content-length: {len(payload)}"])
        self._socket.sendall(head.encode() + b"\r\n\r\n" + payload)

    def until(self, end: bytes) -> bytes:
        """Return the bytes received up to and including `end`; empty `end`: up to the end of the connection."""
        while not end or end not in self.received:
            part = self._socket.recv(65536)
            if not part:
                break
            self.received += part
        at = self.received.index(end) + len(end) if end else len(self.received)
        taken, self.received = self.received[:at], self.received[at:]
        return taken

    def close(self) -> None:
        self._socket.close()


def dechunked(raw: bytes) -> bytes:
    body = b""
    while raw:
        size, _, rest = raw.partition(b"\r\n")
        count = int(size, 16)
        body, raw = body + rest[:count], rest[count + 2 :]
        if not count:
            assert raw == b"\r\n" or not raw
            break
    return body


def test_headers_leave_at_once_then_blanks_then_the_answer_and_the_connection_stays_usable(held: Held) -> None:
    wire = Wire(held.leader)
    with held.occupied():
        wire.send(body_of(QUICK, "first"))
        head = wire.until(b"\r\n\r\n").lower()
        assert head.startswith(b"http/1.1 200 ")
        assert b"transfer-encoding: chunked" in head
        assert b"content-length" not in head
        assert b"connection: close" not in head
        assert wire.until(b"1\r\n \r\n1\r\n \r\n") == b"1\r\n \r\n1\r\n \r\n", "blanks, while the core is in use"
        assert metric(held.leader, "treadle_proxy_held_calls") == 1
    reply = json.loads(dechunked(wire.until(b"0\r\n\r\n")))
    assert (reply["status"], reply["run_result"]["stdout"]) == ("Success", "first\n")
    wire.send(body_of(QUICK, "second"), "connection: close")
    assert b"connection: close" in wire.until(b"\r\n\r\n").lower()
    assert b"second" in wire.until(b""), "the server closes after its reply"
    asyncio.run(until(lambda: metric(held.leader, "treadle_proxy_held_calls") == 0))
    wire.close()


def test_a_held_reply_on_a_connection_that_is_to_be_closed_ends_whole(held: Held) -> None:
    wire = Wire(held.leader)
    with held.occupied():
        wire.send(body_of(QUICK, "bye"), "connection: close")
        assert b"connection: close" in wire.until(b"\r\n\r\n").lower()
        wire.until(b" \r\n")
    assert json.loads(dechunked(wire.until(b"")))["run_result"]["stdout"] == "bye\n"
    wire.close()


def test_callers_that_wait_longer_than_their_timeout_are_all_served(held: Held) -> None:
    """verl's calls in a short form; whole: `python -m tests.conformance.verl_overload`."""
    held.await_used(False)  # what the test before has cancelled is counted when it has ended
    before = executions_of(held)
    scored = overload(held.leader.url + "/run_code", programs=16, seconds=0.3)
    assert [each.score for each in scored] == [True] * 16
    assert {status for each in scored for status in each.statuses} == {200}
    assert executions_of(held) - before == 16
    with ThreadPoolExecutor(14) as pool:  # 7 s of work on one core, for callers with a timeout of 4 s
        codes = [f"import time\ntime.sleep(0.5)\nprint({number})" for number in range(14)]
        replies = list(pool.map(lambda code: call(held.leader, body_of(code)), codes))
    assert [reply.json()["run_result"]["stdout"] for reply in replies] == [f"{number}\n" for number in range(14)]


def executions_of(held: Held) -> int:
    return round(sum(metric(manager, "treadle_cpu_manager_attempts_total") for manager in held.managers))


def test_which_callers_are_held(held: Held, strict: Service) -> None:
    never = held.replica(PROXY_HOLD="never")
    with held.occupied(), ExitStack() as stack:
        for service, agent, version, status in [
            (held.leader, "python-requests/2.32.3", "1.1", b"200"),
            (held.leader, "Python/3.11 aiohttp/3.9", "1.1", b"504"),
            (held.leader, "python-requests/2.32.3", "1.0", b"504"),  # no chunks there
            (never, "python-requests/2.32.3", "1.1", b"504"),
            (strict, "Python/3.11 aiohttp/3.9", "1.1", b"200"),
        ]:
            wire = Wire(service)
            stack.callback(wire.close)
            wire.send(body_of(QUICK, "x", run_s=0.2), agent=agent, version=version)
            assert wire.until(b"\r\n").split()[1] == status, (agent, version)


def test_refusals_come_before_the_headers(held: Held, strict: Service) -> None:
    asyncio.run(until(lambda: metric(strict, "treadle_proxy_held_calls") == 0))
    assert call(strict, {"language": "python"}).status_code == 422
    assert call(strict, {"code": "1", "language": "klingon"}).status_code == 422
    with held.occupied():
        wire = Wire(strict)
        wire.send(body_of(QUICK))
        wire.until(b"\r\n\r\n")
        refused = call(strict, body_of(QUICK))
        assert (refused.status_code, "this replica holds 1 calls" in refused.json()["detail"]) == (504, True), (
            refused.text
        )
        wire.close()
        asyncio.run(until(lambda: metric(strict, "treadle_proxy_held_calls") == 0))
    assert call(strict, body_of(QUICK)).status_code == 200


def test_at_the_end_of_the_hold_the_caller_gets_an_error_of_the_sandbox(held: Held, strict: Service) -> None:
    with held.occupied():
        reply = call(strict, body_of(QUICK))
        assert reply.status_code == 200
        assert (reply.json()["status"], reply.json()["run_result"]) == ("SandboxError", None)
        assert f"{HOLD_S} s" in reply.json()["message"]
        text = requests.get(strict.url + "/metrics", timeout=10).text
        assert 'ended="gave-up"}' in text
        assert 'ended="gave-up"} 0.0' not in text
        asyncio.run(until(lambda: held.unanswered() == 1))


@pytest.mark.parametrize("agent", ["python-requests/2.32.3", "Python/3.11 aiohttp/3.9"])
def test_the_end_of_the_connection_ends_the_program(held: Held, agent: str) -> None:
    wire = Wire(held.leader)
    wire.send(body_of(ENDLESS, run_s=600.0), agent=agent)
    held.await_used(True)
    wire.close()
    held.await_used(False)
    assert held.unanswered() == 0
    with held.occupied():  # one that has not begun never begins
        before = executions_of(held)
        wire = Wire(held.leader)
        wire.send(body_of(QUICK, run_s=600.0), agent=agent)
        asyncio.run(until(lambda: held.unanswered() == 2))
        wire.close()
        asyncio.run(until(lambda: held.unanswered() == 1))
        assert executions_of(held) == before


def test_a_connection_that_ends_during_a_pipelined_second_call_ends_the_first(held: Held) -> None:
    wire = Wire(held.leader)
    wire.send(body_of(ENDLESS, run_s=600.0))
    held.await_used(True)
    wire.send(body_of(ENDLESS, run_s=600.0))
    wire.close()
    held.await_used(False)
    asyncio.run(until(lambda: held.unanswered() == 0))


def test_a_proxy_that_stops_ends_a_held_reply_whole(held: Held) -> None:
    stopping = held.replica(PROXY_MAX_JOURNAL="2")
    wire = Wire(stopping)
    with held.occupied():
        wire.send(body_of(QUICK))
        wire.until(b"\r\n\r\n")
        full = call(stopping, body_of(QUICK))
        assert (full.status_code, "too many unanswered" in full.json()["detail"]) == (504, True), full.text
        stopping.process.terminate()
        reply = json.loads(dechunked(wire.until(b"")))
        assert (reply["status"], "stopping" in reply["message"]) == ("SandboxError", True), reply
        asyncio.run(until(lambda: held.unanswered() == 1))
    wire.close()


def test_the_end_of_a_killed_proxy_ends_what_it_held(held: Held) -> None:
    killed = held.replica()
    wire = Wire(killed)
    wire.send(body_of(ENDLESS, run_s=600.0))
    held.await_used(True)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(call, held.leader, body_of("print(5)", run_s=600.0))
        asyncio.run(until(lambda: held.unanswered() == 2))
        killed.kill()
        wire.close()
        retried = call(held.leader, body_of("print(6)", run_s=600.0))
        assert retried.json()["run_result"]["stdout"] == "6\n", retried.text
        assert other.result(60).json()["run_result"]["stdout"] == "5\n", "another replica's call continues"
    assert held.unanswered() == 0


def test_a_proxy_that_slept_submits_again_what_was_taken_for_abandoned(held: Held) -> None:
    sleeper = held.replica()
    with ThreadPoolExecutor(1) as pool:
        with held.occupied():
            waiting = pool.submit(
                requests.post, f"{sleeper.url}/run_code", json=body_of("print(7)"), timeout=4 * TIMEOUT_S
            )
            asyncio.run(until(lambda: held.unanswered() == 2))
            sleeper.freeze()
            asyncio.run(until(lambda: held.unanswered() == 1))
            sleeper.thaw()
            asyncio.run(until(lambda: held.unanswered() == 2))
            sleeper_resubmitted = metric(sleeper, "treadle_proxy_held_resubmissions_total")
        reply = waiting.result(2 * TIMEOUT_S).json()
    assert (reply["status"], reply["run_result"]["stdout"], sleeper_resubmitted) == ("Success", "7\n", 1.0)


def test_a_lost_action_is_submitted_again(held: Held) -> None:
    """Its node is killed, and an action has one attempt here."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call, held.leader, body_of("import time\ntime.sleep(3)\nprint(4)", run_s=30.0))
        held.await_used(True)
        held.managers.pop().kill()
        asyncio.run(until(lambda: metric(held.leader, "treadle_proxy_held_resubmissions_total") >= 1))
        node = {"CPU_MANAGER_NODE": "node-1", "CPU_MANAGER_CORES": "1", "CPU_MANAGER_HEARTBEAT_S": "0.4"}
        held.managers.append(held.exit_stack.enter_context(running_service("cpu_manager", held.redis_url, **node)))
        reply = waiting.result(60).json()
    assert (reply["status"], reply["run_result"]["stdout"]) == ("Success", "4\n")
