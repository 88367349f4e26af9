"""From a journal entry to what the dispatcher needs to know of it."""

from __future__ import annotations

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
