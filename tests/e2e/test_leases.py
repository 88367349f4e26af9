"""Leases on a real mesh: an upstream server counts itself, while clients and the leader are killed with SIGKILL."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis

from tests.e2e.call_count import CallCount
from tests.e2e.replicas import Mesh, leads, running_mesh, until
from tests.e2e.upstream import Upstream, running_upstream
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.blocking import Treadle
from treadle.client.errors import LeaseLost, QuotaNever, QuotaTaken
from treadle.client.requests import QuotaRate
from treadle.client.transport import MAX_ACQUIRING
from treadle.lab.bench import lease_caller
from treadle.testing.servers import running_valkey

CALL_S = 0.05
CLIENTS = 8
ROUNDS = 6
SLOTS = 6
PER_S, BURST = 8.0, 60.0
"""The burst is refilled in 7.5 s, longer than an outage takes. So a leader that forgets what was taken gives more."""
RATE = QuotaRate(limit=PER_S, period_s=1, burst=BURST)
LATE_S = 90
LONG = {"quotas": {"search": 1}, "ttl_s": 60, "wait_s": 60}


@pytest.fixture
def mesh(stack_home: Path) -> Iterator[Mesh]:
    with running_valkey(stack_home) as url, running_mesh(url, proxies=2, managers=0) as running:
        yield running


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with running_upstream() as running:
        yield running


@pytest.fixture
def count(upstream: Upstream) -> CallCount:
    """Count of the upstream server."""
    count = CallCount(CALL_S)
    upstream.answer = count.answer
    return count


def started(*args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", lease_caller.__name__, *args])


async def kill_one_each_second(mesh: Mesh, count: CallCount, url: str, *, leader_too: bool) -> None:
    """Run 8 client processes for some seconds. One is killed each second and started again; once, also the leader."""
    urls = [mesh.proxies[1].url] if leader_too else [proxy.url for proxy in mesh.proxies]
    args = [(urls[number % len(urls)], url, "search") for number in range(CLIENTS)]
    clients = [started(*each) for each in args]
    try:
        await until(lambda: len(count.paths) > BURST)  # interpreters start, and a burst is spent
        for number in range(ROUNDS):
            await asyncio.sleep(1.0)
            clients[number % CLIENTS].kill()
            clients[number % CLIENTS].wait()
            clients[number % CLIENTS] = started(*args[number % CLIENTS])
            if leader_too and number == 2:
                mesh.proxies[0].kill()
        if leader_too:
            await until(lambda: leads(mesh.proxies[1]))
            await asyncio.sleep(3.0)
    finally:
        for client in clients:
            client.kill()
        for client in clients:
            client.wait()


async def held(client: AsyncTreadle) -> float:
    return (await client.quotas.view("search")).held


async def until_nothing_is_held(client: AsyncTreadle) -> None:
    async with asyncio.timeout(LATE_S):
        while await held(client):  # noqa: ASYNC110  # polls the mesh
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("leader_too", [False, True])
async def test_the_upstream_is_never_over_its_limit_and_nothing_leaks(
    mesh: Mesh, upstream: Upstream, count: CallCount, leader_too: bool
) -> None:
    async with AsyncTreadle(mesh.proxies[1].url) as client:
        await client.quotas.set("search", concurrency=SLOTS)
        await kill_one_each_second(mesh, count, upstream.url, leader_too=leader_too)
        assert count.highest == SLOTS, "all of it is used, and no more"
        await until_nothing_is_held(client)


@pytest.mark.parametrize("leader_too", [False, True])
async def test_the_upstream_is_never_over_its_rate(
    mesh: Mesh, upstream: Upstream, count: CallCount, leader_too: bool
) -> None:
    async with AsyncTreadle(mesh.proxies[1].url) as client:
        await client.quotas.set("search", concurrency=SLOTS, rates=[RATE])
        await kill_one_each_second(mesh, count, upstream.url, leader_too=leader_too)
        assert count.burst(PER_S) <= BURST + SLOTS
        assert count.highest <= SLOTS
        assert len(count.paths) > BURST + PER_S * ROUNDS * 0.5, "most of it is used"
        await until_nothing_is_held(client)


@pytest.fixture
def on_killed_store(stack_home: Path, exit_stack: ExitStack) -> tuple[str, Mesh]:
    """Address of a store, and a mesh that waits for it."""
    store = exit_stack.enter_context(running_valkey(stack_home))
    return store, exit_stack.enter_context(running_mesh(store, proxies=2, managers=0))


@pytest.mark.parametrize("rates", [(), (RATE,)])
async def test_the_upstream_is_never_over_its_limit_although_the_store_is_killed(
    on_killed_store: tuple[str, Mesh],
    stack_home: Path,
    exit_stack: ExitStack,
    upstream: Upstream,
    count: CallCount,
    rates: tuple[QuotaRate, ...],
) -> None:
    store, mesh = on_killed_store
    async with AsyncTreadle(mesh.proxies[1].url) as client:
        await client.quotas.set("search", concurrency=SLOTS, rates=rates)
        clients = [started(mesh.proxies[number % 2].url, upstream.url, "search") for number in range(CLIENTS)]
        try:
            await until(lambda: len(count.paths) > BURST)
            for _ in range(3):
                with redis.Redis.from_url(store) as connection:
                    process = connection.info("server")["process_id"]
                os.kill(process, signal.SIGKILL)
                await asyncio.sleep(0.5)
                restarted = running_valkey(stack_home)  # in a thread: this loop serves the upstream
                assert await asyncio.to_thread(exit_stack.enter_context, restarted) == store
                calls = len(count.paths)
                await until(lambda calls=calls: len(count.paths) > calls + 2 * CLIENTS)  # type: ignore[misc]
        finally:
            for one in clients:
                one.kill()
            for one in clients:
                one.wait()
        assert count.highest == SLOTS
        assert not rates or count.burst(PER_S) <= BURST + SLOTS
        await until_nothing_is_held(client)


async def test_a_slot_of_a_dead_client_is_free_within_its_time_and_a_second(mesh: Mesh) -> None:
    async with AsyncTreadle(mesh.proxies[1].url) as client, aiohttp.ClientSession(mesh.proxies[0].url) as http:
        await client.quotas.set("search", concurrency=1)
        body = {"quotas": {"search": 1}, "ttl_s": 1.5, "wait_s": 30}
        first = await acquired(http, body)  # and its holder does nothing more
        following = await acquired(http, body)
        freed_s = following["expires_at"] - body["ttl_s"]
        assert first["expires_at"] <= freed_s <= first["expires_at"] + 1.0
        async with http.post(f"/v1/leases/{first['lease']}/release", json={"fence": first["fence"]}) as reply:
            assert reply.status == 409
            assert (await reply.json(content_type=None))["type"].endswith("lease-expired")
        assert await held(client) == 1.0, "the late release has freed nothing"


async def acquired(http: aiohttp.ClientSession, body: dict[str, Any]) -> dict[str, Any]:
    async with asyncio.timeout(LATE_S), http.post("/v1/acquire", json=body) as reply:
        answer: dict[str, Any] = await reply.json(content_type=None)
        assert reply.status == 200, answer
        return answer


@pytest.mark.parametrize("acquired_through", ["the leader", "another replica"])
async def test_held_leases_survive_a_killed_leader(mesh: Mesh, acquired_through: str) -> None:
    leader, other = mesh.proxies
    async with (
        AsyncTreadle(other.url) as client,
        aiohttp.ClientSession(other.url) as http,
        aiohttp.ClientSession(leader.url if acquired_through == "the leader" else other.url) as first,
    ):
        await client.quotas.set("search", concurrency=2, rates=[QuotaRate(limit=100, period_s=86_400)])
        body = {"quotas": {"search": 1}, "ttl_s": 60, "wait_s": 60}
        leases = [await acquired(first, body) for _ in range(2)]
        waiting = asyncio.ensure_future(acquired(http, body))
        released = asyncio.ensure_future(acquired(http, {**body, "request_id": "r"}))
        await asyncio.sleep(0.3)
        leader.kill()
        for lease in leases[:1]:
            async with http.post(f"/v1/leases/{lease['lease']}/release", json={"fence": lease["fence"]}) as reply:
                assert reply.status == 200, "while nobody leads"
        async with asyncio.timeout(LATE_S):
            await asyncio.wait({waiting, released}, return_when=asyncio.FIRST_COMPLETED)
        assert await held(client) == 2.0
        async with http.get(f"/v1/leases/{leases[1]['lease']}") as reply:
            assert (await reply.json(content_type=None))["state"] == "held"
        (rate,) = (await client.quotas.view("search")).rates
        assert rate.taken == pytest.approx(3, abs=0.2), "each lease was counted once"
        waiting.cancel()
        released.cancel()
        await asyncio.wait({waiting, released})


@contextlib.asynccontextmanager
async def one_held_lease(
    mesh: Mesh,
) -> AsyncIterator[tuple[AsyncTreadle, aiohttp.ClientSession, aiohttp.ClientSession, dict[str, Any]]]:
    """A client and a session of the follower, a session of the leader, and the only lease of a quota, held."""
    leader, other = mesh.proxies
    async with (
        AsyncTreadle(other.url) as client,
        aiohttp.ClientSession(other.url) as http,
        aiohttp.ClientSession(leader.url) as first,
    ):
        await client.quotas.set("search", concurrency=1)
        yield client, http, first, await acquired(http, LONG)


async def test_a_caller_that_ended_with_its_proxy_gets_no_lease(mesh: Mesh) -> None:
    leader = mesh.proxies[0]
    async with one_held_lease(mesh) as (client, http, first, lease):
        dying = asyncio.ensure_future(first.post("/v1/acquire", json=LONG))
        await asyncio.sleep(0.5)
        behind = asyncio.ensure_future(acquired(http, LONG))
        await until_both_wait(client)
        leader.kill()
        with pytest.raises(aiohttp.ClientError):
            await dying
        async with http.post(f"/v1/leases/{lease['lease']}/release", json={"fence": lease["fence"]}) as reply:
            assert reply.status == 200
        assert await behind, "the lease of the dead caller would have lasted longer than this one could wait"


async def until_both_wait(client: AsyncTreadle) -> None:
    async with asyncio.timeout(LATE_S):
        while (await client.quotas.view("search")).waiting_actions != 2:  # noqa: ASYNC110  # polls the mesh
            await asyncio.sleep(0.1)


async def test_a_repeat_through_another_replica_finds_its_lease(mesh: Mesh) -> None:
    leader, other = mesh.proxies
    async with one_held_lease(mesh) as (_, http, first, lease):
        dying = asyncio.ensure_future(first.post("/v1/acquire", json={**LONG, "request_id": "r"}))
        await asyncio.sleep(0.5)
        leader.kill()
        with pytest.raises(aiohttp.ClientError):
            await dying
        repeated = asyncio.ensure_future(acquired(http, {**LONG, "request_id": "r"}))
        await until(lambda: leads(other))
        await asyncio.sleep(2.0)  # its proxy is known to have ended
        async with http.post(f"/v1/leases/{lease['lease']}/release", json={"fence": lease["fence"]}) as reply:
            assert reply.status == 200
        assert (await repeated)["lease"] != lease["lease"]


@pytest.fixture
def losing_its_store(stack_home: Path, exit_stack: ExitStack) -> tuple[str, str]:
    """Addresses of a store and of a proxy that waits shortly for it."""
    store = exit_stack.enter_context(running_valkey(stack_home))
    mesh = exit_stack.enter_context(running_mesh(store, proxies=1, managers=0, PROXY_SUBMIT_RETRY_S="0.5"))
    return store, mesh.proxies[0].url


Taken = tuple[float, int, int, float]
"""Of a quota: the amount held, by how many leases, how many callers wait, and what its budget has given."""


async def until_taken(client: AsyncTreadle, expected: dict[str, Taken]) -> None:
    async def taken() -> dict[str, Taken]:
        views = [one for one in await client.quotas.all() if one.name in expected]
        return {one.name: (one.held, one.actions, one.waiting_actions, one.rates[0].taken) for one in views}

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LATE_S):
            while await taken() != expected:  # noqa: ASYNC110  # polls the mesh
                await asyncio.sleep(0.1)
    assert await taken() == expected


async def test_while_the_store_is_away_an_acquire_answers_503_and_takes_nothing(
    losing_its_store: tuple[str, str], stack_home: Path, exit_stack: ExitStack
) -> None:
    url, proxy = losing_its_store
    async with AsyncTreadle(proxy) as client, aiohttp.ClientSession(proxy) as http:
        for quota in ("full", "free", "returned"):
            await client.quotas.set(quota, concurrency=3, rates=[QuotaRate(limit=100)])
        full = await acquired(http, {"quotas": {"full": 3}, "ttl_s": 60})
        returned = await acquired(http, {"quotas": {"returned": 2}, "ttl_s": 60})

        async def assert_away(path: str, body: dict[str, Any]) -> None:
            async with http.post(path, json=body) as answer:
                assert (answer.status, answer.content_type) == (503, "application/problem+json")
                assert int(answer.headers["Retry-After"]) >= 1

        waiting = asyncio.create_task(assert_away("/v1/acquire", {"quotas": {"full": 1}, "wait_s": 5, "ttl_s": 60}))
        await until_taken(client, {"full": (3, 1, 1, 3)})
        with redis.Redis.from_url(url) as store:
            store.shutdown(nosave=True)
        for quota in ("full", "free"):
            await assert_away("/v1/acquire", {"quotas": {quota: 1}, "ttl_s": 60})
        await waiting
        await assert_away(f"/v1/leases/{returned['lease']}/release", {"fence": returned["fence"]})

        assert await asyncio.to_thread(exit_stack.enter_context, running_valkey(stack_home)) == url
        await until_taken(client, {"full": (3, 1, 0, 3), "free": (0, 0, 0, 0)})
        for lease in (full, returned):
            async with http.post(f"/v1/leases/{lease['lease']}/release", json={"fence": lease["fence"]}) as reply:
                assert reply.status == 200
        await acquired(http, {"quotas": {"full": 3, "free": 3, "returned": 3}, "wait_s": 20, "ttl_s": 60})
        await until_taken(client, {"full": (3, 1, 0, 6), "free": (3, 1, 0, 3), "returned": (3, 1, 0, 5)})


async def test_the_clients_block_ends_with_a_lost_lease(mesh: Mesh) -> None:
    async with AsyncTreadle(mesh.proxies[1].url) as client, aiohttp.ClientSession(mesh.proxies[1].url) as http:
        await client.quotas.set("search", concurrency=1)
        async with asyncio.timeout(LATE_S):
            async with client.quota({"search": 1}, ttl_s=1.0) as lease:
                await asyncio.sleep(2.5)  # it is renewed meanwhile
                with pytest.raises(QuotaTaken) as refused:
                    async with client.quota("search", wait_s=0.1):
                        pass
                assert refused.value.retry_after_s is not None
                lease.settle({"search": 0.5})
            with pytest.raises(QuotaNever, match="no quota 'none'"):
                async with client.quota("none"):
                    pass

            async def lose() -> None:
                async with client.quota("search", ttl_s=1.0) as lost:
                    async with http.delete(f"/v1/actions/{lost.id}"):
                        pass
                    await asyncio.sleep(LATE_S)

            with pytest.raises(LeaseLost):
                await lose()
        assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]  # a test is a task


async def test_more_callers_than_connections_wait_and_release(mesh: Mesh) -> None:
    async with AsyncTreadle(mesh.proxies[0].url) as client:
        await client.quotas.set("search", concurrency=8)

        async def call() -> None:
            async with client.quota("search", wait_s=60, ttl_s=5):
                await asyncio.sleep(0.02)

        async with asyncio.timeout(LATE_S), asyncio.TaskGroup() as callers:
            for _ in range(MAX_ACQUIRING + 50):
                callers.create_task(call())
        await until_nothing_is_held(client)


async def test_a_tenant_that_another_quota_limits_leaves_the_rest_to_others(mesh: Mesh) -> None:
    """One slot of the search lets a tenant make three calls a second; the other one has eleven of the API."""
    calls: Counter[str] = Counter()

    async def call(client: AsyncTreadle, tenant: str, quotas: dict[str, float]) -> None:
        while True:
            async with client.quota(quotas, wait_s=60, ttl_s=5):
                await asyncio.sleep(0.3)
            calls[tenant] += 1

    url = mesh.proxies[0].url
    async with (
        AsyncTreadle(url, tenant="ada") as ada,
        AsyncTreadle(url, tenant="bob") as bob,
        asyncio.TaskGroup() as callers,
    ):
        await ada.quotas.set("api", concurrency=12)
        await ada.quotas.set("search", concurrency=1)
        tasks = [callers.create_task(call(ada, "ada", {"api": 1, "search": 1})) for _ in range(12)]
        tasks += [callers.create_task(call(bob, "bob", {"api": 1})) for _ in range(24)]
        await asyncio.sleep(2.0)  # the first calls find free slots
        calls.clear()
        await until(lambda: calls["ada"] >= 8)
        for task in tasks:
            task.cancel()
    assert calls["bob"] >= 4 * calls["ada"]


async def test_the_blocking_client_holds_a_lease(mesh: Mesh) -> None:
    def hold() -> tuple[float, float, bool]:
        with Treadle(mesh.proxies[1].url) as client:
            client.quotas.set("search", concurrency=2)
            with client.quota({"search": 2}, ttl_s=1.0) as lease:
                time.sleep(1.5)
                during, lost = client.quotas.view("search").held, lease.is_lost
                lease.check()
            deadline = time.monotonic() + lease_caller.TTL_S
            while (after := client.quotas.view("search").held) and time.monotonic() < deadline:
                time.sleep(0.02)
            return during, after, lost

    assert await asyncio.to_thread(hold) == (2.0, 0.0, False)
