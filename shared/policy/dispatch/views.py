"""Read-only views of a dispatcher's state: copies, so that nothing outside changes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shared.policy.dispatch.action_state import ActionState
from shared.policy.model.formulation import State
from shared.policy.model.quotas import Amounts
from shared.policy.order.ebf import EbfKey
from shared.policy.resources.ledger import Node
from shared.policy.resources.quota_refusals import why_never
from shared.policy.resources.quotas import Quotas


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """One present node."""

    incarnation: str
    capacity: Mapping[str, int]
    used: Mapping[str, int]
    owned: Mapping[str, int]
    """Units that it may use now."""
    ready: bool
    """It has answered this leader's inventory request."""
    seen_s: float

    @classmethod
    def of(cls, node: Node) -> NodeSummary:
        """Return a copy of a node's state."""
        return cls(
            node.incarnation,
            dict(node.capacity),
            dict(node.used),
            {name: node.limit(name) for name in node.capacity},
            node.ready,
            node.seen_s,
        )


@dataclass(frozen=True, slots=True)
class ActionSummary:
    """One unanswered action."""

    state: State
    stage: int
    attempt: int
    node: str
    """Empty while it is queued."""
    key: EbfKey
    """Its position in the order of its tenant."""

    @classmethod
    def of(cls, action: ActionState) -> ActionSummary:
        """Return a copy of an action's state."""
        return cls(action.state, action.stage, action.attempt, action.node, action.key)


class LimitState(NamedTuple):
    """One limit of a quota and what is free of it."""

    quota: str
    most: float
    """Amount per period; for concurrency, most that is held at once."""
    free: float
    window_s: float | None = None
    """Period of a rate; None: concurrency, or a budget."""
    full_in_s: float | None = None
    """Seconds until a rate is full again."""
    held: bool = False
    """It limits concurrency."""


class QuotaOutlook(NamedTuple):
    """When some amounts can be taken from quotas."""

    never: str
    """Reason why they can never be under the present limits, also if all that is held were given back; empty: they
    can.
    """
    free_at_s: float
    """Earliest time, for a caller behind all who wait and are not stuck: exact for rates; for concurrency by predicted
    ends, as if nobody waited. Infinity: never, or nobody knows when holds give back enough of a budget.
    """

    @classmethod
    def of(cls, quotas: Quotas, amounts: Amounts, ahead: Amounts, now: float) -> QuotaOutlook:
        """Return the outlook for these amounts. `ahead`: those that others wait for."""
        free_s = max(quotas.free_at(amounts, now), quotas.refilled_behind(amounts, ahead, now))
        return cls(why_never(quotas, amounts, refunded=True), free_s)


def limit_states(quotas: Quotas, names: Iterable[str], now: float) -> list[LimitState]:
    """Return what is free of each limit of these quotas. O(limits)."""
    states: list[LimitState] = []
    for name in names:
        limits = quotas.limits.get(name)
        if limits is None:
            continue
        used = quotas.used.get(name, 0.0)
        states += [LimitState(name, most, max(0.0, most - used), held=True) for most in limits.concurrency]
        for rate in limits.rates:
            missing = quotas.missing(name, rate, now)
            full_in_s = missing / rate.per_s if rate.per_s else None
            states.append(LimitState(name, rate.limit, max(0.0, rate.most - missing), rate.period_s, full_in_s))
    return states
