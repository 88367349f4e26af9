"""Quotas compared with an oracle that only remembers grants and ends: no limit is exceeded in any window."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.policy.model.quotas import Level, QuotaHold, QuotaLimits, Rate, Settled
from shared.policy.resources.quota_checks import check_quotas
from shared.policy.resources.quota_refusals import closed_until_s, why_never
from shared.policy.resources.quotas import Quotas

amounts = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.7])
rates = st.builds(Rate, st.sampled_from([1.0, 2.0, 5.0]), st.none() | st.sampled_from([0.5, 1.0, 10.0]))
bursts = st.builds(lambda rate, burst: rate._replace(burst=burst), rates, st.none() | st.sampled_from([1.0, 4.0, 9.0]))
limits = st.builds(
    QuotaLimits,
    st.lists(st.sampled_from([1.0, 2.0, 4.5]), max_size=2).map(tuple),
    st.lists(bursts, max_size=3, unique_by=lambda rate: rate.period_s).map(tuple),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["grant", "grant", "grant", "end", "not begun", "undo"]),
        st.floats(0, 3),
        st.dictionaries(st.sampled_from(["a", "b"]), amounts, max_size=2),
        st.integers(0, 5),
    ),
    max_size=40,
)


@dataclass
class History:
    """Oracle: every attempt that has begun, and what runs."""

    limits: dict[str, QuotaLimits]
    begun: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    running: dict[str, QuotaHold] = field(default_factory=dict)

    def check(self) -> None:
        for name, one in self.limits.items():
            used = sum(hold.amounts.get(name, 0.0) for hold in self.running.values())
            assert all(used <= most + 1e-6 for most in one.concurrency)
            taken = [(at_s, amounts.get(name, 0.0)) for at_s, amounts in self.begun]
            for rate in one.rates:
                for first, (begin_s, _) in enumerate(taken):
                    total = 0.0
                    for end_s, amount in taken[first:]:
                        total += amount
                        assert total <= rate.most + (end_s - begin_s) * rate.per_s + 1e-6, f"{name} {rate}"


@given(st.fixed_dictionaries({"a": limits, "b": limits}), steps)
@settings(deadline=None)
def test_no_limit_is_exceeded_in_any_window(
    by_name: dict[str, QuotaLimits], history: list[tuple[str, float, dict[str, float], int]]
) -> None:
    quotas, oracle, now = Quotas(dict(by_name)), History(by_name), 100.0
    for number, (what, pause_s, wanted, pick) in enumerate(history):
        now += pause_s
        hold = QuotaHold(f"r{number}", 0, 1, "n", "1", now, wanted)
        if what == "grant" and quotas.fits(wanted, now):
            quotas.take(hold, now + 1.0)
            oracle.running[hold.key] = hold
            oracle.begun.append((now, wanted))
        elif what == "undo" and quotas.fits(wanted, now):
            before = dict(quotas.used), {key: quotas.missing(key, rate, now) for key, rate in _rates(by_name)}
            quotas.take(hold, now + 1.0)
            quotas.undo(hold.key)
            after = dict(quotas.used), {key: quotas.missing(key, rate, now) for key, rate in _rates(by_name)}
            assert before[0] == pytest.approx(after[0])
            assert before[1] == pytest.approx(after[1])
        elif what in ("end", "not begun") and oracle.running:
            key = list(oracle.running)[pick % len(oracle.running)]
            ended = oracle.running.pop(key)
            quotas.settle(key, not_begun_s=now if what == "not begun" else None)
            if what == "not begun":
                oracle.begun.remove((ended.at_s, dict(ended.amounts)))
        check_quotas(quotas)
        oracle.check()
    for key in list(oracle.running):
        quotas.settle(key)
    assert not quotas.holds
    assert not quotas.used


def _rates(by_name: dict[str, QuotaLimits]) -> list[tuple[str, Rate]]:
    return [(name, rate) for name, one in by_name.items() for rate in one.rates]


@example(QuotaLimits((), (Rate(1.0),)), 1e-9, 1.0)  # on the edge of what counts as rounding
@given(limits, st.floats(0, 5), st.floats(0.01, 30))
@settings(deadline=None)
def test_a_quota_is_free_at_the_time_that_is_predicted_and_not_before(
    one: QuotaLimits, used: float, wait_s: float
) -> None:
    quotas = Quotas({"a": one})
    quotas.take(QuotaHold("r", 0, 1, "n", "1", 100.0, {"a": used}), 103.0)
    at_s = quotas.free_at({"a": 1.0}, 100.0)
    if at_s == math.inf:
        quotas.settle("r/0/1")
        stuck = why_never(quotas, {"a": 1.0})
        assert stuck or any(used > most for most in one.concurrency) or quotas.free_at({"a": 1.0}, 100.0) < math.inf
        return
    if at_s >= 103.0 and any(used + 1.0 > most for most in one.concurrency):
        quotas.settle("r/0/1")
    assert quotas.fits({"a": 1.0}, at_s)
    earlier = at_s - min(wait_s, (at_s - 100.0) / 2)
    if earlier < at_s - 1e-6 and at_s != 103.0:
        assert not quotas.fits({"a": 1.0}, earlier)


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.sampled_from([90.0, 101.0, 105.0, 120.0])), max_size=12
    ),
    st.data(),
)
@settings(deadline=None)
def test_holds_by_predicted_end_answer_as_sums_over_all_holds_do(
    taken: list[tuple[float, float]], data: st.DataObject
) -> None:
    quotas = Quotas({"a": QuotaLimits((5.0,))})
    for number, (amount, end_s) in enumerate(taken):
        quotas.take(QuotaHold(f"r{number}", 0, 1, "n", "1", 100.0, {"a": amount}), end_s)
    for key in data.draw(st.sets(st.sampled_from(sorted(quotas.holds)))) if quotas.holds else ():
        quotas.settle(key)
    for key in data.draw(st.sets(st.sampled_from(sorted(quotas.holds)))) if quotas.holds else ():
        quotas.expect_end(key, data.draw(st.sampled_from([95.0, 103.0, 130.0])))
    check_quotas(quotas)
    ends = [(quotas.ends[key], hold.amounts["a"]) for key, hold in quotas.holds.items()]
    wanted = data.draw(st.sampled_from([1.0, 3.5, 5.0]))
    times = [100.0, *(end_s for end_s, _ in ends)]
    enough = [at_s for at_s in times if sum(held for end_s, held in ends if end_s > at_s) + wanted <= 5.0 + 1e-9]
    free_s = 100.0 if sum(held for _, held in ends) + wanted <= 5.0 + 1e-9 else max(100.0, min(enough))
    assert quotas.free_at({"a": wanted}, 100.0) == free_s
    held = sum(amount for end_s, amount in ends if end_s > 104.0)
    assert quotas.delays({"a": 2.0}, 104.0, {"a": wanted}, 110.0, 100.0) == (held + wanted + 2.0 > 5.0 + 1e-9)


def test_a_clock_behind_that_of_the_former_leader_refills_nothing_twice() -> None:
    quotas, rate = Quotas({"a": QuotaLimits((), (Rate(10.0, 1.0),))}), Rate(10.0, 1.0)
    quotas.restore_level("a", 1.0, Level(9.0, 100.0))
    quotas.take(QuotaHold("x", 0, 1, "n", "1", 99.9, {"a": 1.0}), 200.0)
    assert quotas.missing("a", rate, 100.0) == pytest.approx(10.0)


def test_all_limits_of_a_quota_hold_at_once() -> None:
    quotas = Quotas({"a": QuotaLimits((3.0, 2.0), (Rate(2, 1.0), Rate(3, 60.0)))})
    for number, now in enumerate((0.0, 0.0)):
        assert quotas.fits({"a": 1.0}, now)
        quotas.take(QuotaHold(f"r{number}", 0, 1, "n", "1", now, {"a": 1.0}), 9.0)
    assert not quotas.fits({"a": 1.0}, 10.0), "the smaller concurrency"
    quotas.settle("r0/0/1")
    quotas.settle("r1/0/1")
    assert quotas.fits({"a": 1.0}, 1.0)
    quotas.take(QuotaHold("r2", 0, 1, "n", "1", 1.0, {"a": 1.0}), 9.0)
    quotas.settle("r2/0/1")
    assert not quotas.fits({"a": 1.0}, 2.0), "three in a minute"
    assert quotas.free_at({"a": 1.0}, 2.0) == pytest.approx(20.0)


def test_the_level_of_a_deleted_rate_is_kept_until_it_is_full() -> None:
    """Else each name that was ever used would be kept. What is never refilled stays taken."""
    one = QuotaLimits((), (Rate(10.0, 10.0), Rate(100.0)))
    quotas = Quotas({"a": one})
    quotas.take(QuotaHold("r", 0, 1, "n", "1", 0.0, {"a": 5.0}), 1.0)
    quotas.set("a", None)
    quotas.forget_full(4.0)
    assert set(quotas.levels) == {("a", 10.0), ("a", None)}
    quotas.set("a", one)
    quotas.forget_full(6.0)
    assert quotas.missing("a", one.rates[0], 4.0) == 1.0, "the limits came back"
    quotas.set("a", None)
    quotas.forget_full(6.0)
    assert set(quotas.levels) == {("a", None)}


def test_an_amount_that_can_never_be_taken_is_named() -> None:
    quotas = Quotas({"a": QuotaLimits((2.0,), (Rate(5.0), Rate(3.0, 1.0)))})
    create = "create it with treadle quota set b --rate 10/s"
    assert why_never(quotas, {"b": 1.0}) == f"there is no quota 'b'; {create}"
    assert why_never(quotas, {"a": 2.5}) == "it needs 2.5 of the quota 'a', whose concurrency is 2"
    assert why_never(quotas, {"a": 2.0}) == ""
    quotas.take(QuotaHold("r", 0, 1, "n", "1", 0.0, {"a": 2.0}), 1.0)
    quotas.settle("r/0/1")
    quotas.take(QuotaHold("s", 0, 1, "n", "1", 1.0, {"a": 2.0}), 2.0)
    assert why_never(quotas, {"a": 2.0}) == "it needs 2 of the quota 'a', of which 1 are left and none is refilled"
    assert why_never(quotas, {"a": 2.0}, refunded=True) == "", "2 are spent, and 2 are held"
    quotas.set("a", QuotaLimits((1.0,), (Rate(4.0, 1.0, 0.5),)))
    assert why_never(quotas, {"a": 1.0}) == "it needs 1 of the quota 'a', which gives 0.5 at once"


@given(limits, steps, amounts, st.floats(0, 3))
@settings(deadline=None)
def test_amounts_are_never_free_before_the_time_that_counts_on_all_that_is_held(
    one: QuotaLimits, history: list[tuple[str, float, dict[str, float], int]], amount: float, later_s: float
) -> None:
    quotas, now = Quotas({"a": one}), 0.0
    for number, (step, wait_s, taken, which) in enumerate(history):
        now += wait_s
        running = list(quotas.holds)
        if step == "grant" and (held := {"a": taken.get("a", 0.0)}) and quotas.fits(held, now):
            quotas.take(QuotaHold(f"r{number}", 0, 1, "n", "1", now, held), now + 1.0)
        elif step != "grant" and running:
            quotas.settle(running[which % len(running)], used={"a": 0.5}, now=now)
    wanted = {"a": amount}
    certain_s, never = closed_until_s(quotas, wanted, now), why_never(quotas, wanted, refunded=True)
    assert not never or why_never(quotas, wanted)
    for key in list(quotas.holds):
        quotas.settle(key, used={"a": 0.0}, now=now + later_s)
    assert quotas.free_at(wanted, now + later_s) >= certain_s - 1e-6
    assert not never or why_never(quotas, wanted), "no refund can help"


def test_a_hold_is_settled_once_and_reported_to_the_store() -> None:
    quotas = Quotas({"a": QuotaLimits((1.0,), (Rate(10.0, 10.0),))})
    quotas.take(QuotaHold("r", 0, 1, "n", "1", 0.0, {"a": 1.0}), 1.0)
    for _ in range(2):
        quotas.settle("r/0/1")
    assert quotas.collect() == [Settled("r/0/1", "r")]
    assert quotas.collect() == []


def test_a_refund_does_not_give_back_what_has_refilled_meanwhile() -> None:
    quotas = Quotas({"a": QuotaLimits((), (Rate(10.0, 10.0),))})
    quotas.take(QuotaHold("r", 0, 1, "n", "1", 0.0, {"a": 10.0}), 1.0)
    quotas.take(QuotaHold("s", 0, 1, "n", "1", 10.0, {"a": 10.0}), 11.0)
    quotas.settle("r/0/1", not_begun_s=10.0)
    assert not quotas.fits({"a": 1.0}, 10.0), "the bucket would have been full at 10 s without it, too"
    assert quotas.levels["a", 10.0][:3] == (10.0, 10.0, 1.0)


def spent(rate: Rate, amount: float, at_s: float) -> Quotas:
    """An attempt has taken an amount and ended."""
    quotas = Quotas({"a": QuotaLimits((), (rate,))})
    quotas.take(QuotaHold("r", 0, 1, "n", "1", at_s, {"a": amount}), at_s)
    quotas.settle("r/0/1")
    return quotas


@pytest.mark.parametrize(
    ("before", "after", "now", "free_s"),
    [
        (Rate(1000.0, 60.0), Rate(10.0, 60.0), 59.0, 59.0),  # empty at 0
        (Rate(1000.0, 60.0), Rate(10.0, 60.0), 1.0, 6.0),  # 1 of 10 is refilled in 6 s
        (Rate(10.0, 60.0), Rate(1000.0, 60.0), 0.0, 0.06),
        (Rate(10.0, 60.0), Rate(0.0, 60.0), 0.0, math.inf),
        (Rate(50.0), Rate(60.0), 9.0, 9.0),  # a budget keeps what was spent
        (Rate(50.0), Rate(40.0), 9.0, math.inf),
    ],
)
def test_an_empty_rate_that_is_changed_is_refilled_at_its_new_rate(
    before: Rate, after: Rate, now: float, free_s: float
) -> None:
    quotas = spent(before, before.most, 0.0)
    quotas.set("a", QuotaLimits((), (after,)))
    assert quotas.free_at({"a": 1.0}, now) == pytest.approx(free_s)
    if before.period_s is not None and after.limit:
        assert quotas.missing("a", after, 59.0) == pytest.approx(after.limit / 60.0)
        assert quotas.missing("a", after, 60.0) == pytest.approx(0.0, abs=1e-3)


@given(bursts, bursts, st.lists(st.tuples(st.floats(0, 3), amounts), min_size=1, max_size=20), st.integers(0, 20))
@settings(deadline=None)
def test_after_a_change_no_window_exceeds_the_new_limit(
    before: Rate, after: Rate, wanted: list[tuple[float, float]], changed_at: int
) -> None:
    after = after._replace(period_s=before.period_s)
    quotas, now = Quotas({"a": QuotaLimits((), (before,))}), 0.0
    oracle = History({"a": QuotaLimits((), (after,))})
    for number, (pause_s, amount) in enumerate(wanted):
        now += pause_s
        if number == changed_at:
            quotas.set("a", QuotaLimits((), (after,)))
        if quotas.fits({"a": amount}, now):
            quotas.take(QuotaHold(f"r{number}", 0, 1, "n", "1", now, {"a": amount}), now)
            if number >= changed_at:
                oracle.begun.append((now, {"a": amount}))
    oracle.check()


def test_an_attempt_gives_nothing_back_to_a_rate_that_was_changed() -> None:
    """What it took counts in the former amounts."""
    quotas = Quotas({"a": QuotaLimits((), (Rate(1000.0, 60.0),))})
    quotas.take(QuotaHold("r", 0, 1, "n", "1", 0.0, {"a": 1000.0}), 1.0)
    quotas.set("a", QuotaLimits((), (Rate(10.0, 60.0),)))
    quotas.settle("r/0/1", used={"a": 500.0}, now=0.0)
    assert not quotas.fits({"a": 1.0}, 0.0)


def test_a_lowered_limit_takes_nothing_away() -> None:
    quotas = Quotas({"a": QuotaLimits((2.0,))})
    for number in range(2):
        quotas.take(QuotaHold(f"r{number}", 0, 1, "n", "1", 0.0, {"a": 1.0}), 1.0)
    quotas.set("a", QuotaLimits((1.0,)))
    quotas.settle("r0/0/1")
    assert not quotas.fits({"a": 1.0}, 2.0)
    quotas.settle("r1/0/1")
    assert quotas.fits({"a": 1.0}, 2.0)


@pytest.mark.parametrize(
    "limits", [{"concurrency": (-1.0,)}, {"rates": (Rate(1, 0.0),)}, {"rates": (Rate(1, 2.0), Rate(5, 2.0))}]
)
def test_limits_that_cannot_be_are_rejected(limits: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(ValueError, match=r"must|same"):
        QuotaLimits(**limits)  # type: ignore[arg-type]
