"""Tasks: what each trainer's rewards are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import case, delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncSession

from shared.store.records import StoredTask
from shared.store.tables import TASKS


class Tasks:
    """Repository of tasks."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def put(self, tenant: str, name: str, workflow: Mapping[str, Any], *, now: float) -> StoredTask:
        """Make a task or change its workflow. Putting the same workflow again changes nothing but `updated_at`."""
        fresh = insert(TASKS).values(
            tenant=tenant, name=name, workflow=dict(workflow), version=1, created_at=now, updated_at=now
        )
        same = TASKS.c.workflow == fresh.excluded.workflow
        statement = fresh.on_conflict_do_update(
            index_elements=[TASKS.c.tenant, TASKS.c.name],
            set_={
                "workflow": fresh.excluded.workflow,
                "version": TASKS.c.version + case((same, 0), else_=1),
                "updated_at": fresh.excluded.updated_at,
            },
        ).returning(TASKS)
        return _task((await self._session.execute(statement)).one())

    async def get(self, tenant: str, name: str) -> StoredTask | None:
        rows = await self._session.execute(select(TASKS).where(TASKS.c.tenant == tenant, TASKS.c.name == name))
        row = rows.one_or_none()
        return None if row is None else _task(row)

    async def of(self, tenant: str) -> list[StoredTask]:
        """All tasks of a tenant, by name."""
        rows = await self._session.execute(select(TASKS).where(TASKS.c.tenant == tenant).order_by(TASKS.c.name))
        return [_task(row) for row in rows]

    async def remove(self, tenant: str, name: str) -> bool:
        """Forget a task; its batches stay. False when there was none."""
        statement = delete(TASKS).where(TASKS.c.tenant == tenant, TASKS.c.name == name).returning(TASKS.c.name)
        return (await self._session.execute(statement)).one_or_none() is not None


def _task(row: Row[Any]) -> StoredTask:
    return StoredTask(**row._mapping)
