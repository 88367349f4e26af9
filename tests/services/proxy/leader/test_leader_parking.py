"""The leader and requests to park and to resume: a message names the request that it fulfils."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from services.proxy.leader.leader import Leader
from shared.bus import functions, parking, trajectories
from shared.bus.actions import read_continuations
from shared.bus.connection import command
from shared.bus.functions import Granting
from shared.messages.actions import ACTIONS, ParkActionRequested, ResumeActionRequested
from shared.messages.nodes import NODES
from shared.messages.outcomes import OUTCOMES, Parked, Started
from tests.services.proxy.former_leader import StoreOfFormerLeader
from tests.services.proxy.mesh import (
    EPOCH,
    SPEC,
    StillClock,
    WriteRecorder,
    acting,
    entry,
    from_node,
    held,
    hello,
    inventory,
    journalled,
    leader_of,
)
from tests.shared.bus.journal import Journal

PARK, RESUME = ParkActionRequested(action="a"), ResumeActionRequested(action="a")
STARTED = Started(action="a", node="n", epoch=EPOCH, attempt=1)
PARKED = Parked(action="a", node="n", epoch=EPOCH, attempt=1)


def fulfilled(writes: list[Any]) -> list[str]:
    """Requests that the messages fulfil."""
    return [one.resumes for one in writes if isinstance(one, Granting) and one.resumes]


@pytest.fixture
def recorder() -> WriteRecorder:
    return WriteRecorder()


@pytest.fixture
def leader(recorder: WriteRecorder) -> Leader:
    """Action a runs on the only node."""
    leader = leader_of(recorder, StillClock())
    leader.take([from_node(hello(memory_mb=4096)), from_node(inventory()), journalled(acting("a"))])
    leader.take([entry(OUTCOMES, STARTED)])
    recorder.take()
    return leader


def test_a_message_names_the_newest_handled_request(leader: Leader, recorder: WriteRecorder) -> None:
    leader.take([journalled(PARK)])
    leader.take([entry(OUTCOMES, PARKED)])
    assert fulfilled(recorder.take()) == []
    first = journalled(RESUME)
    leader.take([first])
    assert fulfilled(recorder.take()) == [first.id]
    second = journalled(RESUME)
    leader.take([journalled(PARK), second])
    leader.take([entry(OUTCOMES, PARKED)])
    assert fulfilled(recorder.take()) == [second.id]


@pytest.fixture
async def store(journal: Journal, reader: Redis) -> StoreOfFormerLeader:
    """Action a has been granted to n, and has been requested to park and to resume."""
    store = StoreOfFormerLeader(journal, reader)
    await trajectories.open_trajectory(
        journal.redis, "t1", SPEC, idempotency_key="", digest=b"", most=9, keep_s=60.0, node_class="default", fields={}
    )
    await store.publish(NODES, hello(memory_mb=4096))
    await store.submit(acting("a"))
    await store.mark("a", 1)
    await parking.park(store.redis, "a", "a model call")
    await parking.resume(store.redis, "a")
    return store


@pytest.mark.parametrize("discarded", [False, True])
async def test_a_new_leader_fulfils_the_stored_request(store: StoreOfFormerLeader, *, discarded: bool) -> None:
    """Also after its journal entry has been handled and deleted."""
    if discarded:
        rows = await command(store.redis, "XRANGE", ACTIONS.name, "-", "+")
        await functions.discard(store.redis, store.journal.epoch, [row[0].decode() for row in rows[1:]])
    (before,) = await read_continuations(store.redis, ["a"])
    assert before is not None
    await store.taken_over()
    parked = msgspec.structs.replace(held("a"), parked=True)
    writes = store.read(inventory(parked, environments=("t1",)))
    assert fulfilled(writes) == [before.resume]
    grants = [one for one in writes if isinstance(one, Granting)]
    await functions.send_grants(store.redis, store.journal.epoch, grants)
    (after,) = await read_continuations(store.redis, ["a"])
    assert after is not None
    assert after.wanted == ""
