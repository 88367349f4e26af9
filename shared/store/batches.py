"""Batch histories, which the planner learns from. Every write is idempotent by batch id: a repeat changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncSession

from shared.policy.scaling.workload import OpenedBatch, PastBatch, Stage
from shared.store.records import BatchRequests, EndedBatch, record
from shared.store.tables import BATCH_REQUESTS, BATCHES


class BatchHistory:
    """Repository of batches and the measurements of their requests."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def opened(self, batch: OpenedBatch) -> bool:
        """Store a batch that has opened. False: it was stored before."""
        row = {**asdict(batch), "stages": [asdict(stage) for stage in batch.stages], "state": "open"}
        row["id"] = row.pop("batch")
        added = await self._session.execute(
            upsert(BATCHES).values(row).on_conflict_do_nothing().returning(BATCHES.c.id)
        )
        return added.one_or_none() is not None

    async def first_arrival(self, batch: str, at: float, expected_completion_at: float | None = None) -> None:
        """Store when a batch's first request came. Later calls change nothing."""
        await self._session.execute(
            update(BATCHES)
            .where(BATCHES.c.id == batch, BATCHES.c.first_arrival_at.is_(None))
            .values(first_arrival_at=at, expected_completion_at=expected_completion_at)
        )

    async def ended(self, batch: EndedBatch) -> bool:
        """Store a batch's end and measurements. False: it had ended before, and nothing changes.

        A batch whose opening was never stored is stored too, without stages, so that no measurement is lost.
        """
        end = {
            "state": batch.state,
            "first_arrival_at": batch.first_arrival_at,
            "ended_at": batch.ended_at,
            "answered": batch.answered,
            "counts": dict(batch.counts),
            "extra_delay_s": batch.extra_delay_s,
            "tokens_per_s": batch.tokens_per_s,
        }
        unseen = {"stages": [], "max_extra_delay_s": 0.0, "resources": 0.0, "opened_at": batch.opened_at}
        statement = (
            upsert(BATCHES)
            .values(id=batch.batch, tenant=batch.tenant, task=batch.task, **unseen, **end)
            .on_conflict_do_update(index_elements=[BATCHES.c.id], set_=end, where=BATCHES.c.state == "open")
            .returning(BATCHES.c.id)
        )
        if (await self._session.execute(statement)).one_or_none() is None:
            return False
        if batch.requests is not None:
            await self._session.execute(insert(BATCH_REQUESTS).values(_row(batch.batch, batch.requests)))
        return True

    async def is_open(self, batch: str) -> bool:
        """Return whether a batch has opened and not ended."""
        rows = await self._session.execute(select(BATCHES.c.id).where(BATCHES.c.id == batch, BATCHES.c.state == "open"))
        return rows.one_or_none() is not None

    async def find(self, batch: str) -> OpenedBatch | None:
        """Return a batch as it was opened."""
        rows = await self._session.execute(select(BATCHES).where(BATCHES.c.id == batch))
        row = rows.one_or_none()
        return None if row is None else _opened(row)

    async def still_open(self) -> list[OpenedBatch]:
        """Return batches that have opened and not ended, oldest first."""
        rows = await self._session.execute(
            select(BATCHES).where(BATCHES.c.state == "open").order_by(BATCHES.c.opened_at, BATCHES.c.id)
        )
        return [_opened(row) for row in rows]

    async def recent(self, tenant: str, task: str, size: int | None, most: int) -> list[PastBatch]:
        """Return the newest complete batches of a task and declared size with measurements, the newest last.

        About 1 ms for each of 2,048 requests. A batch whose opening was never stored is left out, because its stages
        are not known.
        """
        rows = await self._session.execute(
            select(BATCHES, BATCH_REQUESTS.c.arrival_s, BATCH_REQUESTS.c.execution_s)
            .join(BATCH_REQUESTS, BATCH_REQUESTS.c.batch_id == BATCHES.c.id)
            .where(BATCHES.c.tenant == tenant, BATCHES.c.task == task, BATCHES.c.state == "complete")
            .where(BATCHES.c.size.is_not_distinct_from(size))
            .order_by(BATCHES.c.ended_at.desc(), BATCHES.c.id.desc())
            .limit(most)
        )
        return [_past(row) for row in reversed(rows.all()) if row.stages]

    async def requests(self, batch: str) -> BatchRequests | None:
        """Return the measurements of a batch."""
        rows = await self._session.execute(select(BATCH_REQUESTS).where(BATCH_REQUESTS.c.batch_id == batch))
        row = rows.one_or_none()
        return None if row is None else _requests(row)

    async def prune(self, before: float) -> int:
        """Delete batches that ended before a time (Unix seconds), with their requests. Return how many."""
        gone = await self._session.execute(delete(BATCHES).where(BATCHES.c.ended_at < before).returning(BATCHES.c.id))
        return len(gone.all())

    async def delete(self, tenant: str, task: str) -> None:
        """Delete a task's whole history."""
        await self._session.execute(delete(BATCHES).where(BATCHES.c.tenant == tenant, BATCHES.c.task == task))


def _opened(row: Row[Any]) -> OpenedBatch:
    return OpenedBatch(
        batch=row.id,
        tenant=row.tenant,
        task=row.task,
        size=row.size,
        stages=tuple(Stage(**stage) for stage in row.stages),
        max_extra_delay_s=row.max_extra_delay_s,
        resources=row.resources,
        opened_at=row.opened_at,
        first_arrival_at=row.first_arrival_at,
    )


def _past(row: Row[Any]) -> PastBatch:
    opened = _opened(row)
    return PastBatch(opened, record(row.arrival_s, row.execution_s, len(opened.stages)), row.tokens_per_s)


def _row(batch: str, requests: BatchRequests) -> dict[str, Any]:
    return {
        "batch_id": batch,
        "arrival_s": requests.arrival_s,
        "queue_s": requests.queue_s,
        "execution_s": requests.execution_s,
        "units": requests.units,
        "overhead_s": requests.overhead_s,
    }


def _requests(row: Row[Any]) -> BatchRequests:
    return BatchRequests(
        arrival_s=tuple(row.arrival_s),
        queue_s=_table(row.queue_s),
        execution_s=_table(row.execution_s),
        units=_table(row.units),
        overhead_s=tuple(row.overhead_s),
    )


def _table(rows: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(row) for row in rows)
