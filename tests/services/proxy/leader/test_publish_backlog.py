"""The leader publishes the backlog, every replica reads it; a stuck action has a reason."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from services.proxy.leader import backlog
from services.proxy.leader.backlog import publish_backlog
from services.proxy.records.store import Store, Stored
from services.proxy.records.waiting import reason_of
from shared.bus import backlog as bus_backlog
from shared.bus import functions
from shared.bus.batch_snapshot import read_snapshot
from shared.bus.connection import command
from shared.bus.functions import Advancing, Submission
from shared.messages.actions import ACTIONS, ActionSubmitted
from shared.messages.batch_snapshot import OpenBatchesSnapshot, UnansweredRequests
from shared.policy.dispatch.backlog import Backlog, PoolBacklog, StuckWork
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import ActionCancelled, RequestsSubmitted
from shared.policy.model.formulation import Request, Work
from shared.policy.model.waiting import WaitingReason, WaitingReasons
from tests.services.proxy.mesh import START, StillClock, acting, stage, submitted
from tests.services.proxy.stores import store_over
from tests.shared.bus.flaky import Flaky
from tests.shared.bus.journal import Journal, lead, resign
from tests.shared.bus.soon import soon

WIDE = stage(cores=999)
STUCK = [PoolBacklog("cores@default", 3, [StuckWork("code.run", {"cores": 999}, 1)])]
WHY = WaitingReason(
    "stuck", "no node of class 'default' offers code.run with cores=999 now; it waits for one until its budget ends"
)
NONE = WaitingReason()


@pytest.fixture
def store(valkey: Redis) -> Store:
    return store_over(valkey)


async def submit(journal: Journal, request: ActionSubmitted) -> str:
    item = Submission(request.action, b"", "", ACTIONS.encode(request))
    ((_, entry),) = await functions.journal_actions(journal.redis, [item], max_journal=100)
    return entry


async def reason(store: Store, action: str) -> WaitingReason:
    stored = await store.action(action)
    assert stored is not None
    return await reason_of(store, action, stored)


def reasons(**actions: int) -> WaitingReasons:
    """Reasons of stuck actions. Each: its stage."""
    return WaitingReasons(dict.fromkeys(actions.items(), WHY))


async def test_before_a_leader_has_published_the_backlog_is_empty(store: Store, journal: Journal) -> None:
    await submit(journal, submitted("a", WIDE))

    assert (await store.pools(), await store.stuck(), await reason(store, "a")) == ([], {}, NONE)


async def test_a_published_backlog_is_read(store: Store, journal: Journal) -> None:
    await bus_backlog.publish_backlog(journal.redis, journal.epoch, Backlog(STUCK, {"b": 1}))

    assert (await store.pools(), await store.stuck()) == (STUCK, {"b": 1})


async def test_a_named_action_has_a_reason_and_others_have_none(store: Store, journal: Journal) -> None:
    await submit(journal, submitted("stuck", WIDE))
    await submit(journal, submitted("fine", stage()))
    await bus_backlog.publish_reasons(journal.redis, journal.epoch, reasons(stuck=0))
    assert (await reason(store, "stuck"), await reason(store, "fine")) == (WHY, NONE)

    await bus_backlog.publish_reasons(journal.redis, journal.epoch, reasons(fine=0))
    assert (await reason(store, "stuck"), await reason(store, "fine")) == (NONE, WHY), "the former ones are gone"


async def test_the_stage_it_is_in_counts(store: Store, journal: Journal) -> None:
    await submit(journal, submitted("a", stage("compile"), WIDE))
    await bus_backlog.publish_reasons(journal.redis, journal.epoch, reasons(a=1))
    assert await reason(store, "a") == NONE

    await functions.advance_stages(journal.redis, journal.epoch, [Advancing("a", 1, b"[]")])
    assert await reason(store, "a") == WHY


async def test_an_action_that_is_not_named_has_the_reason_of_its_class(store: Store, journal: Journal) -> None:
    entry = await submit(journal, submitted("wide", WIDE))
    await submit(journal, submitted("fine", stage()))
    await submit(journal, submitted("later", stage("compile"), WIDE))
    classes = {"cores@default code.run cores=999": WHY}
    await bus_backlog.publish_reasons(journal.redis, journal.epoch, WaitingReasons({("x", 0): WHY}, classes))
    assert [await reason(store, name) for name in ("wide", "fine", "later")] == [WHY, NONE, NONE]

    stored = await store.action("wide")
    await journal.finish("wide", entry)
    assert stored is not None
    assert await reason_of(store, "wide", stored) == NONE, "it was answered meanwhile"


async def test_an_action_of_a_trajectory_that_is_not_named(store: Store, journal: Journal) -> None:
    entry = await submit(journal, acting("a"))
    stored = Stored("queued", "", None, entry, trajectory="t1")
    begins = {"cores@default begins": WaitingReason("held up", "it waits to begin its environment")}
    await bus_backlog.publish_reasons(journal.redis, journal.epoch, WaitingReasons({}, begins))
    assert await reason_of(store, "a", stored) == begins["cores@default begins"]

    own = "cores@default env.bash cores=1 in runtime.local memory_mb=512 starts=1"
    await bus_backlog.publish_reasons(journal.redis, journal.epoch, WaitingReasons({}, {**begins, own: WHY}))
    assert await reason_of(store, "a", stored) == WHY, "stuck counts more"

    await command(journal.redis, "HSET", "trajectory:t1", "state", "open", "reason", "no space")
    assert await reason_of(store, "a", stored) == WHY
    await bus_backlog.publish_reasons(journal.redis, journal.epoch, WaitingReasons({}, begins))
    assert await reason_of(store, "a", stored) == WaitingReason("held up", "no space")


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x93\x01", b'{"in": "words of another version"}'])
async def test_reasons_of_another_version_are_ignored(store: Store, journal: Journal, raw: bytes) -> None:
    await submit(journal, submitted("a", WIDE))
    for field in ("a:0", "classes"):
        await command(journal.redis, "DEL", "backlog:reasons")
        await command(journal.redis, "HSET", "backlog:reasons", field, raw)
        assert await reason(store, "a") == NONE


# ---- publishing --------------------------------------------------------------------------------------------------


def waiting(dispatcher: Dispatcher, name: str, batch: str = "b") -> None:
    work = Work("run", "code.run", "cores@default", {"cores": 999}, 1.0)
    new = Request(name, "ada", "t", batch, (1000, 1), (work,), 1e9)
    dispatcher.handle(1.0, RequestsSubmitted((new,)))


async def test_changes_are_published_until_another_leads(
    store: Store, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "PUBLISH_EVERY_S", 0.01)
    await bus_backlog.publish_backlog(journal.redis, journal.epoch, Backlog(STUCK, {"former": 1}))
    dispatcher, flaky = Dispatcher(), Flaky(journal.redis)
    publishing = asyncio.create_task(publish_backlog(flaky, journal.epoch, dispatcher, StillClock()))
    await soon(lambda: _is(store, {}))
    flaky.failures = ["before", "after"]
    waiting(dispatcher, "a")
    await soon(lambda: _is(store, {"b": 1}))
    assert await store.waiting_reason("a", 0) == (WHY, {})
    await command(journal.redis, "DEL", "backlog")
    waiting(dispatcher, "c")
    await soon(lambda: _is(store, {"b": 2}))

    await resign(journal.redis, "me")
    await lead(journal.redis, "you", 30.0)
    waiting(dispatcher, "d")
    assert dispatcher.waiting_reasons().actions.keys() == {("a", 0), ("c", 0), ("d", 0)}
    async with asyncio.timeout(20):
        await publishing
    assert await store.stuck() == {"b": 2}
    assert await store.waiting_reason("d", 0) == (NONE, {}), "a deposed leader publishes nothing"
    seen = await read_snapshot(journal.redis)
    assert seen is not None
    assert (seen.at, [len(one) for one in seen.batches["b"].queuing]) == (START, [2 * 16])


async def test_batches_are_published_on_change_and_once_if_there_are_none(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "PUBLISH_EVERY_S", 0.01)
    former = OpenBatchesSnapshot(1.0, {"gone": UnansweredRequests([b""], [b""])})
    await bus_backlog.publish_backlog(journal.redis, journal.epoch, Backlog(), former)
    dispatcher, clock = Dispatcher(), StillClock()
    publishing = asyncio.create_task(publish_backlog(journal.redis, journal.epoch, dispatcher, clock))

    async def seen(*batches: str) -> bool:
        snapshot = await read_snapshot(journal.redis)
        return snapshot is not None and snapshot.batches.keys() == set(batches)

    await soon(seen)
    clock.now += 1.0
    waiting(dispatcher, "outside", batch="")
    await soon(lambda: _waits(store_over(journal.redis), 1))
    snapshot = await read_snapshot(journal.redis)
    assert snapshot == OpenBatchesSnapshot(START, {}), "work outside batches does not change their snapshot"
    waiting(dispatcher, "a")
    await soon(lambda: seen("b"))
    dispatcher.handle(1.0, ActionCancelled("a", "not wanted"))
    await soon(seen)
    publishing.cancel()


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x93\x01", b'{"in": "words of another version"}', b"\x81\xa1x\x01"])
async def test_a_backlog_of_another_version_is_ignored(store: Store, journal: Journal, raw: bytes) -> None:
    await command(journal.redis, "HSET", "backlog", "pools", raw, "stuck", raw, "batches", raw)

    assert (await store.pools(), await read_snapshot(journal.redis)) == ([], None)
    assert await store.stuck() in ({}, {"x": 1})


async def _waits(store: Store, count: int) -> bool:
    return sum(pool.waiting for pool in await store.pools()) == count


async def _is(store: Store, stuck: dict[str, int]) -> bool:
    return await store.stuck() == stuck
