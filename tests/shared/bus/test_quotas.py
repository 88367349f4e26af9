"""Quotas in Valkey: changed in the write of the grant or the answer, repeated safely, read by a new leader."""

from __future__ import annotations

import random

import pytest
from redis.asyncio import Redis

from shared.bus.connection import command
from shared.bus.functions import Advancing, Answering, Deposed, Granting, advance_stages, answer_actions, send_grants
from shared.bus.holds import Taking
from shared.bus.quotas import SPENT_KEPT_S, change_holds, expire_levels, read_quotas, set_quota
from shared.messages.quotas import QUOTA_CHANGES, QuotaChanged
from shared.policy.model.quotas import QuotaHold, QuotaLimits, Rate, Settled
from shared.policy.resources.quotas import Quotas
from tests.shared.bus.journal import KEEP_ACTION_S, KEEP_BATCH_S, Journal, lead, resign

LIMITS = {
    "search": QuotaLimits((3.0,), (Rate(5.0, 2.0), Rate(40.0, 60.0))),
    "money": QuotaLimits((), (Rate(50.0),)),
}


def granting(quotas: Quotas, hold: QuotaHold) -> Granting:
    taking = Taking(hold, quotas.rates_of(hold.amounts))
    return Granting("grants.n.1", b"run", hold.action, f"{hold.attempt}:n", taking=taking)


async def restored(redis: Redis) -> Quotas:
    stored = await read_quotas(redis)
    quotas = Quotas(dict(stored.limits))
    for level in stored.levels:
        quotas.restore_level(level.quota, level.period_s, level.level)
    for hold in stored.holds:
        quotas.restore(hold, hold.at_s)
    return quotas


def assert_same(one: Quotas, other: Quotas, now: float) -> None:
    assert {key: dict(hold.amounts) for key, hold in one.holds.items()} == {
        key: dict(hold.amounts) for key, hold in other.holds.items()
    }
    for name, limits in one.limits.items():
        for rate in limits.rates:
            assert one.missing(name, rate, now) == other.missing(name, rate, now), f"{name} {rate}"


@pytest.mark.parametrize("seed", range(5))
async def test_a_new_leader_reads_exactly_what_is_taken(journal: Journal, seed: int) -> None:
    """Leaders die between any two writes, and repeat writes whose reply they have not seen."""
    rng, redis, epoch, now = random.Random(seed), journal.redis, journal.epoch, 1000.125
    for name, limits in LIMITS.items():
        await set_quota(redis, name, limits)
    quotas, entries = await restored(redis), dict[str, str]()
    for number in range(60):
        now += rng.random()
        step = rng.choice([*["grant"] * 3, "answer", "advance", "retry", "not begun", "used", "take over", "change"])
        action = f"a{number}"
        amounts = rng.choice([{"search": 1.0}, {"search": 0.3, "money": 1.7}, {"money": 3.1}])
        held = rng.choice(list(quotas.holds.values())) if quotas.holds else None
        if step == "grant" and quotas.fits(amounts, now):
            entries[action] = await journal.entry(action)
            hold = QuotaHold(action, 0, 1, "n", "1", now, amounts)
            quotas.take(hold, now + 1)
            for _ in range(rng.choice([1, 2])):
                await send_grants(redis, epoch, [granting(quotas, hold)])
        elif step == "change":
            rate = Rate(rng.choice([0.0, 1.0, 5.0, 70.0]), 2.0, rng.choice([None, 2.0, 9.0]))
            changed = QuotaLimits((3.0,), (rate, Rate(40.0, 60.0)))
            await set_quota(redis, "search", changed)
            quotas.set("search", changed, now)
            for _ in range(rng.choice([1, 2])):
                await change_holds(redis, epoch, quotas.changes)
        elif step == "take over":
            await resign(redis, "me")
            epoch = await lead(redis, "me", 30.0)
            new = await restored(redis)
            assert_same(quotas, new, now)
            quotas = new
        elif held is not None and step in ("answer", "advance", "retry", "not begun", "used"):
            used = {name: amount * rng.choice([0.3, 1.0, 1.9]) for name, amount in held.amounts.items()}
            step = rng.choice(["answer", "advance", "retry"]) if step == "used" else step
            quotas.settle(held.key, not_begun_s=now if step == "not begun" else None, used=used, now=now)
            (settled,) = quotas.collect()
            assert isinstance(settled, Settled)
            for _ in range(rng.choice([1, 2])):
                if step == "answer":
                    answer = Answering(held.action, entries[held.action], "", b"{}", KEEP_ACTION_S, settled=(settled,))
                    await answer_actions(redis, epoch, [answer], keep_batch_s=KEEP_BATCH_S)
                elif step == "advance":
                    await advance_stages(redis, epoch, [Advancing(held.action, 1, b"[]", settled=(settled,))])
                else:
                    await change_holds(redis, epoch, [settled])
        quotas.collect()
        assert_same(quotas, await restored(redis), now)


async def test_a_deposed_leader_changes_nothing(journal: Journal) -> None:
    await set_quota(journal.redis, "search", LIMITS["search"])
    quotas = await restored(journal.redis)
    entry = await journal.entry("a1")
    await resign(journal.redis, "me")
    await lead(journal.redis, "another", 30.0)
    hold = QuotaHold("a1", 0, 1, "n", "1", 5.0, {"search": 1.0})
    with pytest.raises(Deposed):
        await send_grants(journal.redis, journal.epoch, [granting(quotas, hold)])
    with pytest.raises(Deposed):
        await change_holds(journal.redis, journal.epoch, [hold])
    settled = (Settled(hold.key, "a1"),)
    with pytest.raises(Deposed):
        await journal.finish_all(Answering("a1", entry, "", b"{}", KEEP_ACTION_S, settled=settled))
    with pytest.raises(Deposed):
        await advance_stages(journal.redis, journal.epoch, [Advancing("a1", 1, b"[]", settled=settled)])
    assert await journal.unanswered() == ["a1"]
    assert not {"answer", "stage"} & set(await journal.fields("action:a1"))
    stored = await read_quotas(journal.redis)
    assert (stored.holds, stored.levels) == ([], [])
    assert await command(journal.redis, "EXISTS", "grants.n.1") == 0


async def test_a_hold_that_a_node_reports_takes_no_rate_again(journal: Journal) -> None:
    hold = QuotaHold("a1", 0, 2, "n", "7", 5.5, {"search": 1.0})
    await change_holds(journal.redis, journal.epoch, [hold])
    stored = await read_quotas(journal.redis)
    assert (stored.holds, stored.levels) == ([hold], [])


async def test_limits_are_stored_and_their_changes_published(journal: Journal) -> None:
    await set_quota(journal.redis, "search", LIMITS["search"])
    await set_quota(journal.redis, "money", LIMITS["money"])
    await set_quota(journal.redis, "search", None)
    assert (await read_quotas(journal.redis)).limits == {"money": LIMITS["money"]}
    assert await journal.messages(QUOTA_CHANGES) == [
        QuotaChanged(name="search", limits=LIMITS["search"]),
        QuotaChanged(name="money", limits=LIMITS["money"]),
        QuotaChanged(name="search"),
    ]


async def spent(journal: Journal, name: str, *rates: Rate, at_s: float) -> None:
    """An attempt has taken 1.0 of a quota and ended; nothing is given back."""
    await set_quota(journal.redis, name, QuotaLimits((), rates))
    hold = QuotaHold(f"{name}-{at_s}", 0, 1, "n", "1", at_s, {name: 1.0})
    await change_holds(journal.redis, journal.epoch, [Taking(hold, tuple((name, rate) for rate in rates))])
    await change_holds(journal.redis, journal.epoch, [Settled(hold.key, hold.action)])


async def levels(journal: Journal) -> list[tuple[str, float | None]]:
    return sorted((one.quota, one.period_s) for one in (await read_quotas(journal.redis)).levels)


async def test_a_level_leaves_when_it_has_refilled_and_its_quota_is_gone(journal: Journal) -> None:
    redis, epoch = journal.redis, journal.epoch
    await spent(journal, "deleted", Rate(5.0, 10.0), at_s=1000.0)
    await spent(journal, "changed", Rate(5.0, 10.0), at_s=1000.0)
    await spent(journal, "present", Rate(5.0, 10.0), at_s=1000.0)
    await set_quota(redis, "deleted", None)
    await set_quota(redis, "changed", QuotaLimits((), (Rate(5.0, 60.0),)))

    assert await expire_levels(redis, epoch, 1001.9) == [], "0.05 of each is missing"
    assert await levels(journal) == [("changed", 10.0), ("deleted", 10.0), ("present", 10.0)]
    assert len(await expire_levels(redis, epoch, 1002.0)) == 2
    assert await levels(journal) == [("present", 10.0)]


async def test_a_budget_without_refill_is_kept_for_a_week_after_its_quota_is_deleted(journal: Journal) -> None:
    await spent(journal, "money", Rate(50.0), at_s=1000.0)
    await set_quota(journal.redis, "money", None)

    assert await expire_levels(journal.redis, journal.epoch, 1000.0 + SPENT_KEPT_S) == []
    (level,) = await expire_levels(journal.redis, journal.epoch, 1001.0 + SPENT_KEPT_S)
    assert (level.quota, level.used) == ("money", 1.0)
    assert await levels(journal) == []


async def test_a_deposed_leader_expires_no_level(journal: Journal) -> None:
    await spent(journal, "deleted", Rate(5.0, 10.0), at_s=1000.0)
    await set_quota(journal.redis, "deleted", None)
    with pytest.raises(Deposed):
        await expire_levels(journal.redis, journal.epoch - 1, 2000.0)
    assert await levels(journal) == [("deleted", 10.0)]
