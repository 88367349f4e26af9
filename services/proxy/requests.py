"""From a journal entry to what the dispatcher needs to know of it."""

from __future__ import annotations

import math

from shared.bus.tail import Entry
from shared.messages.actions import ActionSubmitted, StageWork
from shared.policy.formulation import Request, Work


def arrival_of(entry: str) -> tuple[int, int]:
    """A stream id as numbers, so that 9-0 comes before 10-0."""
    ms, _, seq = entry.partition("-")
    return int(ms), int(seq)


def to_work(stage: StageWork) -> Work:
    """One stage as the dispatcher sees it: the fewest units of each range."""
    units = {resource: fewest for resource, (fewest, _) in stage.cost.items()}
    return Work(stage.name, stage.kind, stage.pool, units, stage.timeout_s, stage.repeatable)


MOST_UNITS = 1 << 20


def unschedulable(submitted: ActionSubmitted) -> str:
    """What is wrong with an entry that the dispatcher must not meet; empty where nothing is.

    The door refuses all of it. But an entry stays in the journal until it is answered, so one that broke the leader,
    whoever wrote it, would break every leader after it.
    """
    if not submitted.stages:
        return "it has no stages"
    for stage in submitted.stages:
        for fewest, most in stage.cost.values():
            if not 0 <= fewest <= most <= MOST_UNITS:
                return f"stage {stage.name!r} asks for units that cannot be: {stage.cost}"
        if not 0 < stage.timeout_s < math.inf:
            return f"stage {stage.name!r} has no time limit that can be: {stage.timeout_s}"
    if not (math.isfinite(submitted.budget_s) and math.isfinite(submitted.priority)):
        return f"its budget ({submitted.budget_s}) or priority ({submitted.priority}) is not finite"
    return ""


def to_request(entry: Entry[ActionSubmitted]) -> Request:
    """One entry as the dispatcher sees it. Times are on the scale of the journal's ids, seconds."""
    submitted = entry.message
    arrived_s = entry.at
    start_within_s = submitted.start_within_s
    return Request(
        id=submitted.action,
        tenant=submitted.tenant,
        task=submitted.task,
        batch=submitted.batch,
        arrival=arrival_of(entry.id),
        stages=tuple(to_work(stage) for stage in submitted.stages),
        deadline_s=arrived_s + submitted.budget_s,
        start_by_s=None if start_within_s is None else arrived_s + start_within_s,
        priority=submitted.priority,
    )
