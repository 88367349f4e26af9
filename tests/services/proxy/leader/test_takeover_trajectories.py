"""A new leader and existing environments: it restores placements and ends before it grants anything."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from services.cpu_manager.kinds import MEMORY
from shared.bus import trajectories
from shared.bus.connection import command
from shared.bus.trajectories import StoredPlacement, pack
from shared.messages.actions import ACTIONS, CloseRequested
from shared.messages.environments import TRAJECTORIES, EnvironmentsExpected
from shared.messages.grants import EnvironmentClosed
from shared.messages.nodes import NODES
from shared.messages.outcomes import OUTCOMES
from tests.services.proxy.former_leader import StoreOfFormerLeader
from tests.services.proxy.mesh import (
    EPOCH,
    SPEC,
    acting,
    answers,
    discards,
    ended,
    forgotten,
    granted,
    held,
    hello,
    inventory,
    messages_to,
    outcome,
)
from tests.shared.bus.journal import Journal

PLACED = pack(StoredPlacement("n", {MEMORY: SPEC.memory_mb}))


@pytest.fixture
async def store(journal: Journal, reader: Redis) -> StoreOfFormerLeader:
    """Trajectory t1 is open, and node n has sent its hello."""
    store = StoreOfFormerLeader(journal, reader)
    await trajectories.open_trajectory(
        journal.redis, "t1", SPEC, idempotency_key="", digest=b"", most=9, keep_s=60.0, node_class="default", fields={}
    )
    await store.publish(NODES, hello(memory_mb=4096), hello("m", memory_mb=4096))
    return store


async def acted(store: StoreOfFormerLeader, action: str = "a") -> None:
    """One action has been granted to n, where the environment began, and was answered."""
    (entry,) = await store.submit(acting(action))
    await store.mark(action, 1, "n", "t1", PLACED)
    await store.journal.finish(action, entry)


def ends(writes: list[Any]) -> list[tuple[str, str]]:
    bodies = [msgspec.json.decode(one.answer) for one in answers(writes)]
    return [(body["id"], body["ended"]) for body in bodies]


def both_inventories(store: StoreOfFormerLeader, *environments: str) -> list[Any]:
    """First the inventory of the node where it is not placed."""
    return store.read(inventory(node="m")) + store.read(inventory(environments=environments))


async def test_a_trajectory_continues_where_its_environment_exists(store: StoreOfFormerLeader) -> None:
    await acted(store)
    await store.submit(acting("b"))
    await store.taken_over()

    assert granted(store.read(inventory(node="m")), "m") == []
    (grant,) = granted(store.read(inventory(environments=("t1",))))
    assert (grant.action, grant.trajectory, grant.environment) == ("b", "t1", None)


async def test_waiting_actions_of_a_trajectory_keep_their_turns(store: StoreOfFormerLeader) -> None:
    """None of them was granted, so nothing of them is restored besides the journal's order."""
    await store.submit(acting("a"), acting("b"))
    await store.taken_over()

    assert [one.action for one in granted(store.read(inventory()))] == ["a"]
    assert granted(store.read(inventory(node="m")), "m") == []
    writes = store.read(outcome("a"))
    assert (ends(writes), [one.action for one in granted(writes)]) == ([("a", "ok")], ["b"])


async def test_an_action_that_still_runs_in_it_continues_on_its_node(store: StoreOfFormerLeader) -> None:
    await store.submit(acting("a"))
    await store.mark("a", 1, "n", "t1", PLACED)
    await store.submit(acting("b"))
    await store.taken_over()

    assert granted(store.read(inventory(held("a"), environments=("t1",)))) == []
    writes = store.read(outcome("a"))
    assert (ends(writes), [one.action for one in granted(writes)]) == ([("a", "ok")], ["b"])


async def test_one_that_its_node_no_longer_has_is_lost_and_not_created_again(store: StoreOfFormerLeader) -> None:
    await acted(store)
    await store.submit(acting("b"))
    await store.taken_over()

    writes = both_inventories(store)

    assert granted(writes) == granted(writes, "m") == []
    assert [(one.trajectory, one.ended) for one in forgotten(writes)] == [("t1", "lost")]
    assert ends(writes) == [("b", "environment-lost")]


async def test_a_closed_one_that_still_exists_is_ended(store: StoreOfFormerLeader) -> None:
    await acted(store)
    await trajectories.close_trajectory(store.redis, "t1", "done")
    await command(store.redis, "DEL", ACTIONS.name)  # the former leader has handled it, and its message was lost
    await store.taken_over()

    writes = both_inventories(store, "t1")

    assert EnvironmentClosed(epoch=EPOCH, trajectory="t1") in messages_to(writes)
    assert [one.trajectory for one in forgotten(store.read(ended(how="closed")))] == ["t1"]


async def test_one_that_was_closed_meanwhile_is_ended_and_its_actions_cancelled(store: StoreOfFormerLeader) -> None:
    await acted(store)
    await store.submit(acting("b"))
    await trajectories.close_trajectory(store.redis, "t1", "done")
    await store.taken_over()

    writes = store.recorder.take()
    assert (ends(writes), len(discards(writes))) == ([("b", "cancelled")], 1)
    assert EnvironmentClosed(epoch=EPOCH, trajectory="t1") in messages_to(both_inventories(store, "t1"))


async def test_an_unread_end_counts_at_once(store: StoreOfFormerLeader) -> None:
    await acted(store)
    await store.publish(OUTCOMES, ended())
    await store.taken_over()
    writes = store.recorder.take() + both_inventories(store)

    assert "t1" in [one.trajectory for one in forgotten(writes)]


async def test_an_action_of_an_ended_trajectory_does_not_begin_it_again(store: StoreOfFormerLeader) -> None:
    await store.submit(acting("a"))
    await trajectories.record_ends(store.redis, store.journal.epoch, [("t1", "lost", "it died")])
    await store.taken_over()

    writes = store.recorder.take() + both_inventories(store)

    assert ends(writes) == [("a", "environment-lost")]
    assert granted(writes) == granted(writes, "m") == []


async def test_an_action_of_an_unknown_trajectory_does_not_begin_it_again(store: StoreOfFormerLeader) -> None:
    await store.submit(acting("a"))
    await command(store.redis, "DEL", "trajectory:t1")
    await store.taken_over()

    writes = store.recorder.take() + both_inventories(store)

    assert ends(writes) == [("a", "environment-lost")]


async def test_its_memory_is_held_from_the_inventory_on(store: StoreOfFormerLeader) -> None:
    await acted(store)
    await store.submit(acting("b"))
    await store.taken_over()
    store.read(inventory(environments=("t1",)))

    node = store.leader.dispatcher.node("n")
    assert node is not None
    assert (node.capacity[MEMORY], node.used[MEMORY]) == (4096, 512)


async def test_a_handled_close_is_removed_from_the_journal(store: StoreOfFormerLeader) -> None:
    await store.publish(ACTIONS, CloseRequested(trajectory="t1"))
    await store.taken_over()

    assert len(discards(store.recorder.take())) == 1


async def test_old_hints_are_not_published_again(store: StoreOfFormerLeader) -> None:
    await store.publish(TRAJECTORIES, EnvironmentsExpected(images=["a:1"]), at="1000-1")
    tail = await store.taken_over()

    assert tail.last(TRAJECTORIES) == "1000-1"
