"""A batch's results from both stores, in one order: old ones are in Postgres, young ones in Valkey.

An entry is deleted from Valkey only after its copy is committed, and always from the head of the stream. The batch's
field `archived` is the last deleted entry. Entries up to `archived` are in Postgres, later ones in Valkey. An entry in
both counts once, because each store is read only on its side of `archived`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from sqlalchemy.exc import SQLAlchemyError

from shared.bus import archive
from shared.bus.archive import StoredResult, numeric
from shared.bus.connection import with_retries
from shared.runtime import log
from shared.runtime.errors import BadRequest, Unavailable
from shared.runtime.units import Seconds
from shared.store.answers import Answers
from shared.store.database import Sessions
from shared.store.records import Cursor

_log = log.get(__name__)

READ_S: Seconds = 3.0
"""Limit of one read of Postgres, including the wait for a connection. After it Postgres is treated as away."""
RETRY_LIMIT_S: Seconds = 10.0
"""Time limit of retries while Valkey is away."""
PAGE = 2000
FAILURES = (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)
"""Errors of a Postgres that cannot serve: away, restarting, out of connections, not migrated."""


class ArchiveReader:
    """Reads of archived answers. While Postgres cannot serve they raise `Unavailable` within `READ_S`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def page(self, batch: str, after: Cursor, until: Cursor | None, count: int) -> list[StoredResult]:
        """Return archived results after `after`, up to `until` (None: all)."""
        async with self._reading() as answers:
            rows = await answers.page(batch, after, until, count)
        return [StoredResult(f"{ms}-{seq}", answer) for (ms, seq), answer in rows]

    async def find(self, actions: Sequence[str]) -> dict[str, tuple[str, bytes]]:
        """Return {action: (its batch, its answer)} of the archived ones."""
        async with self._reading() as answers:
            return await answers.find(actions)

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Answers]:
        try:
            async with asyncio.timeout(READ_S), self._sessions() as session:
                yield Answers(session)
        except FAILURES as error:
            _log.warning(
                "postgres_unavailable", what="reading archived answers", error=str(error) or type(error).__name__
            )
            raise Unavailable(
                what="Postgres, which has the older answers, does not answer", retry_after_s=2.0
            ) from error


class Results:
    """The results of batches."""

    def __init__(self, redis: Redis, archive: ArchiveReader) -> None:
        self._redis = redis
        self._archive = archive

    async def page(self, batch: str, after: str, count: int) -> list[StoredResult]:
        """Return results after a cursor (empty: from the first): at least one if there is any, about `count` at most.

        Takes two round trips to Valkey. Postgres is read only if something after `after` has been archived.

        Raises:
            BadRequest: `after` is not a cursor.
            Unavailable: a store that is needed does not answer.
        """
        young, state, archived = await self._young(batch, after, count)
        begin = numeric(after) if after else (0, 0)
        if archived is None and state is not None:
            return young
        until = None if archived is None else numeric(archived)  # None: the batch has expired, but not its archive
        if until is not None and begin >= until:
            return young
        old = await self._archive.page(batch, begin, until, count)
        if len(old) >= count:
            return old
        # `archived` was read after the stream, so the stream's rows continue after it without a gap.
        behind = until or (numeric(old[-1].cursor) if old else begin)
        return old + [result for result in young if numeric(result.cursor) > behind]

    async def pages(self, batch: str, after: str = "", count: int = PAGE) -> AsyncIterator[list[StoredResult]]:
        """Yield all existing results after a cursor, page by page."""
        while rows := await self.page(batch, after, count):
            yield rows
            after = rows[-1].cursor

    async def _young(self, batch: str, after: str, count: int) -> tuple[list[StoredResult], bytes | None, str | None]:
        async def read() -> tuple[list[StoredResult], bytes | None, str | None]:
            return await archive.read_results(self._redis, batch, after, count)

        try:
            return await with_retries(read, what="reading results", limit_s=RETRY_LIMIT_S)
        except ResponseError as error:
            raise BadRequest(what=f"`after` must be a cursor from an earlier line, not {after!r}") from error
