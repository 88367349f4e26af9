"""Leases that the leader decides about for its own callers, on a real store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
from redis.asyncio import Redis

from services.proxy.leader.dispatching import Suspects
from services.proxy.leader.interpreter import Interpreter
from services.proxy.leader.leader import Leader
from services.proxy.records.intake import submission_of
from services.proxy.records.lease_waiters import LeaseWaiters, Outcome
from shared.api.leases import LeaseNews
from shared.bus import held_leases, keys, streams
from shared.bus.connection import ValkeyClock, command
from shared.bus.functions import journal_actions
from shared.bus.held_leases import LeaseEnd, LeaseRelease, LeaseRevocation, encoded_amounts
from shared.bus.quotas import read_quotas
from shared.bus.tail import Tail
from shared.kinds.registry import all_kinds
from shared.messages.actions import ACTIONS, ActionSubmitted, StageWork
from shared.messages.leases import KIND, POOL, RESOURCE, GrantedLease
from shared.messages.outcomes import OUTCOMES
from shared.messages.quotas import QUOTA_CHANGES
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.model.quotas import QuotaLimits, Rate
from shared.runtime.errors import Overloaded
from tests.shared.bus.flaky import Flaky
from tests.shared.bus.journal import Journal, lead, resign

MOST = 3
LATE_S = 20.0
LIMITS = QuotaLimits((2.0,), (Rate(100.0, 60.0),))


def lease(action: str, *, wait_s: float = 30.0, ttl_s: float = 20.0, quota: str = "search") -> ActionSubmitted:
    stage = StageWork(
        name=KIND, kind=KIND, pool=POOL, cost={RESOURCE: (1, 1)}, timeout_s=ttl_s, repeatable=False,
        params=b'{"ttl_s": %g}' % ttl_s, quotas={quota: 1.0},
    )  # fmt: skip
    return ActionSubmitted(action=action, tenant="ada", stages=(stage,), budget_s=wait_s)


@dataclass
class Term:
    """A leader and its interpreter. `run` executes what was decided, and decides what has come."""

    journal: Journal
    clock: ValkeyClock
    waiters: LeaseWaiters
    leader: Leader
    interpreter: Interpreter
    flaky: Flaky
    callers: dict[str, asyncio.Future[Outcome | None]] = field(default_factory=dict)

    @property
    def redis(self) -> Redis:
        return self.journal.redis

    def ask(self, submitted: ActionSubmitted) -> asyncio.Future[bool]:
        self.callers[submitted.action] = self.waiters.expect(submitted.action)
        return self.leader.local_leases.acquire(submitted)

    async def run(self) -> None:
        """Decide and write, until nothing is left. A lost connection is found again."""
        self.leader.local_leases.decide()
        while self.interpreter._waiting and not self.interpreter.deposed:
            await self.interpreter._flush()
            self.leader.local_leases.decide()
        self.leader.dispatcher.check()

    async def granted(self, submitted: ActionSubmitted) -> GrantedLease:
        journaled = self.ask(submitted)
        await self.run()
        outcome = await self.callers[submitted.action]
        assert (await journaled, isinstance(outcome, GrantedLease)) == (True, True)
        assert isinstance(outcome, GrantedLease)
        return outcome

    async def released(self, lease: GrantedLease, **used: float) -> str | None:
        ended = self.leader.local_leases.release(lease.action, lease.fence, used)
        if ended is None:
            return None
        await self.run()
        return await ended

    async def record(self, action: str) -> dict[bytes, bytes]:
        fields = await command(self.redis, "HGETALL", keys.action(action))
        return dict(fields) if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))

    async def is_empty(self) -> bool:
        """Return whether nothing is unanswered or held, here or in the store."""
        held = (await read_quotas(self.redis)).holds
        counts = [await command(self.redis, "XLEN", "actions"), await command(self.redis, "ZCARD", keys.LEASES_DUE)]
        return not held and counts == [0, 0] and not self.leader.unanswered


@pytest.fixture
async def term(journal: Journal) -> Term:
    clock = await ValkeyClock.measure(journal.redis)
    waiters = LeaseWaiters(journal.redis)
    flaky = Flaky(journal.redis)
    interpreter = Interpreter(
        flaky, journal.epoch, lambda one, _: waiters.answered(one.action, one.answer), keep_batch_s=600.0,
        leased=waiters.granted, max_journal=MOST,
    )  # fmt: skip
    dispatcher = Dispatcher(specs=all_kinds().resources)
    leader = Leader(journal.epoch, dispatcher, interpreter, clock, lambda _: 60)
    leader.handle(QuotaSet("search", LIMITS))
    leader.serve_leases()
    made = Term(journal, clock, waiters, leader, interpreter, flaky)
    await made.run()
    for entry in await Tail(journal.redis, {OUTCOMES: "0"}).read(block=False):  # the inventory
        leader.take([entry])
    return made


async def stored(term: Term, action: str) -> dict[str, Any]:
    """What the store has of a lease and the mesh has of its quota; times, ids and fences as whether there are any."""
    record = {name.decode(): value.decode(errors="replace") for name, value in (await term.record(action)).items()}
    for varying in ("entry", "granted_ms", "expires_ms", "fence"):
        if varying in record:
            record[varying] = "some"
    if "answer" in record:
        record["answer"] = record["answer"].replace(f'"{action}"', '"ID"')
    holds = [(one.node, dict(one.amounts)) for one in (await read_quotas(term.redis)).holds]
    return {
        "record": record,
        "holds": holds,
        "levels": len((await read_quotas(term.redis)).levels),
        "due": await command(term.redis, "ZCARD", keys.LEASES_DUE),
        "journal": await command(term.redis, "XLEN", "actions"),
        "expires": await command(term.redis, "TTL", keys.action(action)) > 0,
    }


async def test_both_ways_leave_the_same_in_the_store(term: Term, reader: Redis) -> None:
    tail = Tail(reader, {ACTIONS: "0", OUTCOMES: await streams.last_id(reader, OUTCOMES)})
    there = lease("far")
    await journal_actions(term.redis, [submission_of(there)], max_journal=MOST)
    term.leader.take(await tail.read())
    await term.run()
    far = [await stored(term, "far")]
    fence = int((await term.record("far"))[b"fence"])
    await held_leases.end_leases(term.redis, [LeaseEnd("far", fence, encoded_amounts({"search": 1.0}))])
    term.leader.take(await tail.read())
    await term.run()
    far.append(await stored(term, "far"))
    assert await term.is_empty()

    here = await term.granted(lease("near"))
    near = [await stored(term, "near")]
    assert await term.released(here, search=1.0) == "held"
    near.append(await stored(term, "near"))
    assert near == far
    assert await term.is_empty()


async def test_the_leader_does_not_read_what_it_has_decided_and_its_successor_does(term: Term, reader: Redis) -> None:
    await term.granted(lease("a"))
    epoch = term.journal.epoch
    assert await Tail(reader, {ACTIONS: "0"}, decided_by=epoch).read(block=False) == []
    for tail in (Tail(reader, {ACTIONS: "0"}), Tail(reader, {ACTIONS: "0"}, decided_by=epoch + 1)):
        (entry,) = await tail.read(block=False)
        assert (entry.message, entry.index) == (lease("a"), -1)


async def test_a_lease_that_waits_is_journaled_and_granted_by_a_release(term: Term) -> None:
    first = [await term.granted(lease(name)) for name in ("a", "b")]
    waiting = term.ask(lease("c"))
    await term.run()
    assert await waiting
    assert not term.callers["c"].done()
    assert set(await term.record("c")) == {b"digest", b"entry", b"batch"}
    assert await term.released(first[0]) == "held"
    third = await term.callers["c"]
    assert isinstance(third, GrantedLease)
    assert third.fence > first[1].fence
    for one in (first[1], third):
        assert await term.released(one) == "held"
    assert await term.is_empty()


async def test_a_refused_lease_takes_the_way_through_the_journal(term: Term) -> None:
    """The memory of a leader that is deposed without knowing it could refuse what its successor can give."""
    journaled = term.ask(lease("a", quota="unknown"))
    await term.run()
    assert await journaled is False
    assert not term.callers["a"].done()
    assert await term.record("a") == {}
    assert await term.is_empty()


async def test_an_answer_before_the_journal_has_the_lease_waits_for_it(term: Term) -> None:
    held = [await term.granted(lease(name)) for name in ("a", "b")]
    journaled = term.ask(lease("c", wait_s=0.05))
    term.leader.local_leases.decide()
    await asyncio.sleep(0.06)
    term.leader.tick(term.clock.unix())
    assert "c" not in term.leader.unanswered
    await term.run()
    news = await term.callers["c"]
    assert isinstance(news, LeaseNews)
    assert (await journaled, news.ended) == (True, "expired")
    assert await term.redis.xlen("actions") == 2
    for one in held:
        await term.released(one)
    assert await term.is_empty()


async def test_nothing_is_decided_while_the_leader_cannot_read(term: Term, reader: Redis) -> None:
    """A limit may have been changed after Valkey came back, and before the leader reads again."""
    term.leader.local_leases.tail = tail = Tail(reader, {QUOTA_CHANGES: "0"})
    tail.away = True
    journaled = term.ask(lease("a"))
    await term.run()
    assert (journaled.done(), list(term.leader.unanswered)) == (False, [])
    timers = MagicMock(wraps=asyncio.get_running_loop().call_later)
    with patch.object(asyncio.get_running_loop(), "call_later", timers):
        for _ in range(100):
            term.leader.local_leases.decide()
    assert timers.call_count == 0, "one timer is under way"
    tail.away = False
    running = asyncio.create_task(term.interpreter.run())
    async with asyncio.timeout(20):
        assert await journaled, "it tries again by itself"
    running.cancel()


async def test_a_full_journal_rejects_and_leaves_nothing(term: Term) -> None:
    entries = [await term.journal.entry(f"work{number}") for number in range(MOST - 1)]
    first = await term.granted(lease("a"))
    for name in ("b", "c"):
        journaled = term.ask(lease(name))
        await term.run()
        with pytest.raises(Overloaded, match="too many unanswered actions"):
            await journaled
        assert (await term.record(name), list(term.leader.unanswered)) == ({}, ["a"])
    assert len((await read_quotas(term.redis)).holds) == 1
    slots, rate = term.leader.dispatcher.limit_states({"search": 1.0}, term.clock.unix())
    assert slots.free == 1.0
    assert rate.free == pytest.approx(99.0, abs=0.5), "the ledger is as if they had never come"
    assert term.leader.dispatcher.learned_amounts(0)[1] == {}, "nothing was used, and nothing is learned"
    await command(term.redis, "XDEL", "actions", *entries)
    second = await term.granted(lease("d"))
    for one in (first, second):
        assert await term.released(one) == "held"
    assert await term.is_empty()


async def test_a_rejection_leaks_nothing_of_a_lease_that_it_lets_another_have(term: Term) -> None:
    """The end of a rejected lease grants the next one that waits, which is rejected too."""
    entries = [await term.journal.entry(f"work{number}") for number in range(MOST)]
    journaled = [term.ask(lease(name)) for name in "abcd"]
    await term.run()
    for one in journaled:
        with pytest.raises(Overloaded):
            await one
    assert [level.used for level in (await read_quotas(term.redis)).levels if level.used > 0.1] == []
    await command(term.redis, "XDEL", "actions", *entries)
    assert await term.is_empty()


async def test_a_rejected_lease_is_not_written_by_the_repeat_of_its_flush(term: Term) -> None:
    entries = [await term.journal.entry(f"work{number}") for number in range(MOST)]
    journaled = term.ask(lease("a"))
    term.leader.local_leases.decide()
    term.interpreter.discard("1-1")
    term.flaky.failures = [None, "before"]  # the acquisition is rejected, then the connection is lost
    freed = asyncio.ensure_future(term.run())
    with pytest.raises(Overloaded):
        await journaled
    await command(term.redis, "XDEL", "actions", *entries)
    await freed
    assert await term.record("a") == {}
    assert await term.is_empty()


@pytest.mark.parametrize("work", [0, MOST])
async def test_a_lease_whose_reply_was_lost_is_found_by_the_repeat(term: Term, work: int) -> None:
    journaled = term.ask(lease("a"))
    term.leader.local_leases.decide()
    term.flaky.failures = ["after"]
    running = asyncio.ensure_future(term.run())
    while term.flaky.failures or not await term.record("a"):  # noqa: ASYNC110  # polls the store
        await asyncio.sleep(0)
    requests = [await command(term.redis, "XADD", "actions", "*", "m", b"a cancellation") for _ in range(work)]
    await running
    assert await journaled, "although the journal is over its bound by now"
    one = await term.callers["a"]
    assert isinstance(one, GrantedLease)
    assert await term.released(one) == "held"
    if requests:
        await command(term.redis, "XDEL", "actions", *requests)
    assert await term.is_empty()


async def test_a_release_is_written_before_the_grant_that_it_allows(term: Term) -> None:
    held = [await term.granted(lease(name)) for name in ("a", "b")]
    term.ask(lease("c"))
    await term.run()
    term.flaky.sent.clear()
    assert await term.released(held[0]) == "held"
    assert term.flaky.sent == ["release_leases_with_quotas", "grant_leases_with_quotas"]


async def test_a_lease_that_was_written_late_expires(term: Term) -> None:
    term.leader.leases._due_s = float("inf")
    one = await term.granted(lease("a"))
    term.leader.leases._due_s = float("inf")  # as after a sweep between decision and write
    term.leader.local_leases.granted([one])
    assert term.leader.leases._due_s == one.expires_ms / 1000


async def test_the_end_of_a_term_names_the_leases_of_callers_that_have_gone(term: Term) -> None:
    gone, present = term.ask(lease("a")), term.ask(lease("b"))
    term.leader.local_leases.decide()
    gone.cancel()
    assert term.leader.local_leases.close() == ["a"]
    assert await present is False


async def test_a_caller_that_goes_before_the_decision_submits_nothing(term: Term) -> None:
    term.ask(lease("a")).cancel()
    await term.run()
    assert await term.record("a") == {}
    assert await term.is_empty()


async def test_a_caller_that_goes_during_the_write_holds_nothing(term: Term, reader: Redis) -> None:
    tail = Tail(reader, {OUTCOMES: await streams.last_id(reader, OUTCOMES)})
    waiting = [term.ask(lease(name)) for name in ("a", "b", "c")]
    term.leader.local_leases.decide()
    for journaled in waiting:
        journaled.cancel()
    await term.run()
    term.leader.take(await tail.read(block=False))
    await term.run()
    assert await term.is_empty()
    assert b'"ended":"cancelled"' in (await term.record("a"))[b"answer"]
    assert {one.used for one in (await read_quotas(term.redis)).levels} == {0.0}, "nothing was granted to anybody"
    states = term.leader.dispatcher.limit_states({"search": 1.0}, term.clock.unix())
    assert [one.free for one in states] == [2.0, 100.0]


async def test_the_release_of_an_expired_lease_is_left_to_the_store_and_changes_nothing(
    term: Term, reader: Redis
) -> None:
    tail = Tail(reader, {OUTCOMES: await streams.last_id(reader, OUTCOMES)})
    one = await term.granted(lease("a", ttl_s=0.05))
    before = await read_quotas(term.redis)
    await asyncio.sleep(0.06)
    assert await term.released(one, search=0.0) is None
    assert await held_leases.end_leases(term.redis, [LeaseEnd("a", one.fence, b'{"search":0}')]) == ["over"]
    assert await read_quotas(term.redis) == before
    assert (await held_leases.expire_leases(term.redis, term.journal.epoch, 10))[0] == 1
    term.leader.take(await tail.read())
    await term.run()
    assert (await term.record("a"))[b"ended"] == b"expired"
    assert await term.is_empty()
    assert (await read_quotas(term.redis)).levels == before.levels


async def test_a_lease_that_was_renewed_is_released_by_the_store_after_its_first_time(
    term: Term, reader: Redis
) -> None:
    tail = Tail(reader, {OUTCOMES: await streams.last_id(reader, OUTCOMES)})
    one = await term.granted(lease("a"))
    held = term.leader.unanswered["a"].held
    assert held is not None
    assert held.expires_s == one.expires_ms / 1000
    held.expires_s = term.clock.unix()  # its first time is over, and the leader does not read renewals
    assert await term.released(one, search=0.0) is None
    assert await held_leases.end_leases(term.redis, [LeaseEnd("a", one.fence, b'{"search":0}')]) == ["held"]
    term.leader.take(await tail.read())
    await term.run()
    assert await term.is_empty()
    assert [level.used for level in (await read_quotas(term.redis)).levels] == [0.0]


async def test_a_lease_that_expires_between_decision_and_write_of_its_release_is_released(term: Term) -> None:
    one = await term.granted(lease("a", ttl_s=0.2))
    ended = term.leader.local_leases.release("a", one.fence, {"search": 0.0})
    term.leader.local_leases.decide()
    await asyncio.sleep(0.21)
    await term.run()
    assert ended is not None
    assert await ended == "held"
    assert (await term.record("a"))[b"ended"] == b"released"
    assert await term.is_empty()


async def test_the_release_of_a_lease_that_the_store_has_ended_is_over(term: Term, reader: Redis) -> None:
    tail = Tail(reader, {OUTCOMES: await streams.last_id(reader, OUTCOMES)})
    one = await term.granted(lease("a"))
    await held_leases.revoke_leases(term.redis, term.journal.epoch, [LeaseRevocation("a", 1)])
    assert await term.released(one) == "over"
    assert (await term.record("a"))[b"ended"] == b"revoked"
    term.leader.take(await tail.read())
    await term.run()
    assert await term.is_empty()


async def test_only_its_holder_releases_a_lease_here(term: Term) -> None:
    one = await term.granted(lease("a"))
    local = term.leader.local_leases
    assert local.release("a", one.fence + 1, {}) is None
    assert local.release("b", one.fence, {}) is None
    assert local.release("a", one.fence, {"serch": 1.0}) is None
    twice = [local.release("a", one.fence, {}) for _ in range(2)]
    await term.run()
    assert [await ended for ended in twice if ended is not None] == ["held", None]
    assert await term.is_empty()


@pytest.mark.parametrize("decided", [False, True])
async def test_a_second_settlement_is_left_to_the_store_after_the_write_of_the_first(term: Term, decided: bool) -> None:
    """Before it, the store would end the lease with the second amounts, and the ledger has the first ones."""
    one = await term.granted(lease("a"))
    local = term.leader.local_leases
    first = local.release("a", one.fence, {"search": 0.5})
    if decided:
        local.decide()
    second = local.release("a", one.fence, {"search": 0.25})
    local.decide()
    assert first is not None
    assert second is not None
    assert not second.done()
    await term.run()
    assert (await first, await second) == ("held", None)
    for used, code in (({"search": 0.5}, "released"), ({"search": 0.25}, "other-amounts"), ({}, "released")):
        assert local.release("a", one.fence, used) is None
        assert await held_leases.end_leases(term.redis, [LeaseEnd("a", one.fence, encoded_amounts(used))]) == [code]
    assert await term.is_empty()


async def test_the_leaders_settlement_counts_although_another_replica_was_first(term: Term, reader: Redis) -> None:
    """The leader has not read the outcome of the other one. docs/quotas.md describes this."""
    term.leader.handle(QuotaSet("slow", QuotaLimits((2.0,), (Rate(100.0, 86_400.0),))))
    tail = Tail(reader, {OUTCOMES: await streams.last_id(reader, OUTCOMES)})
    one = await term.granted(lease("a", quota="slow"))
    end = LeaseEnd("a", one.fence, encoded_amounts({"slow": 0.25}))
    assert await held_leases.end_leases(term.redis, [end]) == ["held"]
    assert await term.released(one, slow=0.5) == "other-amounts"
    term.leader.take(await tail.read())
    await term.run()
    assert [level.used for level in (await read_quotas(term.redis)).levels] == [pytest.approx(0.5, abs=0.05)]
    assert await term.is_empty()


async def test_the_end_of_a_term_leaves_second_settlements_to_the_store(term: Term) -> None:
    one = await term.granted(lease("a"))
    local = term.leader.local_leases
    calls = [local.release("a", one.fence, {"search": 0.5})]
    local.decide()
    calls.append(local.release("a", one.fence, {"search": 0.25}))
    local.close()
    assert [await call for call in calls if call is not None] == [None, None]


async def test_a_repeated_flush_changes_nothing(term: Term) -> None:
    journaled = term.ask(lease("a"))
    term.leader.local_leases.decide()
    (write,) = batch = term.interpreter._next()
    for _ in range(2):
        await term.interpreter._write(batch)
    assert await journaled
    assert await term.redis.xlen("actions") == 1
    outcome = await term.callers["a"]
    assert isinstance(outcome, GrantedLease)
    ended = term.leader.local_leases.release("a", outcome.fence, {})
    term.leader.local_leases.decide()
    batch = term.interpreter._next()
    for _ in range(2):
        await term.interpreter._write(batch)
    assert ended is not None
    assert await ended == "held"
    assert write is not batch[0]
    assert await term.is_empty()
    release = batch[0]
    assert isinstance(release, LeaseRelease)
    assert await held_leases.release_leases(term.redis, term.journal.epoch, [release]) == ["released"]
    other = release._replace(used=encoded_amounts({"search": 0.5}))
    assert await held_leases.release_leases(term.redis, term.journal.epoch, [other]) == ["other-amounts"]


async def test_a_deposed_leader_writes_nothing_and_lets_its_callers_go_on(term: Term) -> None:
    one = await term.granted(lease("a"))
    await resign(term.redis, "me")
    await lead(term.redis, "you", 30.0)
    journaled, ended = term.ask(lease("b")), term.leader.local_leases.release("a", one.fence, {})
    await term.run()
    assert term.interpreter.deposed
    late = term.leader.local_leases.acquire(lease("c"))
    term.leader.local_leases.close()
    assert ended is not None
    assert [await journaled, await late, await ended] == [False, False, None]
    assert await term.record("b") == {}
    assert (await held_leases.end_leases(term.redis, [LeaseEnd("a", one.fence)])) == ["held"]


async def test_ends_and_acquisitions_of_one_moment_are_one_call_of_the_dispatcher(term: Term) -> None:
    first = await term.granted(lease("a"))
    calls = recorded(term)
    await released_and_acquired(term, first)
    assert calls[0] == ["AttemptsEnded", "RequestsSubmitted"]


async def test_while_actions_are_suspected_ends_are_a_call_of_their_own(term: Term) -> None:
    """A failure with a suspect would count its ends as suspects, too."""
    first = await term.granted(lease("a"))
    term.leader.suspects = Suspects({"other": 1})
    calls = recorded(term)
    await released_and_acquired(term, first)
    assert calls[:2] == [["AttemptsEnded"], ["RequestsSubmitted"]]


async def released_and_acquired(term: Term, first: GrantedLease) -> None:
    """Release a lease and acquire another one in one moment."""
    ended = term.leader.local_leases.release(first.action, first.fence, {})
    journaled = term.ask(lease("b"))
    await term.run()
    assert ended is not None
    assert (await ended, await journaled) == ("held", True)


def recorded(term: Term) -> list[list[str]]:
    """Return the list of the dispatcher's calls from now on, each as names of its stimuli."""
    calls: list[list[str]] = []
    handle = term.leader._guarded.handle

    def noting(now: float, given: Any) -> Any:
        calls.append([type(one).__name__ for one in given])
        return handle(now, given)

    term.leader._guarded.handle = noting  # type: ignore[method-assign]
    return calls
