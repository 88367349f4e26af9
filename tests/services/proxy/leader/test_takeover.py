"""A new leader rebuilds the state of its predecessors, and grants nothing too early."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from services.proxy.leader import takeover
from services.proxy.leader.leader import LEADER_STREAMS
from services.proxy.records.answering import reports
from shared.bus import functions
from shared.bus.connection import command
from shared.bus.functions import Advancing, Submission
from shared.messages.actions import ACTIONS
from shared.messages.grants import InventoryRequested, Revoked
from shared.messages.nodes import NODES, Bye, Heartbeat
from shared.messages.outcomes import OUTCOMES
from shared.messages.targets import TARGETS, TargetSet
from shared.policy.model.formulation import StageAct
from tests.services.proxy.legacy import Legacy
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
def legacy(journal: Journal, reader: Redis) -> Legacy:
    return Legacy(journal, reader)


def body(answer: Any) -> dict[str, Any]:
    return msgspec.json.decode(answer.answer, type=dict[str, Any])


async def test_a_takeover_of_an_empty_store_works(legacy: Legacy) -> None:
    tail = await legacy.taken_over()

    assert legacy.notes.take() == []
    assert {topic.name: tail.last(topic) for topic in LEADER_STREAMS} == dict.fromkeys(
        [topic.name for topic in LEADER_STREAMS], "0"
    )


async def test_everything_unanswered_is_taken_up_in_its_order(legacy: Legacy) -> None:
    entries = await legacy.submit(*(submitted(f"a{number}") for number in range(3)))
    await legacy.journal.finish("a1", entries[1])
    await legacy.taken_over()

    assert [(name, one.entry) for name, one in legacy.leader.unanswered.items()] == [
        ("a0", entries[0]),
        ("a2", entries[2]),
    ]


async def test_a_fresh_node_is_asked_and_gets_work_when_it_has_answered(legacy: Legacy) -> None:
    await legacy.submit(submitted("a"))
    await legacy.say(NODES, hello())
    await legacy.taken_over()
    assert messages_to(legacy.notes.writes) == [InventoryRequested(epoch=EPOCH)]

    assert [one.action for one in granted(legacy.hear(inventory()))] == ["a"]


async def test_an_old_hello_does_not_count_but_a_fresh_heartbeat_does(legacy: Legacy) -> None:
    await legacy.say(NODES, hello(), at=LONG_AGO)
    await legacy.taken_over()
    assert messages_to(legacy.notes.writes) == []

    beat = Heartbeat(node="n", incarnation="1", owned={}, used={})
    assert messages_to(legacy.hear(beat)) == [InventoryRequested(epoch=EPOCH)]


async def test_a_node_that_has_left_is_not_asked(legacy: Legacy) -> None:
    await legacy.say(NODES, hello(), Bye(node="n", incarnation="1"))
    await legacy.taken_over()

    assert legacy.leader.dispatcher.cluster.nodes.present == {}


async def test_work_that_a_node_still_executes_continues_there(legacy: Legacy) -> None:
    await legacy.submit(submitted("a"))
    await legacy.mark("a", attempt=2)
    await legacy.say(NODES, hello())
    await legacy.taken_over()

    assert granted(legacy.hear(inventory(held("a", attempt=2)))) == []
    (answer,) = answers(legacy.hear(outcome("a", attempt=2)))
    assert (body(answer)["ended"], body(answer)["stages"][0]["attempts"]) == ("ok", 2)


async def test_work_that_a_node_no_longer_has_runs_again_as_the_next_attempt(legacy: Legacy) -> None:
    await legacy.submit(submitted("a"))
    await legacy.mark("a", attempt=2)
    await legacy.say(NODES, hello())
    await legacy.taken_over()

    assert [(one.action, one.attempt) for one in granted(legacy.hear(inventory()))] == [("a", 3)]


async def test_attempts_of_former_leaders_count(legacy: Legacy) -> None:
    await legacy.submit(submitted("a"))
    await legacy.mark("a", attempt=3)
    await legacy.say(NODES, hello())
    await legacy.taken_over()

    (answer,) = answers(legacy.hear(inventory()))

    assert (body(answer)["ended"], body(answer)["mask"]) == ("node-lost", True)


async def test_an_action_is_granted_nowhere_else_before_its_nodes_inventory(legacy: Legacy) -> None:
    await legacy.submit(submitted("a"))
    await legacy.mark("a", attempt=1, node="silent")
    await legacy.say(NODES, hello())
    await legacy.taken_over()

    assert granted(legacy.hear(inventory())) == []
    assert "a" in legacy.leader.unanswered


async def test_an_unread_outcome_answers_at_once(legacy: Legacy) -> None:
    (entry,) = await legacy.submit(submitted("a"))
    await legacy.mark("a", attempt=1)
    await legacy.say(NODES, hello())
    await legacy.say(OUTCOMES, outcome("a", score=0.5))
    await legacy.taken_over()

    (answer,) = answers(legacy.notes.take())
    assert (answer.entry, body(answer)["score"]) == (entry, 0.5)
    assert granted(legacy.hear(inventory())) == []


async def test_a_request_goes_on_in_its_stage_with_what_was_measured(legacy: Legacy) -> None:
    await legacy.submit(submitted("a", stage("compile"), stage("run")))
    carried = msgspec.json.encode(reports([StageAct("compile", 0.5, 1.25, "m", 2, 1)]))
    await functions.advance(legacy.redis, legacy.journal.epoch, [Advancing("a", 1, carried)])
    await legacy.say(NODES, hello())
    await legacy.taken_over()

    assert [(one.stage, one.attempt) for one in granted(legacy.hear(inventory()))] == [(1, 1)]
    (answer,) = answers(legacy.hear(outcome("a", stage=1)))
    assert [(one["name"], one["node"], one["attempts"]) for one in body(answer)["stages"]] == [
        ("compile", "m", 2),
        ("run", "n", 1),
    ]
    assert body(answer)["act"]["execution_s"] == pytest.approx(1.75)


async def test_the_outcome_of_a_stage_that_is_over_is_not_counted_again(legacy: Legacy) -> None:
    await legacy.submit(submitted("a", stage("compile"), stage("run")))
    await functions.advance(legacy.redis, legacy.journal.epoch, [Advancing("a", 1, b"[]")])
    await legacy.say(OUTCOMES, outcome("a", stage=0))
    await legacy.taken_over()

    assert (answers(legacy.notes.writes), steps(legacy.notes.writes)) == ([], [])


async def test_an_unhandled_cancellation_is_handled(legacy: Legacy) -> None:
    await legacy.submit(submitted("a"), submitted("b"))
    await functions.cancel(legacy.redis, "a", "asked")
    ((wish, _),) = await command(legacy.redis, "XREVRANGE", ACTIONS.name, "+", "-", "COUNT", 1)
    await legacy.taken_over()

    writes = legacy.notes.take()
    assert [(one.action, body(one)["ended"]) for one in answers(writes)] == [("a", "cancelled")]
    assert discards(writes) == [wish.decode()]
    assert list(legacy.leader.unanswered) == ["b"]


async def test_a_cancelled_action_that_still_executes_is_revoked(legacy: Legacy) -> None:
    await legacy.submit(submitted("a"))
    await legacy.mark("a", attempt=1)
    await functions.cancel(legacy.redis, "a", "asked")
    await legacy.say(NODES, hello())
    await legacy.taken_over()

    assert messages_to(legacy.hear(inventory(held("a")))) == [Revoked(action="a", epoch=EPOCH, attempt=1)]


async def test_targets_are_restored(legacy: Legacy) -> None:
    for units in (4, 2):
        await legacy.say(TARGETS, TargetSet(pool="cores@default", units=units, decided_at=1.0, reason=f"{units} do"))
    await legacy.taken_over()

    assert legacy.leader.dispatcher.cluster.queues.pool("cores@default").target == 2
    assert legacy.leader.reasons == {"cores@default": "2 do"}


async def test_a_batch_keeps_the_age_of_its_first_arrival(legacy: Legacy) -> None:
    """The first request may have been answered long ago; it still decides the age of the batch."""
    for batch in ("young", "old"):
        await legacy.journal.open(batch)
    first = submitted("first", batch="old")
    await legacy.journal.finish("first", (await legacy.submit(first))[0], "old")
    await command(legacy.redis, "HSET", "batch:old", "first_ms", "1000")
    await legacy.submit(submitted("a1", stage(cores=4), batch="young"), submitted("a2", stage(cores=4), batch="old"))
    await legacy.say(NODES, hello(cores=4))
    await legacy.taken_over()

    assert [one.action for one in granted(legacy.hear(inventory()))] == ["a2"]


async def test_the_tail_goes_on_where_the_takeover_stopped(legacy: Legacy) -> None:
    (before,) = await legacy.submit(submitted("a"))
    await legacy.say(NODES, hello())
    await legacy.say(OUTCOMES, outcome("x"))
    tail = await legacy.taken_over()
    await legacy.say(OUTCOMES, outcome("y"))
    (after,) = await legacy.submit(submitted("b"))

    entries = await tail.read(block=False)

    assert before < after
    assert [(one.topic, one.message.action) for one in entries] == [(ACTIONS.name, "b"), (OUTCOMES.name, "y")]


async def test_a_long_journal_is_read_whole(legacy: Legacy) -> None:
    requests = [submitted(f"a{number:04}") for number in range(2500)]
    for start in range(0, 2500, 500):
        items = [Submission(one.action, b"", "", ACTIONS.encode(one)) for one in requests[start : start + 500]]
        await functions.submit(legacy.redis, items, max_journal=10_000)
    await legacy.mark("a2499", attempt=2)
    await legacy.taken_over()

    assert list(legacy.leader.unanswered) == [one.action for one in requests]
    assert legacy.leader.dispatcher.registry.actions["a2499"].attempt == 2


async def test_a_long_journal_is_handled_in_parts_so_that_the_lease_can_be_renewed_between(
    legacy: Legacy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "HANDLED_AT_ONCE", 2)
    await legacy.submit(*(submitted(f"a{number}") for number in range(7)))
    turns = 0

    async def another() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += len(legacy.leader.unanswered) not in (0, 7) if hasattr(legacy, "leader") else 0

    beside = asyncio.create_task(another())
    await legacy.taken_over()
    beside.cancel()

    assert list(legacy.leader.unanswered) == [f"a{number}" for number in range(7)]
    assert turns >= 3
