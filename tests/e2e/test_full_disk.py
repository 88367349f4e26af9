"""A disk fills up under a running stack: new work is rejected first, accepted work is kept, the stack recovers."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from shared.runtime.stack_state import ServiceState, State
from tests.e2e.full_disk import SmallDisk, small_disk
from tests.e2e.routes import BEGINS_NONE, BEGINS_WORK, RETRIEVE, address, form
from treadle.stack.operate import current_state
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

MEBIBYTE = 1 << 20
DISK_MIB = 400
RESERVE_MIB = 64
SETTINGS = {
    "CPU_MANAGER_ENGINE": "none",
    "PROXY_DISK_RESERVE_MIB": str(RESERVE_MIB),
    "PROXY_NODE_LOST_S": "30",
}
COUNT = 12
STARTS = 4
"""Starts of Valkey on the full disk."""
WAIT_S = 120
RECOVERY_S = 60
"""The promise: accepted work is answered at most so long after space was freed."""
SLOW = "import time\ntime.sleep(3)\nprint({number})"

Json = dict[str, Any]

TASK = {"stages": [{"name": "tests", "kind": "noop"}]}


@pytest.fixture(scope="module")
def disk() -> Iterator[SmallDisk]:
    with temporary_home() as root, small_disk(root, mebibytes=DISK_MIB) as mounted:
        yield mounted


@pytest.fixture(scope="module")
def stack(disk: SmallDisk) -> Iterator[RunningStack]:
    with running_stack(disk.root / "home", environ=SETTINGS) as running:
        yield running
        disk.free()
        for name in ("treadle", "valkey", "proxy"):
            sys.stderr.write(f"---- {name}\n{running.log(name)[-10_000:]}\n")


@pytest.fixture
async def http(stack: RunningStack, disk: SmallDisk) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=60, sock_connect=10)
    async with aiohttp.ClientSession(stack.urls["proxy"], timeout=timeout) as session:
        yield session
    disk.free()


def program(number: int) -> Json:
    params = {"code": SLOW.format(number=number)}
    return {"kind": "code.run", "params": params, "timeout_s": 60, "request_id": f"n{number}"}


async def submit(http: aiohttp.ClientSession, number: int) -> tuple[int, Json, str]:
    """(status, body, Retry-After) of a submission that waits for nothing."""
    async with http.post("/v1/actions", json=program(number)) as response:
        return response.status, await response.json(content_type=None), response.headers.get("Retry-After", "")


async def accept(http: aiohttp.ClientSession, number: int) -> str:
    """The action of a program, once it is accepted."""
    async with asyncio.timeout(WAIT_S):
        while True:
            status, body, _ = await submit(http, number)
            if status in (200, 202):
                return str(body["id"])
            assert status == 503, body
            await asyncio.sleep(0.2)


async def answered(http: aiohttp.ClientSession, actions: dict[int, str], within_s: float = WAIT_S) -> None:
    """Wait until every action has its own right answer."""
    async with asyncio.timeout(within_s):
        for number, action in actions.items():
            answer: Json = {}
            while answer.get("state") != "finished":
                async with http.get(f"/v1/actions/{action}?wait=10") as response:
                    answer = await response.json(content_type=None)
                    assert response.status in (200, 202, 503), answer
                await asyncio.sleep(0.1)
            assert answer["ended"] == "ok", answer
            assert answer["output"]["run_result"]["stdout"] == f"{number}\n", answer


def valkey_of(stack: RunningStack) -> ServiceState:
    """State of Valkey in `treadle status`."""
    state = current_state(stack.home.root)
    assert state is not None, "the supervisor has ended"
    return next(service for service in state.services if service.name == "valkey")


async def until_valkey(stack: RunningStack, *, healthy: bool) -> None:
    async with asyncio.timeout(WAIT_S):
        while (valkey_of(stack).state is State.HEALTHY) is not healthy:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def opened(http: aiohttp.ClientSession) -> dict[str, str]:
    """Names for the paths, of a task, a batch, and a trajectory with a shell."""
    for name, body in (("known", TASK), ("retrieve", RETRIEVE)):
        async with http.put(f"/v1/tasks/{name}", json=body) as response:
            assert response.status == 200, await response.text()
    async with http.post("/v1/tasks/known/batches", json={"key": "before"}) as response:
        batch = (await response.json())["id"]
    async with http.post("/v1/trajectories", json={"environment": {}}) as response:
        trajectory = (await response.json())["id"]
    created = f"/v1/trajectories/{trajectory}/swerex/create_session"
    async with http.post(created, json={"session_type": "bash", "session": "default"}) as response:
        assert response.status == 200, await response.text()
    return {"tenant": "default", "task": "known", "batch": batch, "trajectory": trajectory}


async def test_the_list_has_every_route_that_begins_work(stack: RunningStack, http: aiohttp.ClientSession) -> None:
    async with http.get("/openapi.json") as response:
        paths = (await response.json())["paths"]
    assert {path for path, verbs in paths.items() if {"post", "put", "patch"} & verbs.keys()} == {
        *BEGINS_WORK,
        *BEGINS_NONE,
    }


async def test_new_work_is_refused_before_the_disk_is_full(
    stack: RunningStack, disk: SmallDisk, http: aiohttp.ClientSession
) -> None:
    first = await accept(http, 0)
    names = await opened(http)
    disk.fill(but_bytes=RESERVE_MIB * MEBIBYTE)
    actions = {0: first}
    for number in range(1, 100):
        status, problem, retry_after = await submit(http, number)
        if status == 503:
            break
        actions[number] = problem["id"]  # the disk has not been measured since
        await asyncio.sleep(0.2)
    assert problem["title"] == "Overloaded"
    assert f"the disk of the stores ({stack.home.root}" in problem["detail"]
    assert int(retry_after) > 0
    for path, body in BEGINS_WORK.items():
        sent = {"data": form()} if path.endswith("/upload") else {"json": body}
        async with http.post(address(path, names), **sent) as response:
            text = await response.text()
            expected = 504 if path.endswith("/run_code") else 200 if path.endswith("/bulk") else 503
            assert (response.status, "the disk of the stores" in text) == (expected, True), (path, text)
    async with http.post("/v1/tasks/known/batches", json={"key": "before"}) as response:
        assert (response.status, (await response.json())["id"]) == (200, names["batch"]), "what was opened is known"
    status, repeated, _ = await submit(http, 0)
    assert (status in (200, 202), repeated["id"]) == (True, first), "what was accepted is still known"
    await answered(http, actions)
    disk.free()
    await answered(http, {100: await accept(http, 100)})


async def test_accepted_work_is_answered_after_a_full_disk(
    stack: RunningStack, disk: SmallDisk, http: aiohttp.ClientSession
) -> None:
    actions = {number: await accept(http, number) for number in range(200, 200 + COUNT)}
    disk.fill()
    await until_valkey(stack, healthy=False)
    # Kept full until later processes of Valkey have started on the full disk too.
    async with asyncio.timeout(WAIT_S):
        while stack.log("treadle").count("valkey ended") < STARTS:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert stack.supervisor.poll() is None
    disk.free()
    began = time.monotonic()
    await answered(http, actions, within_s=RECOVERY_S)
    sys.stderr.write(f"answered {time.monotonic() - began:.1f} s after space was freed\n")
    await until_valkey(stack, healthy=True)
    assert "the state is written again" in stack.log("treadle")
    await answered(http, {300: await accept(http, 300)})
