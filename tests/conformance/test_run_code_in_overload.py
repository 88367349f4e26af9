"""A mesh that is much too small, with verl's retries: late calls are late, never wrong; abandoned calls end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import redis
import requests

from tests.conformance.verl import RUN_ERROR, RUN_TIMEOUT, Case, score_all
from tests.e2e.replicas import Mesh, executions, running_mesh, until
from treadle.testing.servers import running_valkey, temporary_home

MARGIN_S = 1.0
CALLERS = 64


@dataclass(frozen=True, slots=True)
class SmallMesh:
    """One core behind one proxy."""

    mesh: Mesh
    redis_url: str

    @property
    def url(self) -> str:
        return self.mesh.proxies[0].url

    def unanswered(self) -> int:
        """Actions in the journal."""
        with redis.Redis.from_url(self.redis_url) as client:
            return int(client.xlen("actions"))

    def occupy(self) -> str:
        """Occupy the core with an action that was expected to be short and is not; return its id."""
        self._sleep(0.0, wait_s=30)
        return self._sleep(600.0, wait_s=0)

    def release(self, action: str) -> None:
        """Release the core."""
        requests.delete(f"{self.url}/v1/actions/{action}", timeout=30)

    def _sleep(self, seconds: float, *, wait_s: float) -> str:
        body: dict[str, Any] = {
            "kind": "sleep",
            "params": {"seconds": seconds},
            "units": {"cores": 1},
            "timeout_s": 900,
        }
        return str(requests.post(f"{self.url}/v1/actions?wait={wait_s}", json=body, timeout=60).json()["id"])


@contextmanager
def small_mesh(join_s: float) -> Iterator[SmallMesh]:
    settings = {"PROXY_HOLD": "never", "PROXY_RUN_CODE_MARGIN_S": str(MARGIN_S), "PROXY_RUN_CODE_JOIN_S": str(join_s)}
    with (
        temporary_home() as home,
        running_valkey(home) as url,
        running_mesh(url, proxies=1, managers=1, cores=1, **settings) as mesh,
    ):
        yield SmallMesh(mesh, url)


def sleeping(number: int) -> str:
    """A program of its own for each number, so that nothing could be shared."""
    return f"import time\ntime.sleep(0.08)\nprint(int(input()) + {number})"


def case(code: str, expected: str | None = None) -> Case:
    return Case(code=code, stdin="1", expected=expected, compile_s=1, run_s=2)


@pytest.mark.slow
def test_everyone_is_served_in_three_tries_nothing_is_scored_wrong_and_nothing_runs_twice() -> None:
    right = [case(sleeping(n), expected=str(n + 1)) for n in range(CALLERS - 3)]
    wrong = [case(sleeping(-1), expected="7"), case("1 / 0"), case("while 1: pass")]
    with small_mesh(join_s=60) as small:
        scored = score_all(small.url + "/run_code", [*right, *wrong])
        assert [each.score for each in scored] == [True] * len(right) + [False, RUN_ERROR, RUN_TIMEOUT], scored
        assert {status for each in scored for status in each.statuses} == {200, 504}, "the mesh was not overloaded"
        assert executions(small.mesh) == CALLERS


def test_a_call_that_is_not_repeated_is_cancelled() -> None:
    with small_mesh(join_s=3) as small:
        blocker = small.occupy()
        reply = requests.post(small.url + "/run_code", json=case(sleeping(1)).body(), timeout=30)
        assert (reply.status_code, small.unanswered()) == (504, 2)
        asyncio.run(until(lambda: small.unanswered() == 1))
        small.release(blocker)
        asyncio.run(until(lambda: small.unanswered() == 0))
        assert executions(small.mesh) == 2, "the blocker and the short actions before it"
