"""A new leader and priorities of trajectories: the newest one decides, whoever has handled its entry."""

from __future__ import annotations

import msgspec
import pytest
from redis.asyncio import Redis

from shared.bus import trajectories
from shared.bus.connection import command
from shared.messages.actions import ACTIONS
from shared.messages.nodes import NODES
from tests.services.proxy.former_leader import StoreOfFormerLeader
from tests.services.proxy.mesh import SPEC, acting, discards, granted, hello, inventory, outcome
from tests.shared.bus.journal import Journal


@pytest.fixture
async def store(journal: Journal, reader: Redis) -> StoreOfFormerLeader:
    """One core, and an action of each of three trajectories; the priorities of the last two have changed."""
    store = StoreOfFormerLeader(journal, reader)
    for name in ("t1", "t2", "t3"):
        await trajectories.open_trajectory(
            store.redis, name, SPEC, idempotency_key="", digest=b"", most=9, keep_s=60.0, node_class="default",
            fields={},
        )  # fmt: skip
    await store.publish(NODES, hello(cores=1, memory_mb=4096))
    await trajectories.set_priority(store.redis, "t2", 5.0)
    await store.submit(acting("a", "t1"), acting("b", "t2"), acting("c", "t3"))
    await trajectories.set_priority(store.redis, "t3", 30.0)
    await trajectories.set_priority(store.redis, "t3", -60.0)
    return store


async def handle(store: StoreOfFormerLeader) -> int:
    """The former leader applies the changes and deletes their entries. Returns their number."""
    found = await command(store.redis, "XRANGE", ACTIONS.name, "-", "+")
    changes = [entry for entry, fields in found if b"priority-requested" in fields[1]]
    return int(await command(store.redis, "XDEL", ACTIONS.name, *changes))


def order(store: StoreOfFormerLeader) -> list[str]:
    """Actions in the order of their grants, each after the end of the one before."""
    found = []
    writes = store.read(inventory())
    while grants := granted(writes):
        (grant,) = grants
        found.append(grant.action)
        writes = store.read(outcome(grant.action))
    return found


@pytest.mark.parametrize("handled", [False, True])
async def test_the_newest_priority_decides_the_order(store: StoreOfFormerLeader, handled: bool) -> None:
    assert not handled or await handle(store) == 3
    await store.taken_over()
    assert len(discards(store.recorder.take())) == (0 if handled else 3)
    assert order(store) == ["c", "a", "b"]


async def test_a_priority_that_was_reset_is_restored_too(store: StoreOfFormerLeader) -> None:
    """The entry of b carries the 5 s that it had at its submission."""
    await trajectories.set_priority(store.redis, "t2", 0.0)
    await trajectories.set_priority(store.redis, "t3", 0.0)
    await handle(store)
    await store.taken_over()
    assert order(store) == ["a", "b", "c"]


async def test_an_own_priority_is_added_to_that_of_the_trajectory(store: StoreOfFormerLeader) -> None:
    await store.submit(msgspec.structs.replace(acting("d", "t1"), priority=-10.0))
    await store.submit(msgspec.structs.replace(acting("e", "t2"), priority=-90.0))
    await store.taken_over()
    assert order(store) == ["c", "a", "d", "b", "e"], "e is -85 s, and waits for its turn behind b"
