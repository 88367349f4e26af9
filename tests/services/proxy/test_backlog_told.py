"""What waits is told by the leader and read by every replica; an action that is stuck is told why."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from services.proxy import backlog
from services.proxy.backlog import reason_of, tell_backlog
from services.proxy.store import Store
from shared.bus import functions
from shared.bus.connection import command
from shared.bus.functions import Submission
from shared.messages.actions import ACTIONS, ActionSubmitted
from shared.policy.backlog import Backlog, Lack, PoolBacklog
from shared.policy.floor import Floor
from shared.policy.formulation import Request, Work
from shared.policy.life import Life
from tests.services.proxy.mesh import stage, submitted
from tests.shared.bus.flaky import Flaky
from tests.shared.bus.journal import Journal
from tests.shared.bus.soon import soon

WIDE = stage(cores=999)
STUCK = [PoolBacklog("cores@default", 3, [Lack("code.run", {"cores": 999}, 1)])]
WHY = "no node of class 'default' offers code.run with cores=999 now; it waits for one until its budget ends"


@pytest.fixture
def store(valkey: Redis) -> Store:
    return Store(valkey)


async def submit(journal: Journal, request: ActionSubmitted) -> str:
    item = Submission(request.action, b"", "", ACTIONS.encode(request))
    ((_, entry),) = await functions.submit(journal.redis, [item], max_journal=100)
    return entry


async def reason(store: Store, action: str) -> str:
    stored = await store.action(action)
    assert stored is not None
    return await reason_of(store, stored)


async def test_before_a_leader_has_spoken_nothing_is_known(store: Store, journal: Journal) -> None:
    await submit(journal, submitted("a", WIDE))

    assert (await store.pools(), await store.stuck(), await reason(store, "a")) == ([], {}, "")


async def test_what_was_told_is_read(store: Store, journal: Journal) -> None:
    await functions.tell_backlog(journal.redis, journal.epoch, Backlog(STUCK, {"b": 1}))

    assert (await store.pools(), await store.stuck()) == (STUCK, {"b": 1})


async def test_an_action_that_is_stuck_is_told_why_and_others_are_not(store: Store, journal: Journal) -> None:
    await submit(journal, submitted("stuck", WIDE))
    await submit(journal, submitted("fine", stage()))
    await functions.tell_backlog(journal.redis, journal.epoch, Backlog(STUCK))

    assert (await reason(store, "stuck"), await reason(store, "fine")) == (WHY, "")


async def test_the_stage_it_is_in_counts(store: Store, journal: Journal) -> None:
    await submit(journal, submitted("a", stage("compile"), WIDE))
    await functions.tell_backlog(journal.redis, journal.epoch, Backlog(STUCK))
    assert await reason(store, "a") == ""

    await functions.advance(journal.redis, journal.epoch, [("a", 1, b"[]")])
    assert await reason(store, "a") == WHY


async def test_what_is_answered_meanwhile_is_not_stuck(store: Store, journal: Journal) -> None:
    entry = await submit(journal, submitted("a", WIDE))
    await functions.tell_backlog(journal.redis, journal.epoch, Backlog(STUCK))
    stored = await store.action("a")
    await journal.finish("a", entry)

    assert stored is not None
    assert await reason_of(store, stored) == ""


# ---- telling -----------------------------------------------------------------------------------------------------


def waiting(floor: Floor, name: str) -> None:
    work = Work("run", "code.run", "cores@default", {"cores": 999}, 1.0)
    floor.enqueue(Life(Request(name, "ada", "t", "b", (1000, 1), (work,), 1e9)))


async def test_changes_are_told_until_another_leads(
    store: Store, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "TOLD_EVERY_S", 0.01)
    await functions.tell_backlog(journal.redis, journal.epoch, Backlog(STUCK, {"former": 1}))
    floor, flaky = Floor(), Flaky(journal.redis)
    telling = asyncio.create_task(tell_backlog(flaky, journal.epoch, floor))
    await soon(lambda: _is(store, {}))
    flaky.failures = ["before", "after"]
    waiting(floor, "a")
    await soon(lambda: _is(store, {"b": 1}))
    await command(journal.redis, "DEL", "backlog")
    waiting(floor, "c")
    await soon(lambda: _is(store, {"b": 2}))

    await functions.resign(journal.redis, "me")
    await functions.lead(journal.redis, "you", 30.0)
    waiting(floor, "d")
    async with asyncio.timeout(20):
        await telling
    assert await store.stuck() == {"b": 2}


async def _is(store: Store, stuck: dict[str, int]) -> bool:
    return await store.stuck() == stuck
