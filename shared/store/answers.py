"""Answers that have moved out of Valkey. Every write is idempotent by action. Of two answers the newer one stays."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import DateTime, LargeBinary, Text, bindparam, delete, exists, func, select, text, tuple_
from sqlalchemy.dialects.postgresql import ARRAY, BIGINT
from sqlalchemy.ext.asyncio import AsyncSession

from shared.store.records import Cursor, KeptAnswer
from shared.store.tables import ANSWERS, BATCHES, moment

_ADD = text(
    """
    INSERT INTO answers (action, batch, tenant, ms, seq, answer, expires_at)
    SELECT * FROM unnest(:action, :batch, :tenant, :ms, :seq, :answer, :expires_at)
    ON CONFLICT (action) DO UPDATE SET
        batch = excluded.batch, tenant = excluded.tenant, ms = excluded.ms, seq = excluded.seq,
        answer = excluded.answer, expires_at = excluded.expires_at
    WHERE (answers.ms, answers.seq) < (excluded.ms, excluded.seq)
    """
).bindparams(
    *(bindparam(name, type_=ARRAY(Text)) for name in ("action", "batch", "tenant")),
    *(bindparam(name, type_=ARRAY(BIGINT)) for name in ("ms", "seq")),
    bindparam("answer", type_=ARRAY(LargeBinary)),
    bindparam("expires_at", type_=ARRAY(DateTime(timezone=True))),
)


class Answers:
    """Repository of archived answers."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, answers: Sequence[KeptAnswer]) -> None:
        """Store answers, each action once. One statement."""
        if not answers:
            return
        await self._session.execute(
            _ADD,
            {
                "action": [one.action for one in answers],
                "batch": [one.batch for one in answers],
                "tenant": [one.tenant for one in answers],
                "ms": [one.cursor[0] for one in answers],
                "seq": [one.cursor[1] for one in answers],
                "answer": [one.answer for one in answers],
                "expires_at": [moment(one.expires_at) for one in answers],
            },
        )

    async def page(self, batch: str, after: Cursor, until: Cursor | None, count: int) -> list[tuple[Cursor, bytes]]:
        """Return results of a batch in the order of their cursors: after `after`, up to `until`."""
        place = tuple_(ANSWERS.c.ms, ANSWERS.c.seq)
        statement = (
            select(ANSWERS.c.ms, ANSWERS.c.seq, ANSWERS.c.answer)
            .where(ANSWERS.c.batch == batch, ANSWERS.c.batch != "", place > after)
            .order_by(ANSWERS.c.ms, ANSWERS.c.seq)
            .limit(count)
        )
        if until is not None:
            statement = statement.where(place <= until)
        return [((row.ms, row.seq), row.answer) for row in await self._session.execute(statement)]

    async def find(self, actions: Sequence[str]) -> dict[str, tuple[str, bytes]]:
        """Return {action: (its batch, its answer)} of those that are archived and have not expired."""
        rows = await self._session.execute(
            select(ANSWERS.c.action, ANSWERS.c.batch, ANSWERS.c.answer).where(
                ANSWERS.c.action.in_(actions), ANSWERS.c.expires_at > func.now()
            )
        )
        return {row.action: (row.batch, row.answer) for row in rows}

    async def has_history(self, batch: str) -> bool:
        """Return whether the planner has stored the end of this batch."""
        rows = await self._session.execute(select(BATCHES.c.id).where(BATCHES.c.id == batch, BATCHES.c.state != "open"))
        return rows.one_or_none() is not None

    async def has(self, batch: str) -> bool:
        """Return whether there is any result of this batch."""
        here = select(exists().where(ANSWERS.c.batch == batch, ANSWERS.c.batch != ""))
        return bool((await self._session.execute(here)).scalar_one())

    async def delete(self, batch: str, most: int) -> int:
        """Delete up to `most` results of a batch. Return how many."""
        some = select(ANSWERS.c.action).where(ANSWERS.c.batch == batch, ANSWERS.c.batch != "").limit(most)
        return await self._delete(some)

    async def expire(self, most: int) -> int:
        """Delete up to `most` expired answers. Return how many."""
        return await self._delete(select(ANSWERS.c.action).where(ANSWERS.c.expires_at < func.now()).limit(most))

    async def _delete(self, some: object) -> int:
        gone = await self._session.execute(delete(ANSWERS).where(ANSWERS.c.action.in_(some)))  # type: ignore[arg-type]
        return int(gone.rowcount)  # type: ignore[attr-defined]  # a DELETE has one
