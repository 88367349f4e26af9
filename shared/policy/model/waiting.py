"""Reasons why actions wait: what the leader publishes, and every replica reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Wait = Literal["", "stuck", "parked", "resuming", "held up", "provider", "postponed"]
"""Reason of an action's wait. Empty: for its turn, or it does not wait. `held up`: to begin an environment. `provider`:
the external service behind one of its quotas wants no call. `postponed`: its last attempt asked for a later one."""


class WaitingReason(NamedTuple):
    """Reason of one action, or of every action of a class."""

    wait: Wait = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class WaitingReasons:
    """Reasons of all actions that wait for more than their turn."""

    actions: dict[tuple[str, int], WaitingReason] = field(default_factory=dict)
    """(Action, its stage) -> its reason; bounded."""
    classes: dict[str, WaitingReason] = field(default_factory=dict)
    """Class of work -> its reason, for the actions beyond that bound. Empty if there are none."""


def work_class(
    pool: str,
    kind: str,
    units: Mapping[str, int],
    quotas: Mapping[str, float],
    environment: str = "",
    lasting: Mapping[str, int] | None = None,
) -> str:
    """Return the class of a stage: the same nodes can execute all stages of one class.

    Args:
        pool: its pool.
        kind: its kind.
        units: the fewest units that it takes.
        quotas: what it takes of mesh-wide quotas.
        environment: kind of the runtime of its environment, for an action of a trajectory.
        lasting: units that this environment holds.
    """
    parts = [pool, kind, *_amounts(units)]
    if environment:
        parts += ["in", environment, *_amounts(lasting or {})]
    if quotas:
        parts += ["of", *_amounts(quotas)]
    return " ".join(parts)


def begins_class(pool: str) -> str:
    """Return the class of all actions that begin environments in a pool."""
    return f"{pool} begins"


def _amounts(amounts: Mapping[str, float]) -> list[str]:
    return [f"{name}={count}" for name, count in sorted(amounts.items())]


class TenantBacklog(NamedTuple):
    """Waiting work of one tenant for one quota."""

    actions: int
    """Number of actions."""
    amount: float
    """Sum of their amounts."""


class QuotaBacklog(NamedTuple):
    """Waiting work for one quota, as the leader last published it."""

    tenants: dict[str, TenantBacklog] = {}
    """Those with the most waiting actions."""
    actions: int = 0
    """Number of waiting actions of all tenants."""
    free_s: float | None = None
    """Unix seconds at which the smallest waiting amount, or 1, can be taken; 0: now; None: never."""
    held: float = 0.0
    """Amount that granted actions hold."""
