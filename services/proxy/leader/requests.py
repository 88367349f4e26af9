"""Conversions between journal entries, the dispatcher's values and messages to nodes."""

from __future__ import annotations

import math
from functools import lru_cache

from services.proxy.metrics import ANSWERED_WITH, PARKED, RESUMED
from shared.api.images import familiar
from shared.bus.tail import Entry
from shared.kinds.registry import all_kinds
from shared.messages import leases
from shared.messages.actions import ActionSubmitted, StageWork
from shared.messages.grants import AttemptParkRequested, AttemptResumed, Granted
from shared.messages.outcomes import Finished
from shared.policy.model.elasticity import LEAST_EFFICIENCY, Elasticity
from shared.policy.model.formulation import EnvironmentNeed, Grant, Park, Request, Resume, Work
from shared.policy.model.quotas import NO_QUOTAS
from shared.policy.model.reports import Ended
from shared.runtime.units import Epoch


def arrival_of(entry: str) -> tuple[int, int]:
    """Return a stream id as numbers, so that 9-0 comes before 10-0."""
    ms, _, seq = entry.partition("-")
    return int(ms), int(seq)


MOST_UNITS = 1 << 20
MOST_AMOUNTS = 1024
"""Most amounts of one resource that one action may be granted."""
MOST_STAGES = 4096
"""Different stages whose conversion is kept."""


class Unschedulable(ValueError):
    """An entry that the dispatcher must not receive; the message says why.

    The HTTP edge rejects all of this. But an entry stays in the journal until it is answered. So an entry that crashed
    the leader, whoever wrote it, would crash every later leader too.
    """


def to_work(stage: StageWork) -> Work:
    """Convert one stage: the fewest units of each range, and every amount of the pool's resource.

    Stages that differ only in their parameters share one value, so those of a batch are checked and converted once, as
    long as it is kept (`MOST_STAGES`).

    Raises:
        Unschedulable: the stage asks for what cannot be.
    """
    quotas = tuple(stage.quotas.items()) if stage.quotas else ()
    return _work(
        stage.name,
        stage.kind,
        stage.pool,
        tuple(stage.cost.items()),
        stage.timeout_s,
        stage.repeatable,
        stage.amounts,
        stage.elasticity,
        stage.duration_s,
        quotas,
        stage.service,
    )


@lru_cache(MOST_STAGES)
def _work(
    name: str,
    kind: str,
    pool: str,
    cost: tuple[tuple[str, tuple[int, int]], ...],
    timeout_s: float,
    repeatable: bool,
    amounts: tuple[int, ...],
    elasticity: Elasticity | None,
    duration_s: float | None,
    quotas: tuple[tuple[str, float], ...],
    service: str,
) -> Work:
    units = {}
    for resource, (fewest, most) in cost:
        if not 0 <= fewest <= most <= MOST_UNITS:
            raise Unschedulable(f"stage {name!r} asks for units that cannot be: {dict(cost)}")
        units[resource] = fewest
    if not 0 < timeout_s < math.inf:
        raise Unschedulable(f"stage {name!r} has no time limit that can be: {timeout_s}")
    if not all(0 <= amount < math.inf for _, amount in quotas):
        raise Unschedulable(f"stage {name!r} asks for amounts of quotas that cannot be: {dict(quotas)}")
    fewest, most = dict(cost).get(pool.partition("@")[0], (0, 0))
    if wrong := _unscalable(fewest, most, amounts, elasticity, duration_s):
        raise Unschedulable(f"stage {name!r} {wrong}")
    return Work(
        name,
        kind,
        pool,
        units,
        timeout_s,
        repeatable,
        amounts=amounts or (tuple(range(fewest, most + 1)) if fewest < most else ()),
        elasticity=elasticity,
        duration_s=duration_s,
        quotas=dict(quotas) if quotas else NO_QUOTAS,
        service=service,
    )


def to_need(submitted: ActionSubmitted) -> EnvironmentNeed | None:
    """Return the environment it needs; None for an action of no trajectory."""
    spec = submitted.environment
    if spec is None:
        return None
    runtime = all_kinds().runtime(spec.image)
    image = familiar(spec.image) if runtime.images else ""
    return EnvironmentNeed(submitted.trajectory, runtime.kind, runtime.units(spec), image)


def _unscalable(
    fewest: int, most: int, amounts: tuple[int, ...], elasticity: Elasticity | None, duration_s: float | None
) -> str:
    """Return what is wrong with a stage's amounts and its elasticity; empty if nothing is."""
    if most - fewest > MOST_AMOUNTS:
        return f"may have too many amounts of units: {fewest} to {most}"
    if amounts and (amounts != tuple(sorted(set(amounts))) or amounts[0] != fewest):
        return f"lists amounts that are not ascending from {fewest}: {amounts}"
    if amounts and amounts[-1] > most:
        return f"lists amounts above {most}: {amounts}"
    if duration_s is not None and not 0 < duration_s < math.inf:
        return f"has no duration that can be: {duration_s}"
    if elasticity is not None and not _is_elasticity(elasticity):
        return f"has no elasticity that can be: {elasticity}"
    if elasticity is not None and fewest < 1 <= most:
        return "scales from no unit at all"
    return ""


def _is_elasticity(scaling: Elasticity) -> bool:
    units = [count for count, _ in scaling.table]
    ascending = units == sorted(set(units)) and all(count >= 1 for count in units)
    shares = all(0 <= share <= 1 for share in (scaling.serial, scaling.exponent))
    return ascending and shares and all(LEAST_EFFICIENCY <= efficiency <= 1 for _, efficiency in scaling.table)


def to_request(entry: Entry[ActionSubmitted]) -> Request:
    """Convert one entry. Times are on the scale of the journal's ids, seconds.

    Raises:
        Unschedulable: the dispatcher must not receive it.
    """
    submitted = entry.message
    if wrong := _unacceptable(submitted):
        raise Unschedulable(wrong)
    arrived_s = entry.at
    start_within_s = submitted.start_within_s
    return Request(
        id=submitted.action,
        tenant=submitted.tenant,
        task=submitted.task,
        batch=submitted.batch,
        arrival=arrival_of(entry.id),
        stages=tuple([to_work(stage) for stage in submitted.stages]),
        deadline_s=arrived_s + submitted.budget_s,
        start_by_s=None if start_within_s is None else arrived_s + start_within_s,
        priority=submitted.priority,
        need=to_need(submitted),
        trajectory_priority=entry.priority,
        until_granted=submitted.stages[0].kind == leases.KIND,
    )


def _unacceptable(submitted: ActionSubmitted) -> str:
    """Return what is wrong with an entry as a whole; empty if nothing is."""
    if not submitted.stages:
        return "it has no stages"
    if bool(submitted.trajectory) != (submitted.environment is not None):
        return "an action of a trajectory, and no other, names its environment"
    if submitted.trajectory and len(submitted.stages) != 1:
        return f"an action of a trajectory has one stage, not {len(submitted.stages)}"
    if submitted.environment is not None and not all_kinds().can_create(submitted.environment.image):
        return f"no service declares a runtime for the image {submitted.environment.image!r}"
    if not (math.isfinite(submitted.budget_s) and math.isfinite(submitted.priority)):
        return f"its budget ({submitted.budget_s}) or priority ({submitted.priority}) is not finite"
    return ""


def to_end(outcome: Finished) -> Ended:
    """Convert a node's report of an attempt's end, and count the answers of external services."""
    for one in outcome.result.feedback:
        ANSWERED_WITH[one.answer].inc()
    return Ended(
        outcome.action,
        outcome.node,
        outcome.attempt,
        outcome.stage,
        outcome.result,
        outcome.queue_s,
        outcome.execution_s,
        outcome.units,
    )


def to_granted(epoch: Epoch, grant: Grant, submitted: ActionSubmitted) -> Granted:
    """Compose the grant for the node. It names the environment only if it begins it: otherwise it exists there, or is
    lost.
    """
    stage = submitted.stages[grant.stage]
    return Granted(
        action=grant.action,
        epoch=epoch,
        attempt=grant.attempt,
        tenant=submitted.tenant,
        stage=grant.stage,
        work=stage.kind,
        params=stage.params,
        units=dict(grant.units),
        timeout_s=stage.timeout_s,
        budget_s=grant.budget_s,
        trajectory=submitted.trajectory,
        environment=submitted.environment if grant.begins else None,
        error_score=stage.error_score,
        exception_score=stage.exception_score,
        quotas=dict(grant.hold.amounts) if grant.hold is not None else {},
        service=stage.service,
        numbers=list(grant.numbers),
        failed_calls=grant.failed_calls,
    )


def to_parking(epoch: Epoch, serial: int, command: Park | Resume) -> AttemptParkRequested | AttemptResumed:
    """Compose the message that parks or resumes an attempt, and count it."""
    if isinstance(command, Park):
        PARKED.inc()
        return AttemptParkRequested(action=command.action, epoch=epoch, attempt=command.attempt, serial=serial)
    RESUMED.inc()
    return AttemptResumed(action=command.action, epoch=epoch, attempt=command.attempt, serial=serial)
