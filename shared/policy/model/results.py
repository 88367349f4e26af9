"""Result of one attempt: one value, passed whole from the executor to the answer.

A new measurement or fact of a result is a field here (or an entry of `usage`). Nothing between the executor and the
answer names it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from shared.policy.model.formulation import FailedCalls, TrajectoryEnd

ExecutionStatus = Literal[
    "ok", "timeout", "lost", "refused", "cancelled", "environment-lost", "postponed", "upstream-failed"
]
"""End of one attempt on a node. `ok` and `timeout` are verdicts. `lost` is an infrastructure failure and is retried.
In a trajectory, `environment-lost`: its environment had ended before, and the action was not executed; or the
environment's lifetime ended while the action ran, and it was executed partly. `postponed`: the node asks for another
attempt after `retry_in_s`; this does not count as an attempt. In a trajectory, its environment cannot be created
earlier; elsewhere, an external service has failed in a way that is safe to repeat. `upstream-failed`: an external
service has failed and is not asked again."""

Evidence = Literal["", "separate", "in-process"]
"""Origin of a verdict. `separate`: outside the interpreter that ran the sample. `in-process`: in the same one,
so a sample written to attack its grader may forge it. Empty: the kind forms no verdict."""

Usage = Mapping[str, float]
"""Name -> amount that was used. Amounts are sums, so that they can be added over stages, answers and batches."""

USAGE: Final[dict[str, str]] = {
    "cpu_s": "CPU seconds, user and system, of all processes",
    "gpu_s": "GPU seconds: seconds on a GPU, times the fraction of it that was granted",
    "tokens": "tokens that a model has read and written",
    "money": "cost of paid services, in the currency of their accounts",
}
"""Names with a fixed meaning and unit. Executors may report others; a name ends in its unit."""
MOST_USED: Final = 16
"""Most names in one sum. More are ignored: executors choose the names."""
LEAST_POSTPONED_S: Final = 1.0
"""Fewest seconds between the end of a postponed attempt and the next attempt."""
EMPTY: Final = b"{}"
"""Output of an attempt that has none."""


UpstreamAnswer = Literal["ok", "pushed-back", "failed", "exhausted"]
"""Answer of an external service. `pushed-back`: it wants fewer calls. `failed`: it is broken or away. `exhausted`: its
account has no credit."""


class Feedback(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an external service answered one call, for the quota that limits calls of it."""

    quota: str
    answer: UpstreamAnswer
    not_before_s: float = 0.0
    """Seconds, counted from the end of the attempt, before which it wants no call; 0: it has named none."""
    reason: str = ""


class AttemptResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of one attempt. Durations and epochs are beside it, in the node's report."""

    status: ExecutionStatus
    passed: bool | None = None
    score: float | None = None
    output: bytes = EMPTY
    """Report of the kind: valid JSON of bounded size."""
    reason: str = ""
    usage: dict[str, float] = {}
    """Amounts that this attempt has used (`USAGE`)."""
    peak_memory_bytes: int = 0
    """Most memory at one time. No usage: amounts of usage are sums, and this is a maximum."""
    evidence: Evidence = ""
    retry_in_s: float = 0.0
    """For `postponed`: seconds before which a retry is useless. For `lost`: pause before the next attempt; 0: none."""
    failed_calls: FailedCalls | None = None
    """For `postponed`: failed calls of this stage so far, for the next attempt; None: they are not counted."""
    restore_s: float = 0.0
    """Seconds that the attempt waited until its model service was resident; no part of its execution."""
    ready_in_s: float = 0.0
    """Seconds after which its model service is expected to be resident, if the attempt ended while it waited for that;
    0: it did not.
    """
    quotas_used: dict[str, float] = {}
    """Quota -> amount that the attempt has really used, if the executor knows it. The ledger settles by it."""
    unexecuted: bool = False
    """The external service has not executed the call: it was not sent, or was declined. The ledger gives back what was
    paid to rates without a period, also of quotas that `quotas_used` does not name."""
    feedback: tuple[Feedback, ...] = ()
    """How external services answered: at most one for each quota of the attempt."""
    environment_exists: bool = True
    """False: the attempt failed to create its trajectory's environment, and nothing of the action was executed."""
    environment_ended: TrajectoryEnd = "lost"
    """For `environment-lost`: how the environment ended."""

    @property
    def is_verdict(self) -> bool:
        """The status is a statement about the sample. Every other status is an infrastructure failure or a
        cancellation.
        """
        return self.status in ("ok", "timeout")


def lost(reason: str) -> AttemptResult:
    """Return a failure of ours, to be retried."""
    return AttemptResult("lost", reason=reason)


def refused(reason: str) -> AttemptResult:
    """Return a refusal: no other attempt would succeed either."""
    return AttemptResult("refused", reason=reason)


def added(total: Usage, more: Usage) -> Usage:
    """Return the sum of two usages by name, without amounts that are not positive and finite.

    An amount comes from another process, and one NaN would make every sum NaN. O(names).
    """
    if not more:
        return total
    summed = dict(total)
    for name, amount in more.items():
        if 0.0 < amount < math.inf and (name in summed or len(summed) < MOST_USED):
            summed[name] = summed.get(name, 0.0) + amount
    return summed
