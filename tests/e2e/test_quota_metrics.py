"""Metrics of quotas on a real mesh: what known callers hold, who waits, and how providers answer."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from shared.policy.resources.brakes import MOST_FAILURES
from tests.e2e.processes import Service
from tests.e2e.replicas import Mesh, running_mesh, until
from tests.e2e.upstream import CallingMesh, calling_mesh, running_upstream
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.requests import QuotaRate
from treadle.testing.servers import running_valkey

Values = dict[tuple[str, ...], float]
"""Values of a metric, by the values of its labels in order of their names."""

HELD = "treadle_proxy_quota_held"
WAITING = "treadle_proxy_quota_waiting_actions"
UPSTREAM = "treadle_proxy_quota_upstream"
UPSTREAM_ANSWERS = "treadle_proxy_upstream_answers_total"
CALLS = "treadle_quota_manager_calls"
ANSWERS = "treadle_quota_manager_answers_total"
LATE_S = 90
WAIT_S = 60.0


def values(service: Service, name: str) -> Values:
    """Return the values of a metric that are not 0."""
    with urllib.request.urlopen(service.url + "/metrics", timeout=10) as response:
        families = text_string_to_metric_families(response.read().decode())
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {tuple(value for _, value in sorted(one.labels.items())): one.value for one in samples if one.value}


async def shows(service: Service, expected: dict[str, Values]) -> None:
    """Wait until the metrics have the expected values, and no others."""

    def found() -> dict[str, Values]:
        return {name: values(service, name) for name in expected}

    with contextlib.suppress(TimeoutError):
        await until(lambda: found() == expected)
    assert found() == expected


def quotas(held: dict[str, float], waiting: dict[str, int]) -> dict[str, Values]:
    """Return the expected gauges of the leader."""
    return {
        HELD: {(name,): amount for name, amount in held.items()},
        WAITING: {(name,): float(count) for name, count in waiting.items()},
    }


NOTHING = quotas({}, {})


class Holders:
    """Callers of leases. Each holds its lease until it is released."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group

    def begin(self, client: AsyncTreadle, amounts: dict[str, float]) -> Callable[[], None]:
        """Start a caller. Returns the function that releases its lease."""
        released = asyncio.Event()

        async def hold() -> None:
            async with client.quota(amounts, wait_s=WAIT_S):
                await released.wait()

        self._group.create_task(hold())
        return released.set


@pytest.fixture
def mesh(stack_home: Path) -> Iterator[Mesh]:
    with running_valkey(stack_home) as url, running_mesh(url, proxies=2, managers=0) as running:
        yield running


async def test_the_gauges_show_the_amounts_of_leases_and_the_callers_that_wait(mesh: Mesh) -> None:
    leader, other = mesh.proxies
    async with (
        AsyncTreadle(other.url, tenant="ada") as ada,
        AsyncTreadle(leader.url, tenant="bob") as bob,
        asyncio.timeout(LATE_S),
        asyncio.TaskGroup() as group,
    ):
        holders = Holders(group)
        await ada.quotas.set("search", concurrency=4)
        await ada.quotas.set("tokens", rates=[QuotaRate(limit=100, period_s=86_400)])
        await shows(leader, NOTHING)

        held = [holders.begin(ada, {"search": 2, "tokens": 30}), holders.begin(bob, {"search": 1.5})]
        await shows(leader, quotas({"search": 3.5, "tokens": 30}, {}))

        waiting = [
            holders.begin(ada, {"search": 1}),
            holders.begin(ada, {"search": 1}),
            holders.begin(bob, {"search": 2, "tokens": 10}),
        ]
        await shows(leader, quotas({"search": 3.5, "tokens": 30}, {"search": 3, "tokens": 1}))
        view = await ada.quotas.view("search")
        by_tenant = {tenant: (one.actions, one.amount) for tenant, one in view.waiting.items()}
        assert by_tenant == {"ada": (2, 2.0), "bob": (1, 2.0)}
        await shows(other, NOTHING)

        for release in held:
            release()
        await shows(leader, quotas({"search": 4, "tokens": 10}, {}))

        for release in waiting:
            release()
        await shows(leader, NOTHING)
        (rate,) = (await ada.quotas.view("tokens")).rates
        assert rate.taken == pytest.approx(40, abs=0.2), "what was taken of a rate is not given back"


async def test_the_gauges_are_those_of_the_leader_alone(mesh: Mesh) -> None:
    former, following = mesh.proxies
    async with AsyncTreadle(following.url) as client, asyncio.timeout(LATE_S), asyncio.TaskGroup() as group:
        holders = Holders(group)
        await client.quotas.set("search", concurrency=2)
        held = holders.begin(client, {"search": 2})
        await shows(former, quotas({"search": 2}, {}))
        waiting = holders.begin(client, {"search": 0.5})
        await shows(former, quotas({"search": 2}, {"search": 1}))

        former.freeze()
        await shows(following, quotas({"search": 2}, {"search": 1}))
        former.thaw()
        await shows(former, NOTHING)

        held()
        await shows(following, quotas({"search": 0.5}, {}))
        waiting()
        await shows(following, NOTHING)


async def test_a_quota_that_is_neither_held_nor_waited_for_has_no_gauges(mesh: Mesh) -> None:
    leader = mesh.proxies[0]
    async with aiohttp.ClientSession(leader.url) as http, asyncio.timeout(LATE_S):
        async with http.post("/v1/actions", json={"kind": "noop", "quotas": {"absent": 2}}) as reply:
            action = (await reply.json())["id"]
        await shows(leader, quotas({}, {"absent": 1}))
        async with http.delete(f"/v1/actions/{action}") as reply:
            assert reply.ok
        await shows(leader, NOTHING)
        async with http.get("/metrics") as reply:
            assert 'quota="absent"' not in await reply.text()


@pytest.fixture
def calling(stack_home: Path) -> Iterator[CallingMesh]:
    with calling_mesh(stack_home) as running:
        yield running


class Provider:
    """A service that rejects its first calls of a path at once. It answers the others when `answering` is set."""

    def __init__(self) -> None:
        self.rejections: dict[str, list[int]] = {
            "judge": [],
            "broken": [500] * MOST_FAILURES,
            "busy": [429],
            "paid": [402],
        }
        """Path -> statuses of its first calls."""
        self.answering = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        rejections = self.rejections[request.path.removeprefix("/")]
        if rejections:
            return web.json_response({}, status=rejections.pop())
        await self.answering.wait()
        return web.json_response({})


@pytest.mark.slow
async def test_the_metrics_show_calls_of_providers_and_how_they_are_answered(calling: CallingMesh) -> None:
    proxy, manager = calling.mesh.proxies[0], calling.manager
    provider = Provider()
    async with running_upstream() as upstream, AsyncTreadle(calling.url) as client, asyncio.timeout(LATE_S):
        upstream.answer = provider.answer
        for quota in provider.rejections:
            await client.quotas.set(quota, concurrency=2)

        async def call(quota: str) -> str | None:
            params = {"url": f"{upstream.url}/{quota}", "attempts": 1}
            return (await client.run("http", params, quotas={quota: 1})).ended

        def started(quota: str, calls: int) -> list[asyncio.Task[str | None]]:
            return [asyncio.create_task(call(quota)) for _ in range(calls)]

        judged = started("judge", 3)
        await shows(proxy, quotas({"judge": 2}, {"judge": 1}) | {UPSTREAM: {}, UPSTREAM_ANSWERS: {}})
        await shows(manager, {CALLS: {(): 2}, ANSWERS: {}})
        provider.answering.set()
        assert await asyncio.gather(*judged) == ["ok"] * 3
        await shows(proxy, NOTHING | {UPSTREAM: {}, UPSTREAM_ANSWERS: {("ok",): 3}})
        await shows(manager, {CALLS: {}, ANSWERS: {("ok",): 3}})
        provider.answering.clear()

        for _ in range(MOST_FAILURES):
            assert await call("broken") == "upstream-failed"
        await shows(proxy, {UPSTREAM: {("broken", "open"): 1}})
        answered = started("broken", 1)
        await shows(proxy, quotas({"broken": 1}, {}) | {UPSTREAM: {("broken", "half-open"): 1}})
        answered += started("busy", 1)
        states: Values = {("broken", "half-open"): 1, ("busy", "slowed"): 1}
        await shows(proxy, quotas({"broken": 1, "busy": 1}, {}) | {UPSTREAM: states})
        answered += started("busy", 1)
        await shows(proxy, quotas({"broken": 1, "busy": 1}, {"busy": 1}) | {UPSTREAM: states})
        held = started("paid", 1)
        states |= {("paid", "exhausted"): 1}
        await shows(proxy, quotas({"broken": 1, "busy": 1}, {"busy": 1, "paid": 1}) | {UPSTREAM: states})
        answers: Values = {("ok",): 3, ("failed",): MOST_FAILURES, ("pushed-back",): 1, ("exhausted",): 1}
        await shows(proxy, {UPSTREAM_ANSWERS: answers})
        await shows(manager, {CALLS: {(): 2}, ANSWERS: answers})

        provider.answering.set()
        assert await asyncio.gather(*answered) == ["ok"] * 3
        await shows(proxy, quotas({}, {"paid": 1}) | {UPSTREAM: {("paid", "exhausted"): 1}})
        await client.quotas.set("paid", concurrency=2)
        assert await asyncio.gather(*held) == ["ok"]
        answers |= {("ok",): 3 + 4}
        await shows(proxy, NOTHING | {UPSTREAM: {}, UPSTREAM_ANSWERS: answers})
        await shows(manager, {CALLS: {}, ANSWERS: answers})
