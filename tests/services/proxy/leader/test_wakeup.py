"""The leader notices a refill of a quota without any message."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress

import pytest
from msgspec.structs import replace

from services.proxy.leader import flushing
from services.proxy.leader.leader import Leader
from services.proxy.leader.wakeup import MOST_UNREAD_S, Wakeup
from shared.bus.connection import ValkeyClock
from shared.messages.quotas import QUOTA_CHANGES, QuotaChanged
from shared.policy.model.quotas import QuotaLimits, Rate
from tests.services.proxy.mesh import (
    WriteRecorder,
    entry,
    from_node,
    granted,
    hello,
    inventory,
    journalled,
    leader_of,
    stage,
    submitted,
)
from tests.shared.bus.soon import soon

TWICE_A_SECOND = QuotaLimits(rates=(Rate(1.0, 0.5),))


@pytest.fixture
def clock() -> ValkeyClock:
    return ValkeyClock(time.time() - time.monotonic())


def waits_for_a_refill(recorder: WriteRecorder, clock: ValkeyClock) -> Leader:
    """Return a leader with one granted action and one that waits until a quota is refilled. It has just read."""
    leader = leader_of(recorder, clock)
    leader.last_read = now = clock.unix()
    search = replace(stage(), quotas={"search": 1.0})
    quota = QuotaChanged(name="search", limits=TWICE_A_SECOND)
    leader.take([from_node(hello(), at=now), from_node(inventory(), at=now), entry(QUOTA_CHANGES, quota, at=now)])
    leader.take([journalled(submitted(name, search), at=now) for name in ("a", "b")])
    assert [one.action for one in granted(recorder.take())] == ["a"]
    return leader


async def test_a_refill_is_noticed_while_nothing_is_read(clock: ValkeyClock) -> None:
    recorder = WriteRecorder()
    leader = waits_for_a_refill(recorder, clock)
    assert clock.unix() < leader.dispatcher.next_wake_s < math.inf
    waking = asyncio.create_task(leader.wakeup.run(leader.tick, lambda: leader.last_read))

    await soon(lambda: _is([one.action for one in granted(recorder.writes)] == ["b"]))
    assert leader.dispatcher.next_wake_s == math.inf
    waking.cancel()


async def test_nothing_is_handled_while_nothing_can_be_read(clock: ValkeyClock) -> None:
    wakeup, ticks, read_s = Wakeup(clock), list[float](), clock.unix() - MOST_UNREAD_S
    running = asyncio.create_task(wakeup.run(ticks.append, lambda: read_s))
    wakeup.at(clock.unix())
    await asyncio.sleep(0.05)
    assert ticks == []
    read_s = clock.unix()
    await soon(lambda: _is(bool(ticks)))
    running.cancel()


async def test_time_grants_nothing_while_a_flush_is_late(clock: ValkeyClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a rate is exceeded when the store answers again: all grants reach their callers at once."""
    monkeypatch.setattr(flushing, "LATE_S", 0.02)
    recorder = WriteRecorder()
    leader = waits_for_a_refill(recorder, clock)
    waking = asyncio.create_task(leader.wakeup.run(leader.tick, clock.unix))
    with recorder.flushing:
        await asyncio.sleep(0.7)
        assert leader.dispatcher.next_wake_s < clock.unix()
        assert granted(recorder.writes) == []
    await soon(lambda: _is([one.action for one in granted(recorder.writes)] == ["b"]))
    waking.cancel()


async def test_a_wake_up_may_move_and_be_cancelled(clock: ValkeyClock) -> None:
    wakeup, woken = Wakeup(clock), asyncio.Event()

    def wake(_: float) -> None:
        woken.set()
        wakeup.at(math.inf)

    running = asyncio.create_task(wakeup.run(wake, clock.unix))
    wakeup.at(clock.unix() + 1000.0)
    await asyncio.sleep(0)
    wakeup.at(clock.unix() + 0.01)
    async with asyncio.timeout(20):
        await woken.wait()
    woken.clear()
    wakeup.at(clock.unix() + 0.01)
    wakeup.at(math.inf)
    with suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await woken.wait()
    assert not woken.is_set()
    running.cancel()


async def _is(found: bool) -> bool:
    return found
