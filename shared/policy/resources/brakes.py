"""Brakes: quotas slow down by what the external services behind them answer. A part of the one ledger.

So the whole mesh slows down together, and no process has a limiter of its own. Laws:
  - not-before: nothing is granted before the time that the service has named, and only deleting the quota
    moves it back. It is at most `MOST_WAIT_S` and a jitter ahead;
  - additive increase, multiplicative decrease: a pushback takes a tenth of the calls at once, and at least one stays.
    Answers to calls that were granted before the last decrease take nothing more: they say nothing about it. As many
    successes as calls at once, while at least half of these are used, add one. Above the number that was under way
    before the first pushback, the brake limits nothing;
  - circuit breaker: `MOST_FAILURES` failures in a row, or half of at least `LEAST_ANSWERS` recent answers, open it.
    When its time is over, one probe is granted at a time. An answer closes it, a failure opens it for twice as long;
  - exhaustion: the same with probes alone, until a probe succeeds or an operator sets the quota;
  - an attempt that reports no answers (a lease, a program) is no probe: it would end none of the two. It waits for the
    time of the next probe, and for one that is under way.

Amounts do not matter here: a quota of tokens is braked by its calls, too. Jitter is derived from the quota's name, so
that a replay repeats it; it keeps meshes apart that call the same service.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from shared.policy.model.brakes import AnsweredCall, Brake
from shared.policy.model.results import Feedback

MOST_WAIT_S: Final = 3600.0
"""Longest not-before that a service may ask for."""
DECREASE: Final = 0.9
FIRST_PAUSE_S, MOST_PAUSE_S = 0.5, 60.0
"""Pause after a pushback without a time: doubles with each in a row."""
MOST_FAILURES: Final = 5
"""Failures in a row that open the breaker."""
LEAST_ANSWERS: Final = 20.0
"""Weighted answers without which their share of failures means nothing."""
HALF_LIFE_S: Final = 30.0
"""Age at which an answer has half its weight."""
FIRST_OPEN_S, MOST_OPEN_S = 5.0, 300.0
FIRST_PROBE_S, MOST_PROBE_S = 30.0, 300.0
"""Time between two probes of an exhausted service: doubles with each that fails."""
JITTER: Final = 0.2
"""Largest part of a pause that jitter takes; of a provider's own time, up to half of it is added, and at most 1 s."""
KEPT_S: Final = 60.0
"""Time for which a brake without effect is kept after its last change."""
MOST_REASON: Final = 300
"""Characters of a reason."""


Holder = tuple[float, str, float]
"""(Predicted end, `QuotaHold.key`, amount)."""


@dataclass(slots=True)
class Brakes:
    """Brakes by quota; a quota whose service answers as it should has none. A method is O(1) without another cost."""

    by_quota: dict[str, Brake] = field(default_factory=dict)

    def blocks(self, quota: str, calls: int, now: float) -> bool:
        """Return whether no call may begin now, beside so many under way."""
        brake = self.by_quota.get(quota)
        return brake is not None and brake.blocks(calls, now)

    def free_s(self, quota: str, now: float) -> float:
        """Return the time before which nothing is granted; at least `now`."""
        brake = self.by_quota.get(quota)
        return now if brake is None else brake.free_s(now)

    def closed_s(self, quota: str, now: float) -> float:
        """Return the time before which nothing is granted, also if a probe that is under way succeeds."""
        brake = self.by_quota.get(quota)
        return now if brake is None else brake.closed_s(now)

    def call_at(self, quota: str, holders: Sequence[Holder], now: float) -> float:
        """Return the time at which the next call may begin, by predicted ends. `holders`: ascending."""
        brake = self.by_quota.get(quota)
        if brake is None:
            return now
        at_s = brake.free_s(now)
        if brake.mode:
            return max([at_s, *(end_s for end_s, key, _ in holders if key == brake.probe)])
        if brake.most is None or len(holders) < brake.most:
            return at_s
        return max(at_s, holders[len(holders) - brake.most][0])

    def delays(self, quota: str, holders: Sequence[Holder], until_s: float) -> bool:
        """Return whether a call that begins now and ends after `until_s` leaves none for another at that time. A probe
        counts as no delay: without its answer no other call begins.
        """
        brake = self.by_quota.get(quota)
        if brake is None or brake.mode or brake.most is None:
            return False
        return len(holders) - bisect_right(holders, until_s, key=_end) + 2 > brake.most

    def reasons(self, now: float) -> dict[str, str]:
        """Return why no call of a quota may begin now, for the quotas of which none may. O(brakes)."""
        found = {quota: brake.why(quota, now) for quota, brake in self.by_quota.items()}
        return {quota: why for quota, why in found.items() if why}

    def answered(self, feedback: Feedback, call: AnsweredCall, now: float) -> None:
        """Apply the answer to a call."""
        known = self.by_quota.get(feedback.quota)
        if known is None and feedback.answer == "ok" and not feedback.not_before_s > 0:
            return
        self.by_quota[feedback.quota] = after(known or Brake(), feedback, call, now)

    def granted(self, quota: str, key: str, now: float) -> None:
        """A call that reports its answer was granted: it is the probe if the mode allows no other."""
        brake = self.by_quota.get(quota)
        if brake is not None and brake.mode:
            self.by_quota[quota] = replace(brake, probe=key, probe_s=now + _mode_pause_s(quota, brake))

    def ended(self, quota: str, key: str, unsent_s: float | None = None) -> None:
        """A call has ended. Without an answer to a probe, the next one comes when its time has come.

        `unsent_s`: its grant of that time was never sent, so the next one may come at once.
        """
        brake = self.by_quota.get(quota)
        if brake is not None and brake.probe == key:
            probe_s = brake.probe_s if unsent_s is None else unsent_s
            self.by_quota[quota] = replace(brake, probe="", probe_s=probe_s)

    def resume(self, quota: str, changed_s: float, now: float) -> None:
        """End exhaustion or an open breaker that began before an operator changed the quota, with its not-before."""
        brake = self.by_quota.get(quota)
        if brake is not None and brake.mode and brake.since_s <= changed_s:
            self.by_quota[quota] = replace(_closed(brake, now), not_before_s=0.0)

    def restore(self, quota: str, brake: Brake, *, probing: bool) -> None:
        """Restore a former leader's brake. `probing`: its probe is still under way."""
        self.by_quota[quota] = brake if probing or not brake.probe else replace(brake, probe="")

    def forget(self, now: float) -> None:
        """Remove brakes without effect. O(brakes)."""
        for quota, brake in list(self.by_quota.items()):
            newest_s = max(brake.slowed_s, brake.since_s, brake.not_before_s)
            counts = brake.failed * _weight(brake, now) > 0.5 or (brake.failures and now - brake.counted_s <= KEPT_S)
            if brake.state(now) == "ok" and not counts and now - newest_s > KEPT_S:
                del self.by_quota[quota]

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        for quota, brake in self.by_quota.items():
            assert brake.most is None or 1 <= brake.most <= brake.peak, f"{quota}: {brake}"
            assert brake.mode or not brake.probe, f"{quota}: a probe without a mode: {brake}"
            assert 0 <= brake.failures < MOST_FAILURES, f"{quota}: {brake}"
            assert 0 <= brake.failed <= brake.answers + 1e-9, f"{quota}: {brake}"
            assert len(brake.reason) <= MOST_REASON, f"{quota}: a long reason"


def _end(holder: Holder) -> float:
    return holder[0]


def after(brake: Brake, feedback: Feedback, call: AnsweredCall, now: float) -> Brake:
    """Return the brake after the answer to a call."""
    wait_s = feedback.not_before_s if feedback.not_before_s > 0 else 0.0  # also if it is NaN
    if wait_s:
        wait_s = min(wait_s, MOST_WAIT_S)
        wait_s += min(1.0, wait_s / 2) * _chance(feedback.quota, now)
        brake = replace(brake, not_before_s=max(brake.not_before_s, now + wait_s))
    if feedback.answer != "ok":
        brake = replace(brake, peak=max(brake.peak, call.running))
    match feedback.answer:
        case "ok":
            brake = _after_success(brake, call, now)
        case "pushed-back":
            brake = _after_pushback(brake, feedback, call, now, waits=wait_s > 0)
        case "failed":
            brake = _after_failure(brake, feedback, call, now)
        case "exhausted":
            brake = _after_exhaustion(brake, feedback, call, now)
    return replace(brake, probe="") if brake.probe == call.key else brake


def _after_success(brake: Brake, call: AnsweredCall, now: float) -> Brake:
    if brake.mode:
        return _closed(brake, now) if call.key == brake.probe else brake
    if call.granted_s < brake.since_s:
        return brake
    brake = _counted(replace(brake, failures=0), now, failed=False)
    most = brake.most
    if most is None or call.granted_s <= brake.slowed_s:
        return brake
    brake = replace(brake, pushbacks=0)
    if 2 * call.running < most:
        return brake
    if brake.successes + 1 < most:
        return replace(brake, successes=brake.successes + 1)
    if most + 1 > brake.peak:
        return replace(brake, most=None, successes=0, peak=0, reason="")
    return replace(brake, most=most + 1, successes=0)


def _after_pushback(brake: Brake, feedback: Feedback, call: AnsweredCall, now: float, *, waits: bool) -> Brake:
    if brake.mode == "open" and call.key == brake.probe:
        brake = _closed(brake, now)
    elif brake.mode or call.granted_s < brake.since_s or call.granted_s <= brake.slowed_s:
        return brake
    brake = _counted(replace(brake, failures=0), now, failed=False)
    most = max(1, int((brake.most or call.running) * DECREASE))
    brake = replace(brake, most=most, successes=0, pushbacks=brake.pushbacks + 1, slowed_s=now)
    brake = replace(brake, reason=feedback.reason[:MOST_REASON])
    if waits:
        return brake
    pause_s = _pause_s(feedback.quota, FIRST_PAUSE_S, MOST_PAUSE_S, brake.pushbacks - 1)
    return replace(brake, not_before_s=max(brake.not_before_s, now + pause_s))


def _after_failure(brake: Brake, feedback: Feedback, call: AnsweredCall, now: float) -> Brake:
    if brake.mode:
        if brake.mode != "open" or call.key != brake.probe:
            return brake
        return _opened(replace(brake, probes=brake.probes + 1), feedback, now)
    if call.granted_s < brake.since_s:
        return brake
    brake = _counted(replace(brake, failures=brake.failures + 1), now, failed=True)
    broken = brake.answers >= LEAST_ANSWERS and 2 * brake.failed >= brake.answers
    if broken or brake.failures >= MOST_FAILURES:
        return _opened(replace(brake, probes=0), feedback, now)
    return brake


def _after_exhaustion(brake: Brake, feedback: Feedback, call: AnsweredCall, now: float) -> Brake:
    if brake.mode == "exhausted":
        if call.key != brake.probe:
            return brake
        brake = replace(brake, probes=brake.probes + 1)
    elif not brake.mode and call.granted_s < brake.since_s:
        return brake
    else:
        brake = replace(brake, mode="exhausted", since_s=now, probes=0, probe="")
    brake = replace(brake, reason=feedback.reason[:MOST_REASON], failures=0, answers=0.0, failed=0.0)
    return replace(brake, probe_s=now + _mode_pause_s(feedback.quota, brake))


def _opened(brake: Brake, feedback: Feedback, now: float) -> Brake:
    brake = replace(brake, mode="open", since_s=now, probe="", failures=0, answers=0.0, failed=0.0)
    brake = replace(brake, reason=feedback.reason[:MOST_REASON])
    return replace(brake, probe_s=now + _mode_pause_s(feedback.quota, brake))


def _closed(brake: Brake, now: float) -> Brake:
    return replace(brake, mode="", since_s=now, probe="", probe_s=0.0, probes=0, reason="")


def _counted(brake: Brake, now: float, *, failed: bool) -> Brake:
    weight = _weight(brake, now)
    answers, failures = brake.answers * weight + 1.0, brake.failed * weight + failed
    return replace(brake, answers=answers, failed=failures, counted_s=max(now, brake.counted_s))


def _weight(brake: Brake, now: float) -> float:
    return float(0.5 ** (max(0.0, now - brake.counted_s) / HALF_LIFE_S))


def _mode_pause_s(quota: str, brake: Brake) -> float:
    if brake.mode == "exhausted":
        return _pause_s(quota, FIRST_PROBE_S, MOST_PROBE_S, brake.probes)
    return _pause_s(quota, FIRST_OPEN_S, MOST_OPEN_S, brake.probes)


def _pause_s(quota: str, first_s: float, most_s: float, count: int) -> float:
    """Return a pause that doubles with `count`, less a jitter."""
    return min(first_s * 2.0 ** min(count, 30), most_s) * (1.0 - JITTER * _chance(quota, count))


def _chance(quota: str, at: float) -> float:
    """Return a number in [0, 1) that depends on nothing else."""
    return Random(f"{quota} {at}").random()
