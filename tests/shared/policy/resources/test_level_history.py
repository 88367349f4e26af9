"""Refunds of rates compared with levels that are computed again from all takes and what they have really used."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.model.quotas import Level, QuotaHold, QuotaLimits, Rate
from shared.policy.resources.level_history import MOST_LOWS, LevelHistory
from shared.policy.resources.quota_checks import check_quotas
from shared.policy.resources.quotas import Quotas

RATE = Rate(10.0, 10.0)
"""1 a second, 10 at once."""

steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "end"]),
        st.sampled_from([0.0, 0.3, 1.0, 4.0, 15.0]),
        st.sampled_from([0.0, 0.5, 2.0, 7.0, 10.0, 13.0]),
        st.integers(0, 9),
    ),
    max_size=40,
)


def replayed(events: list[tuple[float, float]], now: float) -> float:
    """Level after these increases, from the first one."""
    level, at_s = 0.0, 0.0
    for event_s, amount in events:
        level = max(0.0, level - (event_s - at_s)) + amount
        at_s = event_s
    return max(0.0, level - (now - at_s))


@given(steps)
@settings(deadline=None, max_examples=300)
def test_after_a_refund_the_level_is_as_if_only_the_used_amount_had_been_taken(
    history: list[tuple[str, float, float, int]],
) -> None:
    quotas, now = Quotas({"a": QuotaLimits((), (RATE,))}), 0.0
    events: list[tuple[float, float]] = []
    taken: dict[str, int] = {}
    for number, (what, pause_s, amount, pick) in enumerate(history):
        now += pause_s
        if what == "take" and quotas.fits({"a": amount}, now):
            hold = QuotaHold(f"r{number}", 0, 1, "n", "1", now, {"a": amount})
            quotas.take(hold, now + 5.0)
            taken[hold.key] = len(events)
            events.append((now, amount))
        elif what == "end" and taken:
            key = sorted(taken)[pick % len(taken)]
            at, had = taken.pop(key), quotas.holds[key].amounts["a"]
            quotas.settle(key, used={"a": amount}, now=now)
            events[at] = (events[at][0], min(amount, had))
            if amount > had:
                room = max(0.0, 2 * RATE.most - replayed(events, now))
                events.append((now, min(amount - had, room)))  # a debit counts from the end, up to two full buckets
        check_quotas(quotas)
        assert quotas.missing("a", RATE, now) == pytest.approx(replayed(events, now), abs=1e-6)


def test_a_bucket_that_was_full_meanwhile_gives_nothing_back() -> None:
    quotas = Quotas({"a": QuotaLimits((), (RATE,))})
    quotas.take(QuotaHold("slow", 0, 1, "n", "1", 0.0, {"a": 10.0}), 1.0)
    quotas.take(QuotaHold("next", 0, 1, "n", "1", 10.0, {"a": 10.0}), 11.0)
    quotas.settle("slow/0/1", used={"a": 1.0}, now=11.0)
    assert quotas.missing("a", RATE, 11.0) == 9.0, "the provider has counted 10 at 10 s"


def test_calls_that_last_long_get_their_whole_surplus_back_while_the_rate_is_busy() -> None:
    """Else long calls could use only the fraction of a rate that their estimate is wrong by."""
    quotas = Quotas({"a": QuotaLimits((), (Rate(100.0, 10.0, 100.0),))})
    for number in range(9):
        hold = QuotaHold(f"r{number}", 0, 1, "n", "1", 1.0 * number, {"a": 10.0 if number else 90.0})
        quotas.take(hold, 100.0)
    before = quotas.missing("a", Rate(100.0, 10.0, 100.0), 9.0)
    quotas.settle("r0/0/1", used={"a": 15.0}, now=9.0)
    assert quotas.missing("a", Rate(100.0, 10.0, 100.0), 9.0) == before - 75.0


def test_the_history_is_bounded_and_errs_on_the_side_of_smaller_refunds() -> None:
    rng, small, whole = random.Random(1), LevelHistory(0), LevelHistory(0)
    for serial in range(5_000):
        level = serial + rng.random()  # rising, so that each one is a low
        small.note(serial, level)
        whole._serials.append(serial)
        whole._lows.append(level)
    small.check()
    assert len(small._lows) <= MOST_LOWS
    for serial in range(0, 5_000, 97):
        assert small.refund(serial, 1e-9, 1e9) <= whole.refund(serial, 1e-9, 1e9)
        at = next(at for at, one in enumerate(whole._serials) if one > serial) if serial < 4_999 else 0
        assert small.refund(serial, 1e9, 1e9) <= whole._lows[at] + 1e-6
        small = LevelHistory(0)
        for one, low in zip(whole._serials, whole._lows, strict=True):
            small.note(one, low)


def test_a_hold_of_a_former_leader_gives_back_what_nothing_else_can_have_used() -> None:
    """The levels since its grant are not known."""
    quotas = Quotas({"a": QuotaLimits((), (RATE, Rate(50.0)))})
    for rate in (RATE, Rate(50.0)):
        quotas.restore_level("a", rate.period_s, Level(8.0, 0.0))
    quotas.restore(QuotaHold("r", 0, 1, "n", "1", 0.0, {"a": 8.0}), 1.0)
    quotas.take(QuotaHold("s", 0, 1, "n", "1", 2.0, {"a": 9.0}), 5.0)
    quotas.settle("r/0/1", used={"a": 1.0}, now=3.0)
    (settled,) = quotas.collect()
    assert [refund.amount for refund in settled.refunds] == [4.0, 7.0]  # type: ignore[union-attr]


def test_a_rate_that_was_added_after_the_grant_gives_nothing_back() -> None:
    quotas = Quotas({"a": QuotaLimits((5.0,))})
    quotas.take(QuotaHold("r", 0, 1, "n", "1", 0.0, {"a": 4.0}), 1.0)
    quotas.set("a", QuotaLimits((5.0,), (RATE,)))
    quotas.take(QuotaHold("s", 0, 1, "n", "1", 1.0, {"a": 1.0}), 2.0)
    quotas.settle("r/0/1", used={"a": 0.0}, now=1.0)
    assert quotas.missing("a", RATE, 1.0) == 1.0
