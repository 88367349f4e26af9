"""Plans: the planner's decisions and their reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import delete, func, insert, select
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncSession

from shared.store.records import StoredPlan
from shared.store.tables import PLANS


class Plans:
    """Repository of decisions."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, plans: Sequence[StoredPlan]) -> None:
        """Store decisions, in order."""
        if plans:
            await self._session.execute(
                insert(PLANS), [{**asdict(plan), "reason": dict(plan.reason)} for plan in plans]
            )

    async def newest(self, *, pool: str | None = None, limit: int = 100) -> list[StoredPlan]:
        """Return the latest decisions, newest first."""
        statement = select(PLANS).order_by(PLANS.c.id.desc()).limit(limit)
        if pool is not None:
            statement = statement.where(PLANS.c.pool == pool)
        return [_plan(row) for row in await self._session.execute(statement)]

    async def targets(self) -> dict[str, int]:
        """Return the last decided target of each pool."""
        newest = select(func.max(PLANS.c.id)).group_by(PLANS.c.pool)
        statement = select(PLANS.c.pool, PLANS.c.target).where(PLANS.c.id.in_(newest))
        return {row.pool: row.target for row in await self._session.execute(statement)}

    async def prune(self, before: float) -> None:
        """Delete decisions older than a time (Unix seconds)."""
        await self._session.execute(delete(PLANS).where(PLANS.c.decided_at < before))


def _plan(row: Row[Any]) -> StoredPlan:
    return StoredPlan(row.decided_at, row.pool, row.previous, row.target, row.reason)
