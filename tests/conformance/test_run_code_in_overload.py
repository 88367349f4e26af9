"""verl's client against a mesh that is much too small: late is late, and never wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import redis
import requests

from shared.testing.servers import running_valkey, temporary_home
from tests.conformance.verl_like import RUN_TIMEOUT, RUNTIME_ERROR, Case, Scored, score, score_all
from tests.e2e.replicas import Mesh, executions, running_mesh, until

MARGIN_S = 1.0
JOIN_S = 6.0
CALLERS = 64


@dataclass(frozen=True, slots=True)
class Small:
    """One core behind one door."""

    mesh: Mesh
    redis_url: str

    @property
    def url(self) -> str:
        return self.mesh.proxies[0].url + "/run_code"

    def unanswered(self) -> int:
        """Actions in the journal."""
        with redis.Redis.from_url(self.redis_url) as client:
            return int(client.xlen("actions"))

    def occupy(self) -> str:
        """Let something have the core that was thought to be short and is not; its id."""
        self._sleep(0.0, wait_s=30)
        return self._sleep(600.0, wait_s=0)

    def _sleep(self, seconds: float, *, wait_s: float) -> str:
        body: dict[str, Any] = {
            "kind": "sleep",
            "params": {"seconds": seconds},
            "units": {"cores": 1},
            "timeout_s": 900,
        }
        url = f"{self.mesh.proxies[0].url}/v1/actions?wait={wait_s}"
        return str(requests.post(url, json=body, timeout=60).json()["id"])

    def release(self, action: str) -> None:
        """Give the core back."""
        requests.delete(f"{self.mesh.proxies[0].url}/v1/actions/{action}", timeout=30)


@contextmanager
def small_mesh(join_s: float) -> Iterator[Small]:
    settings = {"PROXY_RUN_CODE_MARGIN_S": str(MARGIN_S), "PROXY_RUN_CODE_JOIN_S": str(join_s)}
    with (
        temporary_home() as home,
        running_valkey(home) as url,
        running_mesh(url, proxies=1, managers=1, cores=1, **settings) as mesh,
    ):
        yield Small(mesh, url)


@pytest.fixture
def small() -> Iterator[Small]:
    with small_mesh(JOIN_S) as mesh:
        yield mesh


@pytest.fixture
def patient() -> Iterator[Small]:
    """Retries may join for as long as they may by default."""
    with small_mesh(60) as mesh:
        yield mesh


@pytest.fixture
def impatient() -> Iterator[Small]:
    with small_mesh(1) as mesh:
        yield mesh


def slow(number: int, seconds: float = 0.08) -> str:
    """A program of its own for each number, so that nothing could be shared."""
    return f"import time\ntime.sleep({seconds})\nprint(int(input()) + {number})"


def test_nothing_is_scored_wrong_and_nothing_runs_twice(patient: Small) -> None:
    right = [Case(slow(n), "1", str(n + 1)) for n in range(CALLERS - 3)]
    cases = [*right, Case(slow(-1), "1", "7"), Case("1 / 0", "", ""), Case("while 1: pass", "", "")]
    scored = score_all(patient.url, cases, compile_s=1, run_s=2, callers=CALLERS)
    assert [each.result for each in scored] == [True] * len(right) + [False, RUNTIME_ERROR, RUN_TIMEOUT], scored
    assert {status for each in scored for status in each.statuses} == {200, 504}, "the mesh was not overloaded"
    assert executions(patient.mesh) == len(cases)


def late(futures: list[Future[Scored]]) -> list[Scored]:
    return [future.result(120) for future in futures]


async def test_retries_join_what_their_first_calls_began(small: Small) -> None:
    blocker = small.occupy()
    with ThreadPoolExecutor(3) as pool:
        twins = [Case(slow(1), "1", "2"), Case(slow(1), "1", "2"), Case(slow(2), "1", "3")]
        futures = [pool.submit(score, small.url, case, compile_s=0.5, run_s=0.5) for case in twins]
        await until(lambda: small.unanswered() == 4)
        await until(lambda: told_to_retry(small) == 3)
        small.release(blocker)
        scored = late(futures)
    assert [each.result for each in scored] == [True] * 3
    assert [each.statuses for each in scored] == [[504, 200]] * 3
    assert executions(small.mesh) == 5, "three programs and what blocked them"


def told_to_retry(small: Small) -> int:
    """Actions whose callers got 504 and that a retry may join."""
    with redis.Redis.from_url(small.redis_url) as client:
        return sum(int(client.llen(key)) for key in client.scan_iter("retry:*"))


async def test_what_nobody_comes_back_for_is_cancelled(small: Small) -> None:
    blocker = small.occupy()
    reply = await asyncio.to_thread(posted, small.url, Case(slow(1), "1", "2"), compile_s=0.5, run_s=0.5)
    assert reply.status_code == 504
    assert small.unanswered() == 2
    await until(lambda: small.unanswered() == 1)
    small.release(blocker)
    await until(lambda: small.unanswered() == 0)
    assert executions(small.mesh) == 2, "the blocker alone"


def test_a_call_that_cannot_be_served_in_time_is_told_so_at_once(impatient: Small) -> None:
    known = Case(slow(0, 1.0), "1", "1")
    assert (
        score(impatient.url, known, compile_s=1, run_s=2).result is True
    )  # now a second is what they are known to take
    crowd = [Case(slow(n, 1.0), "1", str(n + 1)) for n in range(1, 25)]
    with ThreadPoolExecutor(len(crowd)) as pool:
        replies = list(pool.map(lambda case: posted(impatient.url, case, compile_s=1, run_s=2), crowd))
    assert {reply.status_code for reply in replies} == {200, 504}
    assert any("would start after its deadline" in reply.text for reply in replies)


def posted(url: str, case: Case, *, compile_s: float, run_s: float) -> requests.Response:
    body: dict[str, Any] = {"code": case.code, "stdin": case.stdin, "compile_timeout": compile_s, "run_timeout": run_s}
    return requests.post(url, json=body, timeout=60)
