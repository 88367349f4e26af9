"""Conversions from messages and results to stored records and snapshots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shared.bus.batch_snapshot import BatchCounts
from shared.bus.results import RequestRecord
from shared.messages.batch_snapshot import SNAPSHOT_INTERVAL_S, OpenBatchesSnapshot
from shared.messages.batches import BatchEnded, BatchOpened
from shared.policy.scaling.stimuli import ObservedBatch
from shared.policy.scaling.workload import UNREACHED, OpenedBatch, Stage
from shared.runtime.units import Seconds
from shared.store.records import BatchRequests, EndedBatch


def opened_batch(message: BatchOpened) -> OpenedBatch:
    """Convert the opening of a batch."""
    return OpenedBatch(
        batch=message.batch,
        tenant=message.tenant,
        task=message.task,
        size=message.size,
        stages=tuple(
            Stage(stage.name, stage.worker_cost, stage.timeout_s, stage.pool, stage.units, stage.quotas, stage.service)
            for stage in message.stages
        ),
        max_extra_delay_s=message.max_extra_delay_s,
        resources=message.resources,
        opened_at=message.opened_at,
    )


def ended_batch(message: BatchEnded, answers: Sequence[RequestRecord], tokens_per_s: float | None = None) -> EndedBatch:
    """Convert the end of a batch.

    Raises:
        ValueError: the state of the batch is open or sealed.
    """
    if message.state == "open" or message.state == "sealed":
        raise ValueError(f"batch {message.batch} ended, but its state is {message.state}")
    requests = measured(answers, message.first_at)
    ready_s = message.first_at + requests.record(len(requests.execution_s)).span_s if requests else None
    return EndedBatch(
        batch=message.batch,
        tenant=message.tenant,
        task=message.task,
        state=message.state,
        opened_at=message.opened_at,
        first_arrival_at=message.first_at,
        ended_at=message.ended_at,
        answered=message.size,
        extra_delay_s=None if ready_s is None else max(0.0, message.ended_at - ready_s),
        counts=dict(Counter(answer.ended for answer in answers)),
        requests=requests,
        tokens_per_s=tokens_per_s,
    )


def observed_batches(
    batches: Sequence[str], snapshot: OpenBatchesSnapshot | None, counts: Sequence[BatchCounts | None], now: Seconds
) -> dict[str, ObservedBatch]:
    """Return the states of open batches for the planner, without batches that have expired in Valkey.

    The leader publishes a snapshot only if it has changed. So the last one is still valid as of its last check, at most
    `SNAPSHOT_INTERVAL_S` ago; `counts` are of this moment.
    """
    states: dict[str, ObservedBatch] = {}
    observed_at = None if snapshot is None else min(now, max(snapshot.at, now - SNAPSHOT_INTERVAL_S))
    for batch, count in zip(batches, counts, strict=True):
        if count is not None:
            requests = snapshot.batches.get(batch) if snapshot is not None else None
            queuing, running = (tuple(requests.queuing), tuple(requests.running)) if requests is not None else ((), ())
            counted = (count.submitted, count.answered, queuing, running, count.closed)
            states[batch] = ObservedBatch(*counted, observed_at, unqueued_end_at=count.unqueued_end_s)
    return states


def measured(answers: Sequence[RequestRecord], first_at: float) -> BatchRequests | None:
    """Measurements in columns by request, in the order of acceptance; None if no request reached a stage."""
    rows = sorted(answers, key=lambda answer: answer.index)
    stages = max((len(answer.execution_s) for answer in rows), default=0)
    if not stages:
        return None
    return BatchRequests(
        arrival_s=tuple(max(0.0, row.arrived_at - first_at) for row in rows),
        queue_s=tuple(tuple(_at(row.queue_s, j) for row in rows) for j in range(stages)),
        execution_s=tuple(tuple(_at(row.execution_s, j) for row in rows) for j in range(stages)),
        units=tuple(tuple(row.units[j] if j < len(row.units) else 0 for row in rows) for j in range(stages)),
        overhead_s=tuple(row.overhead_s for row in rows),
    )


def _at(column: Sequence[float], stage: int) -> float:
    return column[stage] if stage < len(column) else UNREACHED
