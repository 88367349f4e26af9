"""Calls of an external service while quota manager, leader and Valkey are killed with SIGKILL. The service counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator

import msgspec
import pytest

from tests.e2e.call_count import CallCount
from tests.e2e.trainer import trainer_at
from tests.e2e.upstream import LOOPBACK, Upstream, running_upstream
from treadle.client.answers import Answer, QuotaView
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.requests import QuotaRate
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

KILLED = ("quota_manager", "proxy", "valkey") * 2
CALL_S = 0.2
CALLERS = 12
CONCURRENCY = 4
PER_S, BURST = 3.0, 90.0
"""The burst is refilled in 30 s, which is longer than an outage. So a leader that forgets what was taken gives more."""
SPENT_S = 0.25
"""Time without an arrival that shows a spent burst: less than the 0.33 s between two calls of the rate."""
BUDGET = 100_000.0
WAIT_S = 60
SETTINGS = {
    "QUOTA_MANAGER_ALLOW_ADDRESSES": LOOPBACK,
    "QUOTA_MANAGER_HEARTBEAT_S": "0.4",
    "PROXY_LEASE_S": "2",
    "PROXY_NODE_LOST_S": "15",
}
"""On a busy machine a node may be silent for longer than usual: every loss here must come from a kill."""


@pytest.fixture
def stack() -> Iterator[RunningStack]:
    with temporary_home() as root, running_stack(root, services="proxy,quota_manager", environ=SETTINGS) as running:
        yield running


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with running_upstream() as running:
        yield running


class Callers:
    """Callers that each run one action after the other until they are stopped."""

    def __init__(self, client: AsyncTreadle, url: str) -> None:
        self._client = client
        self._url = url
        self._stopping = False
        self.answers: dict[str, Answer] = {}
        """Name of each accepted action -> its answer."""

    async def run(self, caller: int) -> None:
        number = 0
        while not self._stopping:
            name = f"{caller}-{number}"
            params = {"url": f"{self._url}/{name}"}
            self.answers[name] = await self._client.run("http", params, request_id=name, quotas={"search": 1})
            number += 1

    def stop(self) -> None:
        self._stopping = True


async def soon(true: Callable[[], bool]) -> None:
    """Wait until a condition of this process holds. Nothing else runs between its check and the return."""
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110  # polls counters
            await asyncio.sleep(0.005)


async def until_quota(client: AsyncTreadle, true: Callable[[QuotaView], bool]) -> QuotaView:
    """Wait until the condition holds for the quota."""
    async with asyncio.timeout(WAIT_S):
        while not true(view := await client.quotas.view("search")):  # noqa: ASYNC110  # polls the mesh
            await asyncio.sleep(0.1)
        return view


async def kill_in_turn(stack: RunningStack, client: AsyncTreadle, count: CallCount) -> None:
    """Kill each part with a call under way while the rate limits, and wait until calls arrive again."""
    for name in KILLED:
        await until_quota(client, lambda view: view.rates[0].free < 1)
        await soon(lambda: count.idle_s > SPENT_S)
        await soon(lambda: count.inside > 0)
        pid = stack.kill(name)
        await asyncio.to_thread(stack.await_healthy, name, other_than=pid)
        arrived = len(count.paths)
        await soon(lambda arrived=arrived: len(count.paths) > arrived + CONCURRENCY)  # type: ignore[misc]


@pytest.mark.slow
async def test_the_provider_counts_no_call_over_its_limits_although_parts_are_killed(
    stack: RunningStack, upstream: Upstream
) -> None:
    count = CallCount(CALL_S)
    upstream.answer = count.answer
    rates = [QuotaRate(limit=PER_S, period_s=1, burst=BURST), QuotaRate(limit=BUDGET)]
    async with AsyncTreadle(stack.urls["proxy"]) as client:
        await client.quotas.set("search", concurrency=CONCURRENCY, rates=rates)
        callers = Callers(client, upstream.url)
        async with asyncio.TaskGroup() as group:
            for number in range(CALLERS):
                group.create_task(callers.run(number))
            await kill_in_turn(stack, client, count)
            callers.stop()
        quota = await until_quota(client, lambda view: not view.held and not view.waiting_actions)
    await check_answers(stack, callers.answers, count)
    assert count.highest == CONCURRENCY, "all of it is used, and no more"
    assert count.burst(PER_S) <= BURST + CONCURRENCY
    repeats = len(count.paths) - len(callers.answers)
    kills = KILLED.count("quota_manager")
    assert kills <= repeats <= kills * CONCURRENCY, "only calls that died with the manager are made again"
    assert len(count.paths) <= quota.rates[1].taken <= len(callers.answers) + kills * CONCURRENCY, "each call has paid"
    assert (quota.held, quota.actions, quota.waiting_actions) == (0.0, 0, 0)


async def check_answers(stack: RunningStack, answers: dict[str, Answer], count: CallCount) -> None:
    """Each action has one answer, which is that of a call of its own and is the same at a repeat."""
    assert Counter(answer.ended for answer in answers.values()) == {"ok": len(answers)}
    assert set(count.paths) == {f"/{name}" for name in answers}
    assert len({answer.id for answer in answers.values()}) == len(answers)
    for name, answer in answers.items():
        assert count.paths[answer.output["json"]["call"]] == f"/{name}"
    async with trainer_at(stack.urls["proxy"]) as trainer:
        for answer in answers.values():
            status, again = await trainer.call("GET", f"/v1/actions/{answer.id}")
            assert (status, msgspec.convert(again, Answer)) == (200, answer)
