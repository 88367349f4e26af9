"""Token records of trajectories: their training rows, and their deletion. The trajectory router writes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from services.proxy.records.trajectory_service import TrajectoryService, unknown
from shared.api.tokens import RecordedCall
from shared.runtime import log
from shared.runtime.errors import Conflict, Unavailable
from shared.runtime.units import Seconds
from shared.store.database import Sessions, transaction
from shared.store.results import FAILURES
from shared.store.token_calls import TokenCalls
from shared.tokens.calls import CallRecord
from shared.tokens.rows import TrainingRow, rows_of

READ_S: Final[Seconds] = 30.0
"""Limit of reading one record."""
MOST_AT_ONCE: Final = 4
"""Records in memory at once. Others wait."""

_log = log.get(__name__)
_json = msgspec.json.Encoder().encode


class TokenRecords:
    """Reads and deletes records."""

    def __init__(self, sessions: Sessions, trajectories: TrajectoryService) -> None:
        self._sessions = sessions
        self._trajectories = trajectories
        self._reading = asyncio.Semaphore(MOST_AT_ONCE)

    async def rows(self, trajectory: str, tenant: str) -> AsyncIterator[bytes]:
        """Return the training rows of a trajectory, as JSON Lines. O(its ids).

        Raises:
            NotFound: the tenant has no such trajectory.
            Conflict: it was opened without `record`.
            Unavailable: Postgres does not answer, or too many records are being read.
        """
        await self._check(trajectory, tenant)
        calls = await self._read(trajectory)
        return _lines(rows_of(trajectory, calls))

    async def calls(self, trajectory: str, tenant: str) -> AsyncIterator[bytes]:
        """Return the recorded calls of a trajectory without their ids, as JSON Lines. Errors: see `rows`."""
        await self._check(trajectory, tenant)
        return _lines(iter(await self.recorded(trajectory)))

    async def recorded(self, trajectory: str) -> list[RecordedCall]:
        """Return the recorded calls of a trajectory without their ids, whose tenant the caller has checked.

        Raises:
            Unavailable: see `rows`.
        """
        return [RecordedCall.of(call) for call in await self._read(trajectory)]

    async def delete(self, trajectory: str, tenant: str) -> None:
        """Delete the record of a trajectory. No effect if there is none. Errors: see `rows`."""
        await self._check(trajectory, tenant)
        async with self._failures("deleting a token record"), transaction(self._sessions) as session:
            await TokenCalls(session).delete(trajectory)

    async def _check(self, trajectory: str, tenant: str) -> None:
        view = await self._trajectories.view(trajectory)
        if view.tenant != tenant:
            raise unknown(trajectory)
        if view.record is None:
            raise Conflict(what=f'trajectory {trajectory} is not recorded: open it with "record": "tokens"')

    async def _read(self, trajectory: str) -> list[CallRecord]:
        async with self._failures("reading a token record"), self._reading, self._sessions() as session:
            return [call async for call in TokenCalls(session).of(trajectory)]

    @asynccontextmanager
    async def _failures(self, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(READ_S):
                yield
        except FAILURES as error:
            _log.warning("postgres_unavailable", what=what, error=str(error) or type(error).__name__)
            raise Unavailable(
                what="Postgres, which has the token records, does not answer", retry_after_s=2.0
            ) from error


async def _lines(values: Iterator[TrainingRow] | Iterator[RecordedCall]) -> AsyncIterator[bytes]:
    for value in values:
        yield _json(value) + b"\n"
        await asyncio.sleep(0)  # others go on between two rows
