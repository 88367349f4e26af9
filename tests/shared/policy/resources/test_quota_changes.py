"""Rates that are changed: compared with an oracle that only remembers grants and the rates in force."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import StoreStalled
from shared.policy.model.formulation import ChangeHolds
from shared.policy.model.quotas import RATES_CHANGED, Level, QuotaHold, QuotaLimits, Rate, Refund, Settled
from shared.policy.resources.quota_changes import pause_refill
from shared.policy.resources.quota_checks import check_quotas
from shared.policy.resources.quotas import Quotas

PERIOD_S = 10.0
rates = st.builds(
    lambda limit, burst: Rate(limit, PERIOD_S, burst),
    st.sampled_from([0.0, 0.1, 1.0, 10.0, 50.0]),
    st.none() | st.sampled_from([0.0, 1.0, 7.0, 30.0]),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "take", "change", "change", "delete", "end"]),
        st.sampled_from([0.0, 0.0, 0.3, 2.0, 11.0]),
        st.sampled_from([0.1, 1.0, 5.0, 30.0]),
        rates,
        st.integers(0, 9),
    ),
    max_size=40,
)


def quota(rate: Rate) -> QuotaLimits:
    return QuotaLimits((), (rate,))


def taking(quotas: Quotas, name: str, amount: float, now: float) -> QuotaHold:
    hold = QuotaHold(name, 0, 1, "n", "1", now, {"a": amount})
    quotas.take(hold, now + 1.0)
    return hold


@given(rates, steps)
@settings(deadline=None, max_examples=400)
def test_no_sequence_of_changes_gives_more_than_the_bucket_and_the_refill_of_the_rates_in_force(
    rate: Rate, history: list[tuple[str, float, float, Rate, int]]
) -> None:
    quotas, now, refilled = Quotas({"a": quota(rate)}), 0.0, 0.0
    free: float | None = rate.most  # None: an attempt has given something back
    taken: list[list[float]] = []  # refill of the rates in force until then, burst in force, amount
    running: dict[str, list[float]] = {}
    for number, (what, pause_s, amount, changed, pick) in enumerate(history):
        now, refilled = now + pause_s, refilled + pause_s * rate.per_s
        free = None if free is None else min(rate.most, free + pause_s * rate.per_s)
        if what == "take" and quotas.fits({"a": amount}, now):
            taken.append([refilled, rate.most, amount])
            running[taking(quotas, f"r{number}", amount, now).key] = taken[-1]
            free = None if free is None else free - amount
        elif what in ("change", "delete"):
            before, touched = rate.most - quotas.missing("a", rate, now), bool(quotas.levels)
            if what == "delete":
                quotas.set("a", None, now)
            quotas.set("a", quota(changed), now)
            after = changed.most - quotas.missing("a", changed, now)
            assert after <= min(before, changed.most) + 1e-6 or not touched
            rate = changed
            free = None if free is None else min(free, rate.most) if touched else rate.most
        elif what == "end" and running:
            key = sorted(running)[pick % len(running)]
            grant, used = running.pop(key), amount / 3
            if used < quotas.holds[key].amounts["a"]:
                grant[2], free = used, None
                quotas.settle(key, used={"a": used}, now=now)
        check_quotas(quotas)
        assert free is None or rate.most - quotas.missing("a", rate, now) == pytest.approx(free, abs=1e-4)
        for first, (since, most, _) in enumerate(taken):
            total = 0.0
            for until, _, one in taken[first:]:
                total += one
                assert total <= most + until - since + 1e-6, f"{rate}: {taken[first:]}"


@pytest.mark.parametrize("amount", [100.0, 30.0])
def test_a_lowered_limit_with_the_same_burst_gives_nothing(amount: float) -> None:
    quotas = Quotas({"a": quota(Rate(100.0, 100.0, 100.0))})
    taking(quotas, "r", amount, 0.0)
    for limit in (1.0, 0.01, 100.0, 0.0, 5.0):
        quotas.set("a", quota(Rate(limit, 100.0, 100.0)), 0.0)
        assert not quotas.fits({"a": 101.0 - amount}, 0.0)
        assert quotas.fits({"a": 99.0 - amount}, 0.0) or amount == 100.0, "what was free stays free"


def test_a_raised_limit_is_refilled_at_its_rate_from_the_change_on() -> None:
    quotas, raised = Quotas({"a": quota(Rate(1.0, 100.0))}), Rate(1000.0, 100.0)
    taking(quotas, "r", 1.0, 0.0)
    quotas.set("a", quota(raised), 50.0)
    assert quotas.missing("a", raised, 50.0) == pytest.approx(999.5)
    assert quotas.missing("a", raised, 60.0) == pytest.approx(899.5)
    assert quotas.missing("a", raised, 151.0) == 0.0


def test_a_rate_that_was_paused_is_refilled_again() -> None:
    """Also if it was corrected during the pause, and if a new leader reads its level."""
    rate = Rate(10.0, 1.0, 10.0)
    quotas = Quotas({"a": quota(rate)})
    hold = taking(quotas, "r", 5.0, 0.0)
    quotas.set("a", quota(rate._replace(limit=0.0)), 0.0)
    quotas.settle(hold.key, used={"a": 30.0}, now=1.0)
    stored = quotas.levels["a", 1.0]
    assert (stored.used, stored.per_s) == (20.0, 0.0), "up to two full buckets, as of every rate with a period"
    quotas.set("a", quota(rate), 2.0)
    assert not quotas.fits({"a": 1.0}, 2.0)
    assert quotas.free_at({"a": 1.0}, 2.0) == pytest.approx(3.1)
    assert quotas.fits({"a": 1.0}, 3.2)
    quotas = Quotas({"a": quota(rate)})
    quotas.restore_level("a", 1.0, stored, 50.0)
    assert quotas.free_at({"a": 1.0}, 50.0) == pytest.approx(51.1)
    assert quotas.fits({"a": 1.0}, 51.2)


def test_a_paused_rate_is_no_budget() -> None:
    quotas = Quotas({"a": quota(Rate(0.0, 1.0, 10.0))})
    hold = taking(quotas, "r", 5.0, 0.0)
    quotas.settle(hold.key, used={"a": 1e9}, now=0.0)
    assert quotas.missing("a", Rate(0.0, 1.0, 10.0), 0.0) == 20.0
    assert quotas.free_at({"a": 1.0}, 0.0) == math.inf


def test_a_change_is_reported_to_the_store_once() -> None:
    quotas, lower = Quotas({"a": quota(Rate(10.0, 10.0))}), Rate(4.0, 10.0)
    taking(quotas, "r", 10.0, 3.0)
    quotas.set("a", quota(lower), 4.0)
    quotas.set("a", quota(lower), 5.0)
    at_s = math.nextafter(4.0, math.inf)
    assert quotas.collect() == [Settled(RATES_CHANGED, "", (Refund("a", lower, 6.0, at_s),))]
    assert quotas.missing("a", lower, 4.0) == pytest.approx(3.0)
    assert quotas.levels["a", 10.0][1:] == (at_s, 0.4, 4.0, 3.0)


@given(
    st.sampled_from([None, PERIOD_S]),
    st.lists(
        st.tuples(
            st.sampled_from(["take", "take", "set", "remove", "delete", "end", "take over"]),
            st.sampled_from([1.0, 5.0, 30.0]),
            st.integers(0, 9),
        ),
        max_size=30,
    ),
)
@settings(deadline=None, max_examples=500)
def test_an_attempt_gives_back_no_more_than_it_has_taken_from_a_rate_that_comes_and_goes(
    period_s: float | None, history: list[tuple[str, float, int]]
) -> None:
    """The refill is too slow to matter. Each attempt counts with what it has taken while the rate was set."""
    rate = Rate(1e-6 if period_s else 1e3, period_s, 1e3)
    limits = {"set": quota(rate), "remove": QuotaLimits((1e9,)), "delete": None}
    quotas, now = Quotas({"a": quota(rate)}), 0.0
    counted: dict[str, float] = {}
    running: list[str] = []
    for number, (what, amount, pick) in enumerate(history):
        now += 1.0
        is_set = "a" in quotas.limits and bool(quotas.limits["a"].rates)
        if what == "take" and quotas.fits({"a": amount}, now):
            key = taking(quotas, f"r{number}", amount, now).key
            counted[key] = amount if is_set else 0.0
            running.append(key)
        elif what in limits:
            quotas.set("a", limits[what], now)
        elif what == "take over":
            quotas = restored(quotas, quotas.limits.get("a"), now)
        elif what == "end" and running:
            key = running.pop(pick % len(running))
            used = amount / 30
            quotas.settle(key, used={"a": used}, now=now)
            counted[key] = min(counted[key], used) if is_set else counted[key]
        check_quotas(quotas)
        assert quotas.missing("a", rate, now) >= sum(counted.values()) - 1e-3


def restored(quotas: Quotas, limits: QuotaLimits | None, now: float) -> Quotas:
    """Return the ledger of a new leader, which reads these limits from the store."""
    made = Quotas()
    if limits is not None:
        made.set("a", limits, now, read=True)
    for (name, period_s), level in quotas.levels.items():
        made.restore_level(name, period_s, level, now)
    for key, hold in quotas.holds.items():
        made.restore(hold, quotas.ends[key])
    return made


def test_a_new_leader_gives_nothing_for_a_limit_that_was_raised_when_no_leader_was_alive() -> None:
    """Also if the quota was deleted and created again."""
    low, high = Rate(10.0, 864.0), Rate(1000.0, 864.0)
    for deleted in (False, True):
        quotas = Quotas({"a": quota(low)})
        taking(quotas, "r", 10.0, 0.0)
        quotas = restored(quotas, None if deleted else quota(high), 1.0)
        if deleted:
            quotas.set("a", quota(high), 1.0)
        assert high.most - quotas.missing("a", high, 1.0) == pytest.approx(10.0 / 864.0, abs=1e-3)
        assert high.most - quotas.missing("a", high, 2.0) == pytest.approx(1000.0 / 864.0, abs=0.02)


def test_nothing_is_refilled_during_a_stall_of_the_store() -> None:
    """What was granted before it reaches its callers at its end. Budgets and full rates are as they were."""
    rate, money = Rate(4.0, 1.0), Rate(50.0)
    quotas = Quotas({"a": quota(rate), "b": quota(rate), "money": quota(money)})
    taking(quotas, "first", 3.0, 9.0)
    taking(quotas, "second", 3.5, 10.1)
    quotas.take(QuotaHold("third", 0, 1, "n", "1", 10.0, {"money": 7.0}), 11.0)
    dispatcher = Dispatcher()
    dispatcher.cluster.quotas = quotas
    (change,) = dispatcher.handle(12.6, StoreStalled(2.6))
    assert isinstance(change, ChangeHolds)
    (settled,) = change.changes
    assert isinstance(settled, Settled)
    (refund,) = settled.refunds
    assert (settled.key, refund.quota) == (RATES_CHANGED, "a")
    assert refund.amount == pytest.approx(-3.5)
    assert quotas.missing("a", rate, 12.6) == pytest.approx(3.5), "as at the last grant"
    assert (quotas.missing("b", rate, 12.6), quotas.missing("money", money, 12.6)) == (0.0, 7.0)
    assert not quotas.fits({"a": 1.0}, 12.6)
    assert quotas.fits({"a": 1.0}, 12.8)
    assert dispatcher.handle(12.6, StoreStalled(2.6)) == []


def test_a_store_that_is_always_slow_gives_a_part_of_the_rate() -> None:
    """Each write takes half a second, so the refill of a quarter of a second counts each time."""
    rate = Rate(4.0, 1.0)
    quotas, given = Quotas({"a": quota(rate)}), 0
    for number in range(1, 201):
        now = number / 2
        pause_refill(quotas, now - 0.25, now)
        while quotas.fits({"a": 1.0}, now):
            given += 1
            taking(quotas, f"r{number} {given}", 1.0, now)
    assert given == pytest.approx(4 + 100 * 4 / 2, abs=2)


def test_a_level_of_a_former_version_is_restored_with_the_burst_of_the_rate() -> None:
    rate = Rate(10.0, 10.0)
    quotas = Quotas({"a": quota(rate)})
    quotas.restore_level("a", 10.0, Level(4.0, 0.0, 1.0), 1.0)
    assert quotas.missing("a", rate, 1.0) == 3.0
    quotas.set("a", quota(Rate(20.0, 10.0)), 1.0)
    assert quotas.missing("a", Rate(20.0, 10.0), 1.0) == pytest.approx(13.0)
