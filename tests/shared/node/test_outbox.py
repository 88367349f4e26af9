"""All outcomes are published, in order, with retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from shared.bus import functions
from shared.bus.connection import command, connect
from shared.messages.outcomes import OUTCOMES, Finished, Outcome, Started
from shared.node.outbox import GATHER_MOST, MOST_AT_ONCE, Outbox
from shared.policy.model.results import AttemptResult
from tests.shared.bus.flaky import Flaky
from tests.shared.bus.soon import soon


@pytest.fixture
async def valkey(redis_url: str) -> AsyncIterator[Redis]:
    async with connect(redis_url, name="test") as redis:
        await functions.load(redis)
        yield redis


def outcomes(first: int, last: int) -> list[Outcome]:
    return [Started(action=f"a{number:05}", node="n", epoch=1, attempt=1) for number in range(first, last)]


async def reported(redis: Redis) -> list[Outcome]:
    return [OUTCOMES.decode(fields[1]) for _, fields in await command(redis, "XRANGE", OUTCOMES.name, "-", "+")]


@asynccontextmanager
async def running(box: Outbox) -> AsyncIterator[None]:
    task = asyncio.create_task(box.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_outcomes_are_published_in_the_order_of_put(valkey: Redis) -> None:
    box = Outbox(valkey)
    async with running(box):
        for outcome in outcomes(0, 1000):
            box.put(outcome)

        async def all_published() -> bool:
            return len(await reported(valkey)) == 1000

        await soon(all_published)

    assert await reported(valkey) == outcomes(0, 1000)


async def test_nothing_is_lost_and_the_order_holds_while_valkey_is_away(valkey: Redis) -> None:
    flaky = Flaky(valkey)
    flaky.failures = ["before", "after", None, "before", None, "after"]
    box = Outbox(flaky)
    sent = outcomes(0, 4 * MOST_AT_ONCE)
    async with running(box):
        for outcome in sent:
            box.put(outcome)

        async def all_published() -> bool:
            return sent[-1] in await reported(valkey)

        await soon(all_published)

    assert list(dict.fromkeys(await reported(valkey))) == sent, "some are repeated, none is out of order"


async def test_a_flush_publishes_all_outcomes(valkey: Redis) -> None:
    box = Outbox(valkey)
    for outcome in outcomes(0, 3 * MOST_AT_ONCE + 1):
        box.put(outcome)

    await box.flush()

    assert await reported(valkey) == outcomes(0, 3 * MOST_AT_ONCE + 1)


async def test_two_flushes_at_the_same_time_neither_lose_nor_repeat_outcomes(valkey: Redis) -> None:
    """A stopping node flushes while its loop still does."""
    box = Outbox(valkey)
    async with running(box):
        for round_ in range(20):
            for outcome in outcomes(100 * round_, 100 * round_ + 100):
                box.put(outcome)
            await asyncio.sleep(0)
            await asyncio.gather(box.flush(), box.flush())

    assert await reported(valkey) == outcomes(0, 2000)


async def test_a_cancelled_flush_keeps_its_outcomes(valkey: Redis) -> None:
    flaky = Flaky(valkey)
    flaky.failures = ["before"] * 1000
    box = Outbox(flaky)
    for outcome in outcomes(0, 3):
        box.put(outcome)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await box.flush()

    flaky.failures = []
    await box.flush()
    assert await reported(valkey) == outcomes(0, 3)


async def test_it_is_ready_until_too_many_outcomes_wait(valkey: Redis) -> None:
    box = Outbox(valkey)
    for outcome in outcomes(0, 16 * MOST_AT_ONCE - 1):
        box.put(outcome)
    assert box.ready()
    box.put(outcomes(0, 1)[0])
    assert not box.ready()

    await box.flush()
    assert box.ready()


def verdicts(count: int) -> list[Finished]:
    return [
        Finished(
            action=f"a{number}", node="n", incarnation="1", epoch=1, attempt=1, stage=0, result=AttemptResult("ok")
        )
        for number in range(count)
    ]


async def test_outcomes_gather_while_the_node_has_enough_work(valkey: Redis) -> None:
    box = Outbox(valkey)
    box.may_gather = lambda: True
    async with running(box):
        for outcome in verdicts(GATHER_MOST - 1):
            box.put(outcome)
            await asyncio.sleep(0)
        assert await reported(valkey) == []

        async def all_published() -> bool:
            return len(await reported(valkey)) == GATHER_MOST - 1

        await soon(all_published)


@pytest.mark.parametrize("last", ["one more", "a core is idle", "no verdict"])
async def test_gathering_ends_when_it_does_not_help(valkey: Redis, last: str) -> None:
    box = Outbox(valkey)
    box.may_gather = lambda: True
    few = verdicts(GATHER_MOST)
    for outcome in few[: -1 if last == "one more" else 3]:
        box.put(outcome)
    assert not box.due()
    if last == "a core is idle":
        box.may_gather = lambda: False
    box.put(outcomes(0, 1)[0] if last == "no verdict" else few[-1])
    assert box.due()
