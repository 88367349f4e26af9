"""From the end of one call to the result of its attempt: accepted, again later, or failed. Pure.

Laws:
  - a verdict is formed only of an accepted answer;
  - a repeat is safe: nothing had been sent, the upstream has said that it did nothing (429, 503 with Retry-After), or
    the call may be repeated. An upstream that answered nothing is asked once more, whenever that was;
  - pushback and missing credit do not count towards `attempts`;
  - a repeat fits into the caller's budget; else the attempt is the last one. Work that a quota without credit holds
    waits until its budget is over;
  - a call that was not sent, or that the upstream has declined, costs nothing of budgets and of what `used` names.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from msgspec.structs import replace

from services.quota_manager.kinds import HttpCall, OutgoingParams
from services.quota_manager.requests import failed_before
from shared.messages.grants import Granted
from shared.policy.model.formulation import FailedCalls
from shared.policy.model.results import LEAST_POSTPONED_S, AttemptResult, Feedback, UpstreamAnswer
from shared.policy.resources.retries import LONGEST_DELAY_S, retry_delay_s
from shared.runtime.units import Seconds

LONGEST_EXHAUSTED_S: Final[Seconds] = 30.0
"""Longest delay of work that a quota without credit holds: it bounds the time from a top-up to the next call."""
MOST_REASON: Final = 400
"""Characters of a reason."""

Safety = Literal["unsent", "declined", "silent", "sent"]
"""Safety of a repeat. `unsent`: the upstream has not got the call. `declined`: it says that it has not executed it.
`silent`: it has got it, and has answered nothing. `sent`: it may have executed it."""


@dataclass(frozen=True, slots=True)
class CallEnd:
    """End of a call that is no accepted answer."""

    answer: UpstreamAnswer
    """Feedback for the upstream's quota. `ok`: the upstream works, and this call failed."""
    reason: str
    """For everybody who sees the quota: nothing of the call or of the answer's body."""
    safety: Safety
    detail: str
    """For the caller."""
    not_before_s: Seconds = 0.0
    """Seconds before which the upstream wants no call."""
    final: bool = False
    """Another attempt would end alike."""

    @property
    def waits(self) -> bool:
        """The work waits, as long as its budget lasts: the upstream wants fewer calls, or has no credit."""
        return self.answer in ("pushed-back", "exhausted")


def feedback_of(
    grant: Granted, params: OutgoingParams, answer: UpstreamAnswer, not_before_s: Seconds, reason: str
) -> tuple[Feedback, ...]:
    """Return the feedback for the quota of the upstream; none if the action takes none."""
    quota = params.upstream or next(iter(grant.quotas), "")
    return (Feedback(quota, answer, not_before_s, reason[:MOST_REASON]),) if quota in grant.quotas else ()


def unaccepted(
    end: CallEnd, grant: Granted, params: OutgoingParams, repeatable: bool, elapsed_s: Seconds, random: Random
) -> AttemptResult:
    """Return the result of an attempt without an accepted answer: `postponed` or `upstream-failed`.

    Args:
        end: how the call ended.
        grant: the attempt. `attempt` counts from 1 over the whole stage.
        params: of the call.
        repeatable: whether a call that has reached the upstream may be repeated.
        elapsed_s: seconds since the attempt began.
        random: source of the jitter.
    """
    unexecuted = end.safety in ("unsent", "declined")
    failed = AttemptResult(
        "upstream-failed",
        quotas_used=dict.fromkeys(params.used, 0.0) if unexecuted and isinstance(params, HttpCall) else {},
        unexecuted=unexecuted,
        feedback=feedback_of(grant, params, end.answer, end.not_before_s, end.reason),
    )
    reason = (end.detail or end.reason)[:MOST_REASON]
    held = end.answer == "exhausted" and bool(failed.feedback)
    before = failed_before(grant)
    if (why := _last_because(end, before, params, repeatable)) is None:
        delay_s = max(delay_before(grant.attempt, end, random, held=held), LEAST_POSTPONED_S)
        left_s = grant.budget_s - elapsed_s
        if held or delay_s < left_s:
            calls = FailedCalls(before.failed + (not end.waits), before.silent + (end.safety == "silent"))
            return replace(failed, status="postponed", reason=reason, retry_in_s=delay_s, failed_calls=calls)
        why = f"the next attempt would be in {delay_s:.0f} s, and {max(0.0, left_s):.0f} s are left of its budget"
    return replace(failed, reason=f"{reason}; {why}")


def _last_because(end: CallEnd, before: FailedCalls, params: OutgoingParams, repeatable: bool) -> str | None:
    """Return why this is the last attempt; None if there may be another. `before`: failed calls before this one."""
    if end.final:
        return "it is not repeated"
    if end.safety == "silent" and params.repeatable is None and not repeatable:
        allowed = not before.silent
    else:
        allowed = end.safety in ("unsent", "declined") or repeatable
    if not allowed:
        return "it may have been executed, and is not repeatable"
    if end.waits:
        return None
    if end.safety == "silent" and before.silent:
        return "it had been asked once more after such a failure"
    failed = before.failed + 1
    return f"failed attempt {failed}, and `attempts` is {params.attempts}" if failed >= params.attempts else None


def delay_before(attempt: int, end: CallEnd, random: Random, *, held: bool = False) -> Seconds:
    """Return the seconds before the next attempt: exponential with full jitter, and not before the upstream's time.

    `held`: a quota holds the work until that time, and a top-up ends it earlier.
    """
    longest_s = LONGEST_EXHAUSTED_S if end.answer == "exhausted" else LONGEST_DELAY_S
    return retry_delay_s(attempt, 0.0 if held else end.not_before_s, random, longest_s)
