"""Records of what the models of trajectories sampled (`shared/tokens`).

A call has the ids after the chain that it extends, and the digest of its end. The record of a trajectory expires as a
whole. Serials of a trajectory are unique, so of two writers with the same view of it one fails and reads again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

import asyncpg
import msgspec
from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from shared.runtime.units import Seconds
from shared.store.database import Sessions, driver_connection
from shared.store.tables import TOKEN_CALLS, TOKEN_TRAJECTORIES
from shared.tokens.calls import CallRecord, CallStatus, LogprobMeaning, VersionSpan
from shared.tokens.chain_heads import ChainHead

PAGE: Final = 64
"""Calls that are read at once."""
Taken = asyncpg.IntegrityConstraintViolationError
"""A serial was taken by another writer, or a call that is extended was deleted."""

_APPEND: Final = """
    WITH renewed AS (
        INSERT INTO token_trajectories (trajectory, tenant, expires_at) VALUES ($1, $13, to_timestamp($14))
        ON CONFLICT (trajectory) DO UPDATE SET expires_at = greatest(token_trajectories.expires_at, excluded.expires_at)
    )
    INSERT INTO token_calls (trajectory, serial, call, extends, kept, prompt, output, logprobs, details, head_length,
        head_digest, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9::text::jsonb, $10, $11, to_timestamp($12))
    """


class StoredCall(NamedTuple):
    """One call as it is written."""

    trajectory: str
    tenant: str
    record: CallRecord
    head: ChainHead | None
    """End that it makes; None: it has no ids."""


class ChainEnds(NamedTuple):
    """What a writer needs of a trajectory's record."""

    next_serial: int
    ids: int
    """Ids that are stored."""
    heads: list[ChainHead]
    """The newest ends, oldest first."""


class _Details(msgspec.Struct, omit_defaults=True):
    """Fields of a call that no statement reads."""

    logprobs_of: LogprobMeaning = ""
    temperature: float | None = None
    versions: tuple[VersionSpan, ...] = ()
    finish_reason: str = ""
    status: CallStatus = "complete"
    reason: str = ""
    route: str = ""
    model: str = ""
    worker: str = ""
    ended_s: float = 0.0


class TokenCalls:
    """Repository of recorded calls."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def ends(self, trajectory: str, most: int) -> ChainEnds:
        """Return the newest `most` ends of a trajectory's chains. O(its calls)."""
        of = TOKEN_CALLS.c.trajectory == trajectory
        stored = func.cardinality(TOKEN_CALLS.c.prompt) + func.cardinality(TOKEN_CALLS.c.output)
        totals = select(func.coalesce(func.max(TOKEN_CALLS.c.serial), -1), func.coalesce(func.sum(stored), 0))
        last, ids = (await self._session.execute(totals.where(of))).one()
        found = await self._session.execute(
            select(TOKEN_CALLS.c.head_length, TOKEN_CALLS.c.head_digest, TOKEN_CALLS.c.serial)
            .where(of, TOKEN_CALLS.c.head_length.is_not(None))
            .order_by(TOKEN_CALLS.c.serial.desc())
            .limit(most)
        )
        heads = [ChainHead(length, digest, serial) for length, digest, serial in found]
        return ChainEnds(last + 1, int(ids), heads[::-1])

    async def stored(self, trajectory: str, calls: Iterable[str]) -> set[str]:
        """Return which of these calls the trajectory's record has."""
        found = await self._session.execute(
            select(TOKEN_CALLS.c.call).where(TOKEN_CALLS.c.trajectory == trajectory, TOKEN_CALLS.c.call.in_(calls))
        )
        return {row.call for row in found}

    async def of(self, trajectory: str) -> AsyncIterator[CallRecord]:
        """Yield all calls of a trajectory by serial, read in pages."""
        after = -1
        while True:
            page = await self._session.execute(
                select(TOKEN_CALLS)
                .where(TOKEN_CALLS.c.trajectory == trajectory, TOKEN_CALLS.c.serial > after)
                .order_by(TOKEN_CALLS.c.serial)
                .limit(PAGE)
            )
            rows = page.all()
            for row in rows:
                yield _record(row)
            if len(rows) < PAGE:
                return
            after = rows[-1].serial

    async def delete(self, trajectory: str) -> bool:
        """Delete the record of a trajectory. Return whether there was one."""
        gone = await self._session.execute(
            delete(TOKEN_TRAJECTORIES).where(TOKEN_TRAJECTORIES.c.trajectory == trajectory)
        )
        return bool(gone.rowcount)  # type: ignore[attr-defined]  # a DELETE has one

    async def expire(self, most: int) -> int:
        """Delete up to `most` records that have expired. Return how many. Several processes may do so at once."""
        some = (
            select(TOKEN_TRAJECTORIES.c.trajectory)
            .where(TOKEN_TRAJECTORIES.c.expires_at < func.now())
            .limit(most)
            .with_for_update(skip_locked=True)
        )
        gone = await self._session.execute(delete(TOKEN_TRAJECTORIES).where(TOKEN_TRAJECTORIES.c.trajectory.in_(some)))
        return int(gone.rowcount)  # type: ignore[attr-defined]


class CallAppender:
    """Commits calls on a connection of its own. One caller at a time.

    One statement a call, and one round trip for all: 0.3 ms and the disk's time, where a pooled session takes 3 ms.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._opened = AsyncExitStack()
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def append(self, calls: Sequence[StoredCall], expires_at: Seconds) -> None:
        """Commit calls in one transaction, and let the records of their trajectories expire at `expires_at` or later.

        Raises:
            Taken: a serial is taken. Nothing of the transaction is stored then.
        """
        # The order is that of every writer, so that none waits for another that waits for it.
        rows = [(*_row(call), call.tenant, expires_at) for call in sorted(calls, key=_place)]
        try:
            connection = self._connection
            if connection is None or connection.is_closed():
                await self.close()
                opened = await self._opened.enter_async_context(driver_connection(self._sessions))
                connection = self._connection = opened
            await connection.executemany(_APPEND, rows)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Return the connection. Safe to call again; the next call opens another one."""
        self._connection = None
        await self._opened.aclose()


def _place(call: StoredCall) -> tuple[str, int]:
    return call.trajectory, call.record.serial


def _row(call: StoredCall) -> tuple[Any, ...]:
    """First arguments of `_APPEND`."""
    record, head = call.record, call.head
    details = _Details(**{name: getattr(record, name) for name in _Details.__struct_fields__})
    return (
        call.trajectory,
        record.serial,
        record.call,
        record.extends,
        record.kept,
        record.prompt,
        record.output,
        record.logprobs,
        msgspec.json.encode(details).decode(),
        None if head is None else head.length,
        None if head is None else head.digest,
        record.created_s,
    )


def _record(row: Any) -> CallRecord:
    details = msgspec.convert(row.details, _Details)
    return CallRecord(
        serial=row.serial,
        call=row.call,
        extends=row.extends,
        kept=row.kept,
        prompt=tuple(row.prompt),
        output=tuple(row.output),
        logprobs=None if row.logprobs is None else tuple(row.logprobs),
        created_s=row.created_at,
        **msgspec.structs.asdict(details),
    )
