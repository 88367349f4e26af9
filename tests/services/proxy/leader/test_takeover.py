"""A new leader rebuilds the state of its predecessors, and grants nothing too early."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from services.proxy.leader import takeover
from services.proxy.leader.takeover import LEADER_STREAMS
from services.proxy.records.answering import reports
from shared.bus import functions, nodes
from shared.bus.connection import command
from shared.bus.functions import Advancing, Submission
from shared.messages.actions import ACTIONS
from shared.messages.base import Message
from shared.messages.grants import InventoryRequested, Revoked
from shared.messages.nodes import NODES, Bye, Heartbeat
from shared.messages.outcomes import OUTCOMES
from shared.messages.targets import TARGETS, TargetSet
from shared.policy.model.formulation import StageAct
from tests.services.proxy.former_leader import StoreOfFormerLeader
from tests.services.proxy.mesh import (
    EPOCH,
    answers,
    discards,
    granted,
    held,
    hello,
    inventory,
    messages_to,
    outcome,
    stage,
    steps,
    submitted,
)
from tests.shared.bus.journal import Journal

LONG_AGO = "1000-1"


@pytest.fixture
def store(journal: Journal, reader: Redis) -> StoreOfFormerLeader:
    return StoreOfFormerLeader(journal, reader)


def body(answer: Any) -> dict[str, Any]:
    return msgspec.json.decode(answer.answer, type=dict[str, Any])


async def test_a_takeover_of_an_empty_store_works(store: StoreOfFormerLeader) -> None:
    tail = await store.taken_over()

    assert store.recorder.take() == []
    assert {topic.name: tail.last(topic) for topic in LEADER_STREAMS} == dict.fromkeys(
        [topic.name for topic in LEADER_STREAMS], "0"
    )


async def test_a_new_leader_keeps_the_order_of_unanswered_actions(store: StoreOfFormerLeader) -> None:
    entries = await store.submit(*(submitted(f"a{number}") for number in range(3)))
    await store.journal.finish("a1", entries[1])
    await store.taken_over()

    assert [(name, one.entry) for name, one in store.leader.unanswered.items()] == [
        ("a0", entries[0]),
        ("a2", entries[2]),
    ]


async def test_a_fresh_node_is_asked_and_gets_work_when_it_has_answered(store: StoreOfFormerLeader) -> None:
    await store.submit(submitted("a"))
    await store.publish(NODES, hello())
    await store.taken_over()
    assert messages_to(store.recorder.writes) == [InventoryRequested(epoch=EPOCH)]

    assert [one.action for one in granted(store.read(inventory()))] == ["a"]


async def test_an_old_hello_does_not_count_but_a_fresh_heartbeat_does(store: StoreOfFormerLeader) -> None:
    await store.publish(NODES, hello(), at=LONG_AGO)
    await store.taken_over()
    assert messages_to(store.recorder.writes) == []

    beat = Heartbeat(node="n", incarnation="1", owned={}, used={})
    assert messages_to(store.read(beat)) == [InventoryRequested(epoch=EPOCH)]


async def test_a_node_is_known_although_its_hello_has_left_the_stream(store: StoreOfFormerLeader) -> None:
    await store.submit(submitted("a"))
    await store.mark("a", attempt=2)
    await nodes.publish_hello(store.redis, hello())
    await command(store.redis, "DEL", NODES.name)
    await store.taken_over()
    assert messages_to(store.recorder.writes) == [InventoryRequested(epoch=EPOCH)]

    assert granted(store.read(inventory(held("a", attempt=2)))) == []


async def test_a_former_incarnation_in_the_stream_does_not_replace_the_stored_hello(store: StoreOfFormerLeader) -> None:
    newer = msgspec.structs.replace(hello(incarnation="2"), generation=2)
    await nodes.publish_hello(store.redis, newer)
    await command(store.redis, "DEL", NODES.name)
    await store.publish(NODES, hello())
    await store.taken_over()

    assert messages_to(store.recorder.writes, incarnation="2") == [InventoryRequested(epoch=EPOCH)]
    assert messages_to(store.recorder.writes, incarnation="1") == []


async def test_a_node_that_has_left_is_not_asked(store: StoreOfFormerLeader) -> None:
    await store.publish(NODES, hello(), Bye(node="n", incarnation="1"))
    await store.taken_over()

    assert not store.leader.dispatcher.node_names()


@pytest.mark.parametrize("left", [Bye(node="n", incarnation="1"), hello(incarnation="2")])
async def test_work_that_a_node_has_finished_before_it_left_counts(store: StoreOfFormerLeader, left: Message) -> None:
    await store.submit(submitted("a", msgspec.structs.replace(stage(), repeatable=False)))
    await store.mark("a", attempt=1)
    await store.publish(NODES, hello())
    await store.publish(OUTCOMES, outcome("a"))
    await store.publish(NODES, left)
    await store.taken_over()

    (answer,) = answers(store.recorder.writes)
    assert body(answer)["ended"] == "ok"


async def test_work_that_a_node_still_executes_continues_there(store: StoreOfFormerLeader) -> None:
    await store.submit(submitted("a"))
    await store.mark("a", attempt=2)
    await store.publish(NODES, hello())
    await store.taken_over()

    assert granted(store.read(inventory(held("a", attempt=2)))) == []
    (answer,) = answers(store.read(outcome("a", attempt=2)))
    assert (body(answer)["ended"], body(answer)["stages"][0]["attempts"]) == ("ok", 2)


async def test_work_that_a_node_no_longer_has_runs_again_as_the_next_attempt(store: StoreOfFormerLeader) -> None:
    await store.submit(submitted("a"))
    await store.mark("a", attempt=2)
    await store.publish(NODES, hello())
    await store.taken_over()

    assert [(one.action, one.attempt) for one in granted(store.read(inventory()))] == [("a", 3)]


async def test_attempts_of_former_leaders_count(store: StoreOfFormerLeader) -> None:
    await store.submit(submitted("a"))
    await store.mark("a", attempt=3)
    await store.publish(NODES, hello())
    await store.taken_over()

    (answer,) = answers(store.read(inventory()))

    assert (body(answer)["ended"], body(answer)["mask"]) == ("node-lost", True)


async def test_an_action_is_granted_nowhere_else_before_its_nodes_inventory(store: StoreOfFormerLeader) -> None:
    await store.submit(submitted("a"))
    await store.mark("a", attempt=1, node="silent")
    await store.publish(NODES, hello())
    await store.taken_over()

    assert granted(store.read(inventory())) == []
    assert "a" in store.leader.unanswered


async def test_an_unread_outcome_answers_at_once(store: StoreOfFormerLeader) -> None:
    (entry,) = await store.submit(submitted("a"))
    await store.mark("a", attempt=1)
    await store.publish(NODES, hello())
    await store.publish(OUTCOMES, outcome("a", score=0.5))
    await store.taken_over()

    (answer,) = answers(store.recorder.take())
    assert (answer.entry, body(answer)["score"]) == (entry, 0.5)
    assert granted(store.read(inventory())) == []


async def test_an_unread_outcome_counts_if_its_budget_has_passed_since(store: StoreOfFormerLeader) -> None:
    """No leader was alive at the end of its budget. One that waits is expired."""
    await store.submit(submitted("a", budget_s=0.01), submitted("b", budget_s=0.01))
    await store.mark("a", attempt=1)
    await store.publish(NODES, hello())
    await asyncio.sleep(0.05)
    await store.publish(OUTCOMES, outcome("a", score=0.5))
    await store.taken_over()
    assert [(one.action, body(one).get("score")) for one in answers(store.recorder.take())] == [("a", 0.5)]
    store.leader.tick(store.clock.unix())
    assert [(one.action, body(one)["ended"]) for one in answers(store.recorder.take())] == [("b", "expired")]


async def test_a_request_continues_in_its_stage_with_its_measurements(store: StoreOfFormerLeader) -> None:
    await store.submit(submitted("a", stage("compile"), stage("run")))
    carried = msgspec.json.encode(reports([StageAct("compile", 0.5, 1.25, "m", 2, 1, {"cpu_s": 2.0})]))
    await functions.advance_stages(store.redis, store.journal.epoch, [Advancing("a", 1, carried)])
    await store.publish(NODES, hello())
    await store.taken_over()

    assert [(one.stage, one.attempt) for one in granted(store.read(inventory()))] == [(1, 1)]
    (answer,) = answers(store.read(outcome("a", stage=1, usage={"cpu_s": 0.5, "tokens": 3.0})))
    assert [(one["name"], one["node"], one["attempts"]) for one in body(answer)["stages"]] == [
        ("compile", "m", 2),
        ("run", "n", 1),
    ]
    assert body(answer)["act"]["execution_s"] == pytest.approx(1.75)
    assert body(answer)["usage"] == {"cpu_s": 2.5, "tokens": 3.0}


async def test_the_outcome_of_a_stage_that_is_over_is_not_counted_again(store: StoreOfFormerLeader) -> None:
    await store.submit(submitted("a", stage("compile"), stage("run")))
    await functions.advance_stages(store.redis, store.journal.epoch, [Advancing("a", 1, b"[]")])
    await store.publish(OUTCOMES, outcome("a", stage=0))
    await store.taken_over()

    assert (answers(store.recorder.writes), steps(store.recorder.writes)) == ([], [])


async def test_an_unhandled_cancellation_is_handled(store: StoreOfFormerLeader) -> None:
    await store.submit(submitted("a"), submitted("b"))
    await functions.cancel(store.redis, "a", "asked")
    ((wish, _),) = await command(store.redis, "XREVRANGE", ACTIONS.name, "+", "-", "COUNT", 1)
    await store.taken_over()

    writes = store.recorder.take()
    assert [(one.action, body(one)["ended"]) for one in answers(writes)] == [("a", "cancelled")]
    assert discards(writes) == [wish.decode()]
    assert list(store.leader.unanswered) == ["b"]


async def test_a_cancelled_action_that_still_executes_is_revoked(store: StoreOfFormerLeader) -> None:
    await store.submit(submitted("a"))
    await store.mark("a", attempt=1)
    await functions.cancel(store.redis, "a", "asked")
    await store.publish(NODES, hello())
    await store.taken_over()

    assert messages_to(store.read(inventory(held("a")))) == [Revoked(action="a", epoch=EPOCH, attempt=1)]


async def test_targets_are_restored(store: StoreOfFormerLeader) -> None:
    for units in (4, 2):
        await store.publish(TARGETS, TargetSet(pool="cores@default", units=units, decided_at=1.0, reason=f"{units} do"))
    await store.taken_over()

    assert store.leader.dispatcher.target("cores@default") == 2
    assert store.leader.reasons == {"cores@default": "2 do"}


async def test_a_batch_keeps_the_age_of_its_first_arrival(store: StoreOfFormerLeader) -> None:
    """The first request may have been answered long ago; it still decides the age of the batch."""
    for batch in ("young", "old"):
        await store.journal.open(batch)
    first = submitted("first", batch="old")
    await store.journal.finish("first", (await store.submit(first))[0], "old")
    await command(store.redis, "HSET", "batch:old", "first_ms", "1000")
    await store.submit(submitted("a1", stage(cores=4), batch="young"), submitted("a2", stage(cores=4), batch="old"))
    await store.publish(NODES, hello(cores=4))
    await store.taken_over()

    assert [one.action for one in granted(store.read(inventory()))] == ["a2"]


async def test_the_tail_continues_where_the_takeover_stopped(store: StoreOfFormerLeader) -> None:
    (before,) = await store.submit(submitted("a"))
    await store.publish(NODES, hello())
    await store.publish(OUTCOMES, outcome("x"))
    tail = await store.taken_over()
    await store.publish(OUTCOMES, outcome("y"))
    (after,) = await store.submit(submitted("b"))

    entries = await tail.read(block=False)

    assert before < after
    assert [(one.topic, one.message.action) for one in entries] == [(ACTIONS.name, "b"), (OUTCOMES.name, "y")]


async def test_a_long_journal_is_read_whole(store: StoreOfFormerLeader) -> None:
    requests = [submitted(f"a{number:04}") for number in range(2500)]
    for start in range(0, 2500, 500):
        items = [Submission(one.action, b"", "", ACTIONS.encode(one)) for one in requests[start : start + 500]]
        await functions.journal_actions(store.redis, items, max_journal=10_000)
    await store.mark("a2499", attempt=2)
    await store.taken_over()

    assert list(store.leader.unanswered) == [one.action for one in requests]
    last = store.leader.dispatcher.action("a2499")
    assert last is not None
    assert last.attempt == 2


async def test_a_long_journal_is_handled_in_parts_so_that_the_lease_can_be_renewed_between(
    store: StoreOfFormerLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "HANDLED_AT_ONCE", 2)
    await store.submit(*(submitted(f"a{number}") for number in range(7)))
    turns = 0

    async def another() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += len(store.leader.unanswered) not in (0, 7) if hasattr(store, "leader") else 0

    beside = asyncio.create_task(another())
    await store.taken_over()
    beside.cancel()

    assert list(store.leader.unanswered) == [f"a{number}" for number in range(7)]
    assert turns >= 3
