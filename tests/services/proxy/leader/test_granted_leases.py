"""Leases at the leader: their headers, their node in a takeover, and commands that go to the store, not to a node."""

from __future__ import annotations

import math

import msgspec
import pytest
from redis.asyncio import Redis

from services.proxy.leader.granted_leases import headers_of
from services.proxy.leader.writes import LeaseInventory
from shared.api.leases import LeaseNews
from shared.bus import functions
from shared.bus.functions import Answering
from shared.bus.held_leases import LeaseGrant, LeaseRevocation
from shared.bus.quotas import set_quota
from shared.messages.actions import ActionSubmitted, CancelRequested, StageWork
from shared.messages.leases import GONE, INCARNATION, KIND, NODE, POOL, RESOURCE
from shared.messages.outcomes import Finished, GrantHeld, InventoryTaken
from shared.policy.dispatch.views import LimitState
from shared.policy.model.quotas import QuotaLimits, Rate
from shared.policy.model.results import AttemptResult
from tests.services.proxy.former_leader import StoreOfFormerLeader
from tests.services.proxy.mesh import EPOCH, answers, journalled
from tests.shared.bus.journal import Journal


@pytest.fixture
def store(journal: Journal, reader: Redis) -> StoreOfFormerLeader:
    return StoreOfFormerLeader(journal, reader)


def lease(action: str, *, wait_s: float = 30.0) -> ActionSubmitted:
    stage = StageWork(
        name=KIND, kind=KIND, pool=POOL, cost={RESOURCE: (1, 1)}, timeout_s=20.0, params=b'{"ttl_s": 20}',
        repeatable=False, quotas={"search": 1.0},
    )  # fmt: skip
    return ActionSubmitted(action=action, tenant="ada", stages=(stage,), budget_s=wait_s)


def inventory(*held: str) -> InventoryTaken:
    grants = [GrantHeld(action=name, epoch=1, attempt=1, stage=0, units={RESOURCE: 1}, running_s=50.0) for name in held]
    return InventoryTaken(node=NODE, incarnation=INCARNATION, epoch=EPOCH, held=grants)


def ended(action: str, result: AttemptResult | None = None) -> Finished:
    given = AttemptResult("ok") if result is None else result
    return Finished(action=action, node=NODE, incarnation=INCARNATION, epoch=0, attempt=1, stage=0, result=given)


def test_a_limit_that_is_full_at_no_finite_time_has_no_time_in_the_header() -> None:
    states = [LimitState("search", 10.0, 9.0, 1.0, in_s) for in_s in (math.inf, None, 1e300)]
    never, unknown, late = headers_of(states).split("\n")[1].split(", ")
    assert (never, unknown) == ('"search/1s";r=9', '"search/1s";r=9')
    assert late.startswith('"search/1s";r=9;t=1')


async def test_leases_are_granted_on_the_store_and_answered_at_their_end(store: StoreOfFormerLeader) -> None:
    await set_quota(store.redis, "search", QuotaLimits((1.0,)))
    await store.submit(lease("a"), lease("b"))
    await store.taken_over()
    store.recorder.take()
    store.leader.serve_leases()
    assert store.recorder.take() == [LeaseInventory()]
    (grant,) = [one for one in store.read(inventory()) if isinstance(one, LeaseGrant)]
    assert (grant.action, grant.mark, grant.ttl_ms) == ("a", f"1:{NODE}", 20_000)
    assert grant.taking.hold.node == NODE
    answer, grant = store.read(ended("a"))
    assert isinstance(answer, Answering)
    assert (answer.keep_s, msgspec.json.decode(answer.answer)) == (60, {"id": "a", "state": "finished"})
    assert [one.key for one in answer.settled] == ["a/0/1"]
    assert isinstance(grant, LeaseGrant)
    assert store.leader.unanswered["b"].leased, "its caller needs no connection any more"


async def test_a_new_leader_adopts_what_is_held_after_its_deadline(store: StoreOfFormerLeader) -> None:
    await set_quota(store.redis, "search", QuotaLimits((1.0,)))
    await store.submit(lease("a", wait_s=0.0), lease("b", wait_s=-5.0))
    await store.mark("a", 1, NODE)
    await store.taken_over()
    assert store.leader.unanswered["a"].leased
    assert answers(store.recorder.take()) == [], "the node of leases has not sent its inventory"
    store.leader.serve_leases()
    writes = store.read(inventory("a"))
    assert [one.action for one in answers(writes)] == ["b"]
    assert not [one for one in writes if isinstance(one, LeaseGrant | LeaseRevocation)]
    store.leader.take([journalled(CancelRequested(action="a"), at=store.clock.unix())])
    assert LeaseRevocation("a", 1) in store.recorder.take()


async def test_a_lease_of_which_its_caller_never_learned_is_revoked_as_unused(store: StoreOfFormerLeader) -> None:
    budget = Rate(5.0)
    await set_quota(store.redis, "search", QuotaLimits((), (budget,)))
    await store.submit(lease("a"))
    await store.taken_over()
    store.leader.serve_leases()
    store.read(inventory())
    assert store.leader.dispatcher.limit_states({"search": 1.0}, store.clock.unix())[0].free == 4.0
    store.recorder.take()
    store.leader.take([journalled(CancelRequested(action="a", reason=GONE), at=store.clock.unix())])
    assert LeaseRevocation("a", 1, begun=False) in store.recorder.take()
    store.read(ended("a", AttemptResult("cancelled", environment_exists=False)))
    assert store.leader.dispatcher.limit_states({"search": 1.0}, store.clock.unix())[0].free == 5.0


async def test_a_lease_whose_caller_went_before_the_takeover_is_revoked_as_unused(store: StoreOfFormerLeader) -> None:
    """The former leader has granted it. Its connection broke, and the caller's own replica has cancelled it."""
    await set_quota(store.redis, "search", QuotaLimits((1.0,)))
    await store.submit(lease("a"), lease("b"))
    await store.mark("a", 1, NODE)
    await functions.cancel(store.redis, "a", GONE)
    await functions.cancel(store.redis, "b", GONE)
    await store.taken_over()
    writes = store.recorder.take()
    assert LeaseRevocation("a", 1, begun=False) in writes
    assert [one.action for one in answers(writes)] == ["b"], "it holds nothing"


async def test_a_refusal_says_when_the_amounts_could_be_had(store: StoreOfFormerLeader) -> None:
    await set_quota(store.redis, "search", QuotaLimits((1.0,)))
    await store.taken_over()
    store.leader.serve_leases()
    store.read(inventory())
    await store.submit(lease("a", wait_s=0.0))
    store.leader.take([journalled(lease("b", wait_s=60.0), at=store.clock.unix())])
    store.recorder.take()
    store.leader.take([journalled(lease("c", wait_s=0.0), at=store.clock.unix() - 0.1)])
    (answer,) = answers(store.recorder.take())
    news = msgspec.json.decode(answer.answer, type=LeaseNews)
    assert (news.ended, news.limits) == ("expired", '"search";q=1;qu="concurrent-requests"\n"search";r=0')
    assert news.retry_after_s is not None
    assert 0 < news.retry_after_s <= 20.0, "b is expected to end then"


def test_headers_round_amounts_down_and_times_up() -> None:
    states = [
        LimitState("s", 3.7, 1.9, held=True),
        LimitState("s", 10.0, 2.999, 1.0, 0.7001),
        LimitState("usd", 50.0, 49.5),
    ]
    policy, level = headers_of(states).split("\n")
    assert policy == '"s";q=3;qu="concurrent-requests", "s/1s";q=10;w=1, "usd/total";q=50'
    assert level == '"s";r=1, "s/1s";r=2;t=1, "usd/total";r=49'
