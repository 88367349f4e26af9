"""Quotas through the leader: granted with units, kept by a new leader, settled with the answer, never exceeded."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from services.proxy.leader.interpreter import Interpreter
from services.proxy.leader.writes import HoldsChanged
from shared.bus.brakes import publish_brakes
from shared.bus.functions import Answering, Granting, send_grants
from shared.bus.holds import Taking
from shared.bus.quota_estimates import store_estimates
from shared.bus.quotas import change_holds, read_quotas, set_quota
from shared.messages.actions import ActionSubmitted
from shared.messages.nodes import NODES
from shared.messages.quotas import QuotaChanged
from shared.policy.model.quotas import LEARNED, QuotaHold, QuotaLimits, Rate, Refund, Settled
from shared.policy.model.results import Feedback
from shared.policy.resources.quota_estimates import Estimate
from tests.services.proxy.former_leader import StoreOfFormerLeader
from tests.services.proxy.mesh import granted, held, hello, inventory, outcome, stage, submitted
from tests.shared.bus.journal import Journal

ONE = QuotaLimits((1.0,))


@pytest.fixture
def store(journal: Journal, reader: Redis) -> StoreOfFormerLeader:
    return StoreOfFormerLeader(journal, reader)


def searching(action: str, **quotas: float) -> ActionSubmitted:
    return submitted(action, replace(stage(), quotas=quotas or {"search": 1.0}))


def takings(writes: list[Any]) -> list[Granting]:
    return [write for write in writes if isinstance(write, Granting) and write.taking is not None]


async def test_quotas_are_granted_with_units_kept_by_a_new_leader_and_settled(store: StoreOfFormerLeader) -> None:
    await set_quota(store.redis, "search", ONE)
    await store.submit(searching("a"), searching("b"), submitted("c"))
    await store.publish(NODES, hello())
    await store.taken_over()
    writes = store.read(inventory())
    assert [(one.action, one.quotas) for one in granted(writes)] == [("a", {"search": 1.0}), ("c", {})]
    await send_grants(store.redis, store.journal.epoch, takings(writes))

    await store.taken_over()
    writes = store.read(inventory(held("a")))
    assert [one.action for one in granted(writes)] == ["c"], "the former leader's grant still holds the quota"

    writes = store.read(outcome("a"))
    (answer,) = [write for write in writes if isinstance(write, Answering)]
    assert [one.key for one in answer.settled] == ["a/0/1"]
    assert [one.action for one in granted(writes)] == ["b"]


async def test_an_action_waits_until_its_quota_is_created(store: StoreOfFormerLeader) -> None:
    await store.submit(searching("a"))
    await store.publish(NODES, hello())
    await store.taken_over()
    assert granted(store.read(inventory())) == []
    (pool,) = store.leader.dispatcher.survey().pools
    assert [one.reason for one in pool.lacks] == [
        "there is no quota 'search'; create it with treadle quota set search --rate 10/s"
    ]

    assert [one.action for one in granted(store.read(QuotaChanged(name="search", limits=ONE)))] == ["a"]


async def test_amounts_that_cannot_be_are_refused(store: StoreOfFormerLeader) -> None:
    await store.submit(searching("a", search=-1.0), searching("b", search=float("inf")))
    await store.taken_over()
    answers = [write for write in store.recorder.take() if isinstance(write, Answering)]
    assert [(one.action, b"refused" in one.answer) for one in answers] == [("a", True), ("b", True)]


async def test_a_lost_attempt_settles_its_hold_before_the_next_grant(store: StoreOfFormerLeader) -> None:
    await set_quota(store.redis, "search", ONE)
    await store.submit(searching("a"))
    await store.publish(NODES, hello())
    await store.taken_over()
    store.read(inventory())
    writes = store.read(outcome("a", status="lost", passed=None, score=None))
    kinds = [type(write) for write in writes if isinstance(write, HoldsChanged | Granting)]
    assert kinds == [HoldsChanged, Granting]
    assert takings(writes)[0].mark == "2:n"


def hold(action: str) -> QuotaHold:
    return QuotaHold(action, 0, 1, "n", "1", 5.0, {"search": 1.0})


async def test_one_flush_never_has_a_hold_and_its_end_nor_a_refund_beside_a_grant(journal: Journal) -> None:
    """A repeated flush would take the hold again."""
    interpreter = Interpreter(journal.redis, journal.epoch, lambda *_: None, keep_batch_s=60.0)
    refund = Refund("search", Rate(1.0, 1.0), 1.0, 6.0)
    taking = [Granting("g", b"m", name, "1:n", taking=Taking(hold(name), ())) for name in ("a", "b", "c")]
    for write in (
        taking[0],
        HoldsChanged((Settled("z/0/1", "z"),)),
        HoldsChanged((Settled("a/0/1", "a"),)),
        taking[1],
        HoldsChanged((Settled("y/0/1", "y", (refund,)),)),
        taking[2],
    ):
        interpreter.put(write)
    flushes = []
    while interpreter._waiting:
        flushes.append(len(interpreter._next()))
    assert flushes == [2, 2, 1, 1]
    assert (await read_quotas(journal.redis)).holds == []


async def test_a_new_leader_keeps_to_what_the_provider_has_answered(store: StoreOfFormerLeader) -> None:
    await set_quota(store.redis, "search", ONE)
    await store.submit(searching("a"), searching("b"))
    await store.publish(NODES, hello())
    await store.taken_over()
    store.read(inventory())
    exhausted = Feedback("search", "exhausted", reason="HTTP 402")
    lost = outcome("a", status="lost", passed=None, score=None)
    told = replace(lost, result=replace(lost.result, feedback=(exhausted,)))
    assert granted(store.read(told)) == []
    brakes = store.leader.dispatcher.brakes()
    assert brakes["search"].mode == "exhausted"
    await publish_brakes(store.redis, store.journal.epoch, brakes)

    await store.taken_over()
    assert granted(store.read(inventory())) == []
    assert store.leader.dispatcher.brakes() == brakes, "the change of the quota that the stream still has is older"
    assert len(granted(store.read(QuotaChanged(name="search", limits=ONE)))) == 1, "the operator has paid"

    await set_quota(store.redis, "search", ONE)
    await store.taken_over()
    assert len(granted(store.read(inventory()))) == 1, "no leader was alive when the operator paid"


async def test_earlier_changes_of_a_rate_take_nothing_from_a_new_leader(store: StoreOfFormerLeader) -> None:
    """The stream of changes still has a smaller burst. Before, each takeover left no more free than that."""
    for limit in (1.0, 10.0, 1000.0):
        await set_quota(store.redis, "search", QuotaLimits((), (Rate(limit, 86400.0),)))
    await store.submit(searching("a"))
    await store.publish(NODES, hello())
    await store.taken_over()
    await send_grants(store.redis, store.journal.epoch, takings(store.read(inventory())))
    for _ in range(2):
        await store.taken_over()
        (state,) = store.leader.dispatcher.limit_states({"search": 1.0}, store.clock.unix())
        assert state.free == pytest.approx(999.0, abs=0.1)
        assert not any(isinstance(write, HoldsChanged) for write in store.recorder.take())


async def test_a_limit_that_was_raised_while_no_leader_was_alive_gives_nothing(store: StoreOfFormerLeader) -> None:
    await set_quota(store.redis, "search", QuotaLimits((), (Rate(1.0, 86400.0),)))
    await store.submit(searching("a"))
    await store.publish(NODES, hello())
    await store.taken_over()
    await send_grants(store.redis, store.journal.epoch, takings(store.read(inventory())))
    await set_quota(store.redis, "search", QuotaLimits((), (Rate(1000.0, 86400.0),)))
    for _ in range(2):
        await store.taken_over()
        (state,) = store.leader.dispatcher.limit_states({"search": 1.0}, store.clock.unix())
        assert state.free == pytest.approx(0.0, abs=0.1)
        changes = [write for write in store.recorder.take() if isinstance(write, HoldsChanged)]
        await change_holds(store.redis, store.journal.epoch, [one for write in changes for one in write.settled])


async def test_a_new_leader_reserves_what_a_former_one_has_learned_and_nodes_receive_the_amount(
    store: StoreOfFormerLeader,
) -> None:
    await set_quota(store.redis, "search", QuotaLimits((), (Rate(1000.0, 60.0),)))
    one = searching("a", search=LEARNED)
    learned = {(one.tenant, one.task or one.stages[0].kind, "search"): Estimate.of((12.5,))}
    await store_estimates(store.redis, store.journal.epoch, learned)
    await store.submit(one)
    await store.publish(NODES, hello())
    await store.taken_over()
    writes = store.read(inventory())
    assert [(one.action, one.quotas) for one in granted(writes)] == [("a", {"search": 12.5})]
