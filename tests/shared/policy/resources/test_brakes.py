"""Brakes: laws of not-before, of calls at once, of the circuit breaker and of exhaustion."""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import replace as changed

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.model.brakes import Brake
from shared.policy.model.quotas import QuotaHold, QuotaLimits
from shared.policy.model.results import Feedback, UpstreamAnswer
from shared.policy.resources.quota_checks import check_quotas
from shared.policy.resources.quota_feedback import apply_feedback, quota_changed, restore_brake
from shared.policy.resources.quotas import Quotas

ONE = {"search": 1.0}


@dataclass
class Provider:
    """A ledger of one quota, and its calls."""

    quotas: Quotas = field(default_factory=lambda: Quotas({"search": QuotaLimits((1000.0,))}))
    now: float = 1000.0
    begun: int = 0

    @property
    def brake(self) -> Brake:
        return self.quotas.brakes.by_quota.get("search", Brake())

    @property
    def state(self) -> str:
        return self.brake.state(self.now)

    def call(self) -> str:
        """Begin a call; its key, or empty if none may begin now."""
        if not self.quotas.fits(ONE, self.now):
            return ""
        self.begun += 1
        hold = QuotaHold(f"a{self.begun}", 0, 1, "n", "1", self.now, ONE)
        self.quotas.take(hold, self.now + 1.0)
        return hold.key

    def calls(self, count: int) -> list[str]:
        """Begin as many calls as possible, at most `count`."""
        return [key for _ in range(count) if (key := self.call())]

    def end(self, key: str, answer: UpstreamAnswer | None, not_before_s: float = 0.0, reason: str = "") -> None:
        if answer is not None:
            apply_feedback(self.quotas, key, [Feedback("search", answer, not_before_s, reason)], self.now)
        self.quotas.settle(key)
        check_quotas(self.quotas)

    def answer(self, answer: UpstreamAnswer, count: int = 1) -> None:
        """Make calls, one after the other, that are answered so."""
        for _ in range(count):
            key = self.call()
            assert key, self.brake
            self.end(key, answer)
            self.now += 0.001

    def check(self) -> None:
        check_quotas(self.quotas)
        assert self.brake.most is None or self.brake.most >= 1
        assert self.brake.not_before_s <= self.now + 3601.0
        assert self.brake.probe_s <= self.now + 300.0 or not self.brake.mode

    def take_over(self) -> None:
        """Replace the ledger by one that a new leader reads."""
        again = Quotas(self.quotas.limits)
        for hold in self.quotas.holds.values():
            again.restore(hold, self.now)
        for name, brake in self.quotas.brakes.by_quota.items():
            restore_brake(again, name, brake)
        assert again.brakes == self.quotas.brakes
        self.quotas = again

    def wait(self) -> float:
        """Wait until a call may begin; return the seconds."""
        until_s = self.quotas.refilled_at(ONE, self.now)
        waited_s, self.now = until_s - self.now, until_s
        return waited_s


def test_a_quota_whose_service_answers_has_no_brake() -> None:
    provider = Provider()
    provider.answer("ok", 50)
    assert not provider.quotas.brakes.by_quota


def test_a_named_time_holds_all_calls_back_and_does_not_move_back() -> None:
    provider = Provider()
    first, second = provider.calls(2)
    provider.end(first, "pushed-back", 20.0)
    assert not provider.quotas.fits(ONE, provider.now + 19.999)
    assert 20.0 <= provider.brake.not_before_s - provider.now <= 21.0
    before = provider.brake.not_before_s
    provider.end(second, "ok", 1.0)
    assert provider.brake.not_before_s == before
    assert 20.0 <= provider.wait() <= 21.0
    assert provider.call()


@pytest.mark.parametrize(("asked_s", "least_s", "most_s"), [(1e9, 3600.0, 3601.0), (float("nan"), 0, 0), (-5.0, 0, 0)])
def test_a_named_time_is_bounded(asked_s: float, least_s: float, most_s: float) -> None:
    provider = Provider()
    provider.end(provider.calls(1)[0], "ok", asked_s)
    assert least_s <= max(0.0, provider.brake.not_before_s - provider.now) <= most_s


def test_pushback_takes_a_tenth_once_for_the_calls_under_way() -> None:
    provider = Provider()
    keys = provider.calls(100)
    provider.now += 1.0
    for key in keys:
        provider.end(key, "pushed-back")
        provider.now += 0.001
    assert (provider.brake.most, provider.state) == (90, "slowed")
    provider.wait()
    assert len(provider.calls(200)) == 90


def test_pushback_without_a_time_pauses_twice_as_long_each_time_in_a_row() -> None:
    provider, paused_s = Provider(), []
    for _ in range(10):
        provider.end(provider.calls(1)[0], "pushed-back")
        paused_s.append(provider.wait())
    assert all(0.8 * 0.5 * 2**at <= one <= 0.5 * 2**at for at, one in enumerate(paused_s[:7]))
    assert 48.0 <= paused_s[-1] <= 60.0


def test_successes_grow_the_calls_at_once_until_the_brake_limits_nothing() -> None:
    provider = Provider()
    for key in provider.calls(10):
        provider.end(key, "pushed-back")
    assert provider.brake.most == 9, "those of one moment count once"
    provider.wait()
    for most in (9, 10):
        assert provider.brake.most == most
        keys = provider.calls(100)
        assert len(keys) == most
        for _ in range(most):  # one ends and another begins, so that all are used
            provider.end(keys.pop(), "ok")
            keys += provider.calls(1)
        for key in keys:
            provider.end(key, None)
    assert provider.brake.most is None
    assert provider.state == "ok"


def test_calls_at_once_do_not_grow_while_few_are_used() -> None:
    provider = Provider()
    for key in provider.calls(100):
        provider.end(key, "pushed-back")
    provider.wait()
    provider.answer("ok", 200)
    assert provider.brake.most == 90


def test_failures_in_a_row_open_the_breaker_and_one_probe_closes_it() -> None:
    provider = Provider()
    old = provider.calls(3)
    provider.answer("failed", 5)
    assert (provider.state, provider.call()) == ("open", "")
    provider.end(old[0], "ok")
    assert provider.state == "open", "the call began before"
    assert 4.0 <= provider.wait() <= 5.0
    assert provider.state == "half-open"
    (probe,) = provider.calls(10)
    assert provider.state == "half-open"
    provider.end(probe, "failed")
    assert 8.0 <= provider.wait() <= 10.0
    (probe,) = provider.calls(10)
    provider.end(old[1], "failed")
    provider.end(probe, "ok")
    assert provider.state == "ok"
    provider.end(old[2], "failed")
    assert provider.brake.failures == 0, "the call began before the breaker closed"
    assert len(provider.calls(10)) == 10


def test_a_share_of_failures_opens_the_breaker() -> None:
    provider = Provider()
    for answer in ("failed", "ok", "failed", "failed", "ok"):
        provider.answer(answer, 2)
        assert provider.state == "ok"
    provider.answer("failed", 4)
    provider.answer("ok", 2)
    provider.answer("failed", 4)
    provider.answer("ok", 1)
    assert provider.state == "ok", "too few answers"
    provider.answer("failed", 1)
    assert provider.state == "open", provider.brake


def test_successes_between_failures_keep_the_breaker_closed() -> None:
    provider = Provider()
    for _ in range(100):
        provider.answer("failed", 2)
        provider.answer("ok", 3)
    assert provider.state == "ok"


def test_exhaustion_is_probed_and_ends_with_a_success() -> None:
    provider = Provider()
    provider.end(provider.calls(1)[0], "exhausted", reason="no credit")
    assert (provider.state, provider.call()) == ("exhausted", "")
    assert "'search' is out of credit: no credit" in provider.brake.why("search", provider.now)
    for least_s, most_s in ((24, 30), (48, 60), (96, 120), (192, 240), (240, 300), (240, 300)):
        assert least_s <= provider.wait() <= most_s
        (probe,) = provider.calls(10)
        provider.end(probe, "exhausted", reason="no credit")
    provider.wait()
    provider.end(provider.calls(10)[0], "ok")
    assert provider.state == "ok"
    assert len(provider.calls(10)) == 10


def test_a_change_of_the_quota_ends_exhaustion_that_began_before_it() -> None:
    provider = Provider()
    first, late = provider.calls(2)
    provider.end(first, "exhausted", 600.0)
    provider.now += 1.0
    quota_changed(provider.quotas, "search", None, provider.now)
    quota_changed(provider.quotas, "search", provider.now - 2.0, provider.now)
    assert provider.state == "exhausted", "a new leader reads an older change"
    quota_changed(provider.quotas, "search", provider.now, provider.now)
    assert provider.state == "ok"
    provider.end(late, "exhausted")
    assert provider.state == "ok", "the call began before the change"
    assert len(provider.calls(3)) == 3


def test_a_probe_without_an_answer_is_followed_by_another() -> None:
    provider = Provider()
    provider.answer("failed", 5)
    provider.wait()
    (probe,) = provider.calls(2)
    provider.end(probe, None)
    assert not provider.call()
    assert 4.0 <= provider.wait() <= 5.0
    assert provider.call()


def test_an_unsent_probe_is_granted_again_at_once() -> None:
    provider = Provider()
    provider.answer("failed", 5)
    provider.wait()
    (probe,) = provider.calls(2)
    provider.quotas.undo(probe)
    assert provider.call()


@pytest.mark.parametrize("kept", [False, True])
def test_a_new_leader_waits_for_the_probe_under_way(kept: bool) -> None:
    provider = Provider()
    provider.answer("failed", 5)
    provider.wait()
    (probe,) = provider.calls(1)
    stored, hold = provider.brake, provider.quotas.holds[probe]
    again = Quotas({"search": QuotaLimits((1000.0,))})
    if kept:
        again.restore(hold, provider.now)
    restore_brake(again, "search", stored)
    check_quotas(again)
    assert again.fits(ONE, provider.now + 10.0) is not kept
    if kept:
        apply_feedback(again, probe, [Feedback("search", "ok")], provider.now)
        assert again.brakes.by_quota["search"].state(provider.now) == "ok"


def test_an_answer_counts_once_and_only_for_quotas_of_the_attempt() -> None:
    provider = Provider()
    provider.quotas.set("other", QuotaLimits((1.0,)))
    (key,) = provider.calls(1)
    apply_feedback(provider.quotas, key, [Feedback("other", "exhausted"), Feedback("absent", "exhausted")], 0.0)
    assert not provider.quotas.brakes.by_quota
    provider.end(key, "failed")
    provider.end(key, "failed")
    assert provider.brake.failures == 1


def test_a_deleted_quota_has_no_brake() -> None:
    provider = Provider()
    provider.end(provider.calls(1)[0], "exhausted")
    provider.quotas.set("search", None)
    quota_changed(provider.quotas, "search", provider.now, provider.now)
    assert not provider.quotas.brakes.by_quota


def test_a_brake_without_effect_is_forgotten() -> None:
    provider = Provider()
    provider.answer("failed", 1)
    provider.answer("ok", 1)
    provider.quotas.brakes.forget(provider.now + 10.0)
    assert provider.quotas.brakes.by_quota
    provider.quotas.brakes.forget(provider.now + 61.0)
    assert not provider.quotas.brakes.by_quota


answers = st.sampled_from(["ok", "ok", "ok", "pushed-back", "failed", "failed", "exhausted", None])
steps = st.lists(
    st.tuples(
        st.sampled_from(["call", "call", "end", "end", "end", "wait", "change", "take over", "forget"]),
        st.integers(0, 20),
        answers,
        st.sampled_from([0.0, 0.0, 0.0, 3.0, 1e12, float("nan")]),
    ),
    max_size=80,
)


@given(steps)
@settings(deadline=None, max_examples=300)
def test_the_laws_hold_in_any_history(history: list[tuple[str, int, UpstreamAnswer | None, float]]) -> None:
    provider = Provider()
    running: list[str] = []
    for step, number, answer, not_before_s in history:
        before = provider.brake
        if step == "call":
            new = provider.calls(number)
            running += new
            if before.mode:
                assert len(new) <= 1, "one probe at a time"
            assert not new or provider.now >= before.not_before_s
            if new and not before.mode and before.most is not None:
                assert len(running) <= before.most
        elif step == "end" and running:
            provider.end(running.pop(number % len(running)), answer, not_before_s)
            assert provider.brake.not_before_s >= before.not_before_s
        elif step == "wait":
            provider.now += number
        elif step == "change":
            quota_changed(provider.quotas, "search", provider.now, provider.now)
            assert not provider.brake.mode
        elif step == "take over":
            provider.take_over()
        elif step == "forget":
            provider.quotas.brakes.forget(provider.now)
            assert provider.brake.state(provider.now) == before.state(provider.now)
        provider.check()
    for key in running:
        provider.end(key, None)
    provider.now = provider.quotas.free_at(ONE, provider.now)
    assert provider.call(), "nothing is held back forever"


def test_predicted_times_count_calls_under_way() -> None:
    provider = Provider()
    provider.end(provider.calls(1)[0], "ok", 1.0)
    brake = changed(provider.brake, most=2, peak=5, not_before_s=0.0)
    provider.quotas.brakes.by_quota["search"] = brake
    first, second = provider.calls(5)
    provider.quotas.expect_end(first, provider.now + 7.0)
    provider.quotas.expect_end(second, provider.now + 4.0)
    assert provider.quotas.free_at(ONE, provider.now) == provider.now + 4.0
    assert provider.quotas.refilled_at(ONE, provider.now) == provider.now, "a release wakes, not the time"
    provider.quotas.settle(first)
    assert provider.quotas.delays(ONE, provider.now + 2.0, ONE, provider.now + 5.0, provider.now)
    assert not provider.quotas.delays(ONE, provider.now + 6.0, ONE, provider.now + 7.0, provider.now)
