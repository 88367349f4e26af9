"""Bounds reject new work before it is accepted; accepted work drains, and then new work is accepted again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis

from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import leads, until
from treadle.stack.home import open_home
from treadle.stack.valkey import MEBIBYTE, valkey_answers, valkey_launch, valkey_socket, valkey_url
from treadle.testing.servers import running, running_valkey

Json = dict[str, Any]

MOST = 5
WAIT_S = 60
NOOP = {"kind": "noop"}
BIG = {"kind": "code.asserts", "params": {"code": "#" * 100_000, "tests": "assert True"}}
"""Large as a request, small as an answer: answers stay for an hour."""


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2 * WAIT_S)) as session:
        yield session


async def submit(http: aiohttp.ClientSession, proxy: Service, name: str, action: Json = NOOP) -> tuple[int, Any, Any]:
    body = {**action, "request_id": name}
    async with http.post(f"{proxy.url}/v1/actions", json=body) as response:
        return response.status, response.headers, await response.json(content_type=None)


async def answer(http: aiohttp.ClientSession, proxy: Service, name: str, action: Json = NOOP) -> Any:
    """Answer of the action that was accepted under this name."""
    body = {**action, "request_id": name}
    async with http.post(f"{proxy.url}/v1/actions?wait={WAIT_S}", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def finished(http: aiohttp.ClientSession, proxy: Service, action: str) -> Any:
    async with http.get(f"{proxy.url}/v1/actions/{action}?wait={WAIT_S}") as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_a_full_journal_rejects_new_work_until_it_has_drained(
    stack_home: Path, exit_stack: ExitStack, http: aiohttp.ClientSession
) -> None:
    url = exit_stack.enter_context(running_valkey(stack_home))
    proxy = exit_stack.enter_context(running_service("proxy", url, PROXY_MAX_JOURNAL=str(MOST)))
    await until(lambda: leads(proxy))
    assert [(await submit(http, proxy, str(n)))[0] for n in range(MOST)] == [202] * MOST
    status, headers, problem = await submit(http, proxy, "too many")
    assert (status, problem["type"].rpartition("/")[2]) == (503, "overloaded")
    assert int(headers["retry-after"]) >= 1
    assert (await submit(http, proxy, "0"))[0] == 202, "a repeat needs no room"
    with redis.Redis.from_url(url) as client:
        assert client.xlen("actions") == MOST
    exit_stack.enter_context(running_service("cpu_manager", url))
    assert [(await answer(http, proxy, str(n)))["ended"] for n in range(MOST)] == ["ok"] * MOST
    assert (await answer(http, proxy, "too many"))["ended"] == "ok"


async def test_a_bulk_call_at_the_bound_reports_accepted_and_rejected_lines(
    stack_home: Path, exit_stack: ExitStack, http: aiohttp.ClientSession
) -> None:
    url = exit_stack.enter_context(running_valkey(stack_home))
    proxy = exit_stack.enter_context(running_service("proxy", url, PROXY_MAX_JOURNAL=str(MOST)))
    await until(lambda: leads(proxy))
    async with http.put(f"{proxy.url}/v1/tasks/t", json={"stages": [{"name": "s", "kind": "noop"}]}) as response:
        assert response.status == 200
    lines = "\n".join(f'{{"task": "t", "request_id": "{n}"}}' for n in range(MOST + 3))
    async with http.post(f"{proxy.url}/v1/rewards/bulk", data=lines) as response:
        receipt = await response.json()
    assert (receipt["accepted"], receipt["repeated"]) == (MOST, 0)
    assert [(each["request_id"], each["problem"]["status"]) for each in receipt["rejected"]] == [
        (str(n), 503) for n in range(MOST, MOST + 3)
    ]


async def test_full_memory_rejects_new_work_and_accepted_work_drains(
    stack_home: Path, exit_stack: ExitStack, http: aiohttp.ClientSession
) -> None:
    home = open_home(stack_home)
    launch = valkey_launch(home, maxmemory_bytes=12 * MEBIBYTE)
    exit_stack.enter_context(running(launch, lambda _: valkey_answers(valkey_socket(home))))
    url = valkey_url(home)
    proxy = exit_stack.enter_context(running_service("proxy", url))
    await until(lambda: leads(proxy))
    accepted, refusal = await fill(http, proxy)
    status, headers, problem = refusal
    assert (status, problem["type"].rpartition("/")[2]) == (503, "overloaded")
    assert int(headers["retry-after"]) >= 1
    assert 503 in [await declare(http, proxy, f"t{number}") for number in range(100)], "tasks take memory, too"
    for path, expected in [(f"/v1/actions/{accepted[0]}", 202), ("/v1/batches", 200), ("/v1/nodes", 200)]:
        async with http.get(proxy.url + path) as response:
            assert response.status == expected, (path, await response.text())
    proxy.kill()  # its successor finds memory as full
    proxy = exit_stack.enter_context(running_service("proxy", url))
    await until(lambda: leads(proxy))
    exit_stack.enter_context(running_service("cpu_manager", url))
    ends = await asyncio.gather(*(finished(http, proxy, action) for action in accepted))
    assert [end["ended"] for end in ends] == ["ok"] * len(accepted)
    async with asyncio.timeout(WAIT_S):  # what nodes have read is freed with their next heartbeat
        while True:
            status, headers, _ = await submit(http, proxy, "after", BIG)
            if status != 503:
                break
            await asyncio.sleep(int(headers["retry-after"]))
    assert (await answer(http, proxy, "after", BIG))["passed"] is True


async def declare(http: aiohttp.ClientSession, proxy: Service, task: str) -> int:
    """Status of the declaration of a task."""
    async with http.put(f"{proxy.url}/v1/tasks/{task}", json={"stages": [{"name": "s", "kind": "noop"}]}) as response:
        return response.status


async def fill(http: aiohttp.ClientSession, proxy: Service) -> tuple[list[str], tuple[int, Any, Any]]:
    """(ids of what was accepted, the last refusal).

    What is on its way counts as memory too, so where something large is refused there may be room for something small.
    """
    accepted: list[str] = []
    for action, refusals in ((BIG, 1), (NOOP, 8)):
        refused = 0
        for number in range(2000):
            reply = await submit(http, proxy, f"{action['kind']} {number}", action)
            if reply[0] != 202:
                refused += 1
            else:
                refused = 0
                accepted.append(reply[2]["id"])
            if refused == refusals:
                break
        assert refused == refusals, "memory did not fill"
    return accepted, reply
