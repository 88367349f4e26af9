"""Calls that change something while Valkey is silent: each ends with 503, and its repeat is done once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import pytest
import redis

from tests.e2e.replicas import Mesh, running_mesh
from tests.e2e.routes import BEGINS_NONE, BEGINS_WORK, RETRIEVE, address, form
from treadle.testing.servers import running_valkey, temporary_home

Json = dict[str, Any]

TASK = {"stages": [{"name": "tests", "kind": "noop"}]}
LATE_S = 120
"""Every wait ends long before."""
OTHERS: dict[str, Json] = {
    "/v1/actions/{id}/park": {},
    "/v1/actions/{id}/resume": {},
    "/v1/leases/{id}/renew": {"fence": 1},
    "/v1/leases/{id}/release": {"fence": 1},
    "/v1/leases/{id}/settle": {"fence": 1, "used": {"search": 1}},
    "/v1/tasks/{task}": TASK,
    "/v1/tenants/{tenant}": {"weight": 2.0},
    "/v1/quotas/{quota}": {"concurrency": 2},
    "/v1/services/{service}": {"entry": "judge-a"},
    "/v1/trajectories/{trajectory}": {"priority": 1.0},
    "/v1/batches/{batch}/progress": {"generating": 1},
    "/v1/batches/{batch}/seal": {},
    "/v1/trajectories/{trajectory}/swerex/close": {},
}
METHODS = {
    "/v1/tasks/{task}": "PUT",
    "/v1/tenants/{tenant}": "PUT",
    "/v1/quotas/{quota}": "PUT",
    "/v1/services/{service}": "PUT",
    "/v1/trajectories/{trajectory}": "PATCH",
}
"""Methods of `OTHERS` if not POST."""
DELETED = (
    "/v1/tasks/{task}",
    "/v1/tenants/{tenant}",
    "/v1/quotas/{quota}",
    "/v1/services/{service}",
    "/v1/batches/{batch}",
    "/v1/actions/{action}",
    "/v1/trajectories/{trajectory}",
)


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with temporary_home() as home, running_valkey(home) as url:
        yield url


@pytest.fixture(scope="module")
def mesh(store: str) -> Iterator[Mesh]:
    with running_mesh(store, proxies=1, managers=1, cores=1) as running:
        yield running


@pytest.fixture
async def http(mesh: Mesh) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=LATE_S)
    async with aiohttp.ClientSession(mesh.proxies[0].url, timeout=timeout, connector=connector) as session:
        yield session


@contextmanager
def silent(store: str) -> Iterator[None]:
    """Valkey holds its connections and answers nothing."""
    with redis.Redis.from_url(store) as client:
        pid = int(client.info("server")["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def opened(http: aiohttp.ClientSession, name: str) -> dict[str, str]:
    """Names for the paths: a task, a batch, an action, a trajectory with a shell."""

    async def post(path: str, body: Json) -> str:
        async with http.post(path, json=body) as response:
            assert response.status < 300, await response.text()
            return str((await response.json()).get("id", ""))

    for declared, body in ((name, TASK), ("retrieve", RETRIEVE)):
        async with http.put(f"/v1/tasks/{declared}", json=body) as response:
            assert response.status == 200, await response.text()
    trajectory = await post("/v1/trajectories", {"environment": {"memory_mb": 64}})
    shell = {"session_type": "bash", "session": "default"}
    await post(f"/v1/trajectories/{trajectory}/swerex/create_session", shell)
    action = await post("/v1/actions", {"kind": "noop"})
    return {
        "tenant": "default",
        "quota": "search",
        "service": "judge-a",
        "task": name,
        "batch": await post(f"/v1/tasks/{name}/batches", {}),
        "action": action,
        "id": action,
        "trajectory": trajectory,
    }


async def test_calls_end_with_503_and_retry_after(http: aiohttp.ClientSession, store: str) -> None:
    assert set(OTHERS) == BEGINS_NONE
    names = await opened(http, "known")

    async def ends_so(method: str, path: str, body: Json) -> None:
        sent: Any = {"data": form()} if path.endswith("/upload") else {"json": body}
        async with http.request(method, address(path, names), **sent) as response:
            text = await response.text()
            assert "Valkey" in text, (path, text)
            if path.endswith("/bulk"):  # each of its lines has an answer of its own
                receipt = json.loads(text)
                assert (response.status, receipt["accepted"], receipt["repeated"]) == (200, 0, 0), text
                assert receipt["rejected"][0]["problem"]["status"] == 503, text
                return
            expected = 504 if path.endswith("/run_code") else 503
            assert (response.status, response.content_type) == (expected, "application/problem+json"), (path, text)
            assert expected == 504 or int(response.headers["Retry-After"]) > 0, (path, response.headers)

    with silent(store):
        calls = [ends_so("POST", path, body) for path, body in BEGINS_WORK.items()]
        calls += [ends_so(METHODS.get(path, "POST"), path, body) for path, body in OTHERS.items()]
        calls += [ends_so("DELETE", path, {}) for path in DELETED]
        await asyncio.gather(*calls)


async def test_a_repeat_with_the_same_id_is_done_once(http: aiohttp.ClientSession, store: str) -> None:
    names = await opened(http, "repeated")
    calls: dict[str, tuple[str, Json]] = {
        "action": ("/v1/actions", {"kind": "noop", "request_id": "once"}),
        "reward": (f"/v1/rewards?batch={names['batch']}", {"task": "repeated", "params": {}, "request_id": "once"}),
        "batch": ("/v1/tasks/repeated/batches", {"key": "once"}),
        "trajectory": ("/v1/trajectories", {"environment": {"memory_mb": 64}, "request_id": "once"}),
    }

    async def send(path: str, body: Json) -> tuple[int, Json]:
        async with http.post(path, json=body) as response:
            return response.status, await response.json(content_type=None)

    with silent(store):
        refused = await asyncio.gather(*(send(*call) for call in calls.values() for _ in range(2)))
        assert [status for status, _ in refused] == [503] * len(refused), refused

    done: dict[str, set[str]] = {}
    for name, call in calls.items():
        for _ in range(3):
            async with asyncio.timeout(LATE_S):
                while (answer := await send(*call))[0] == 503:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            assert answer[0] < 300, (name, answer)
            done.setdefault(name, set()).add(str(answer[1]["id"]))
    assert {name: len(ids) for name, ids in done.items()} == dict.fromkeys(calls, 1), done

    async with http.post(f"/v1/batches/{names['batch']}/seal") as response:
        assert response.status == 200, await response.text()
    async with http.get(f"/v1/batches/{names['batch']}/results?follow=true") as response:
        lines = [line async for line in response.content]
    assert len(lines) == 1, lines
    async with http.get("/v1/trajectories?limit=1000") as response:
        open_now = (await response.json())["trajectories"]
    assert [one["id"] for one in open_now if one["request_id"] == "once"] == list(done["trajectory"])
    with redis.Redis.from_url(store) as client:
        async with asyncio.timeout(LATE_S):
            while client.xlen("actions"):  # noqa: ASYNC110  # every entry of the journal is answered
                await asyncio.sleep(0.2)
