"""Callers that wait for leases: each is woken by the grant, by a refusal, or by what the store has."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from redis.asyncio import Redis

from services.proxy.records.lease_waiters import LeaseWaiters, outcome_of
from shared.api.leases import LeaseNews
from shared.bus.held_leases import LeaseEnd, LeaseGrant, LeaseRecord, end_leases, grant_leases
from shared.bus.holds import Taking
from shared.messages.leases import INCARNATION, NODE, GrantedLease
from shared.policy.model.quotas import QuotaHold
from tests.shared.bus.journal import Journal


def record(**fields: Any) -> LeaseRecord:
    return LeaseRecord(**{"fence": 0, "expires_s": 0.0, "ttl_s": 20.0, "ended": "", "answer": None, **fields})


async def granted(journal: Journal, action: str) -> GrantedLease:
    hold = QuotaHold(action, 0, 1, NODE, INCARNATION, 1.0, {"search": 1.0})
    (lease,) = await grant_leases(
        journal.redis, journal.epoch, [LeaseGrant(action, f"1:{NODE}", 60_000, "", Taking(hold, ()))]
    )
    return lease


async def test_all_callers_of_an_action_are_woken_by_its_grant() -> None:
    waiters = LeaseWaiters(Redis())
    futures = [waiters.expect("a"), waiters.expect("a"), waiters.expect("b")]
    lease = GrantedLease("a", 7, 1000, 500)
    waiters.granted([lease, GrantedLease("nobody", 8, 1000, 500)])
    assert await asyncio.gather(*futures[:2]) == [lease, lease]
    assert (futures[2].done(), waiters.waited_for()) == (False, ["b"])
    waiters.discard("b", futures[2])
    assert len(waiters) == 0


async def test_an_answer_wakes_with_its_news_and_those_of_other_actions_are_not_read() -> None:
    waiters = LeaseWaiters(Redis())
    future = waiters.expect("a")
    waiters.answered("other", b"no JSON")
    news = LeaseNews(id="a", state="finished", ended="expired", retry_after_s=1.5)
    waiters.answered("a", msgspec.json.encode(news))
    assert await future == news


async def test_a_missed_wake_up_is_found_in_the_store(journal: Journal) -> None:
    waiters = LeaseWaiters(journal.redis)
    futures = {name: waiters.expect(name) for name in ("a", "b", "waits", "not journaled")}
    for name in ("a", "b", "waits"):
        await journal.entry(name)
    lease, ended = await granted(journal, "a"), await granted(journal, "b")
    await end_leases(journal.redis, [LeaseEnd("b", ended.fence)])
    await waiters.look_up(waiters.waited_for())
    assert {name for name, future in futures.items() if future.done()} == {"a", "b"}
    assert futures["a"].result() == lease
    assert futures["b"].result() == LeaseNews(id="b", state="finished")


def test_what_a_record_says() -> None:
    answer = msgspec.json.encode(LeaseNews(id="a", state="finished", ended="expired"))
    ends = {}
    for one in (record(answer=answer), record(fence=1, ended="expired"), record(fence=1, ended="revoked")):
        news = outcome_of("a", one)
        assert isinstance(news, LeaseNews)
        ends[one.ended] = news.ended
    assert ends == {"": "expired", "expired": "timeout", "revoked": "cancelled"}
    assert outcome_of("a", record()) is None
    assert outcome_of("a", None) is None, "it is not journaled yet"
    assert outcome_of("a", record(fence=3, expires_s=2.0)) == GrantedLease("a", 3, 2000, 20_000)
