"""Why an unanswered action waits, as the leader published it. Any replica reads it."""

from __future__ import annotations

from services.proxy.records.store import Store, Stored
from shared.kinds.registry import all_kinds
from shared.messages.actions import ActionSubmitted
from shared.policy.model.waiting import WaitingReason, begins_class, work_class

UNKNOWN = WaitingReason()


async def reason_of(store: Store, action: str, stored: Stored) -> WaitingReason:
    """Return why an unanswered action waits for more than its turn; an empty reason if it does not.

    One small read. For an action of a trajectory also the trajectory's record, which has the reason why its last
    environment could not be created. The journal entry is read only if more actions wait than the leader has named.
    """
    reason, classes = await store.waiting_reason(action, stored.stage)
    submitted = await store.submitted(stored.entry) if classes else None
    if submitted is not None:
        reason = classes.get(_class_of(submitted, stored.stage), UNKNOWN)
    if not stored.trajectory or reason.wait not in ("", "held up"):
        return reason
    environment = await store.environment_status(stored.trajectory)
    if environment.unmade:
        return WaitingReason("held up", environment.unmade)
    if environment.placed:
        return UNKNOWN
    if submitted is not None:
        return classes.get(begins_class(submitted.stages[stored.stage].pool), UNKNOWN)
    return reason


def _class_of(submitted: ActionSubmitted, stage: int) -> str:
    work = submitted.stages[stage]
    units = {resource: fewest for resource, (fewest, _) in work.cost.items()}
    spec = submitted.environment
    if spec is None:
        return work_class(work.pool, work.kind, units, work.quotas)
    runtime = all_kinds().runtime(spec.image)
    return work_class(work.pool, work.kind, units, work.quotas, runtime.kind, runtime.units(spec))
