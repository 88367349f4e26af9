"""Durable writing of recorded calls: one transaction for all calls that wait (group commit).

Laws (tests/services/trajectory_router/recording/test_writer.py):
  - when `append` returns, its calls are committed; a call is stored once, also if a commit was not answered;
  - another replica that records the same trajectory is no error: the call that comes second is chained anew;
  - a call that the database rejects fails alone;
  - while Postgres is away, `ready` raises, and calls that wait fail after a limit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from services.trajectory_router.metrics import RECORD_COMMIT, RECORDED
from services.trajectory_router.recording.chains import Chains, KnownChains
from shared.bus.connection import ValkeyClock
from shared.runtime import log
from shared.runtime.errors import Conflict, Unavailable
from shared.runtime.units import Seconds
from shared.store import database
from shared.store.database import Sessions
from shared.store.token_calls import CallAppender, StoredCall, Taken, TokenCalls
from shared.tokens.calls import CallRecord
from shared.tokens.chain_heads import MOST_HEADS

_log = log.get(__name__)

MOST_TOGETHER: Final = 128
"""Calls of one transaction."""
MOST_IDS_TOGETHER: Final = 2_000_000
"""Ids of one transaction, beyond which it takes no further call."""
FRESH_S: Final = 1.0
"""Time after a success for which Postgres counts as present."""
PROBE_S: Final = 2.0
"""Limit of the call that finds out whether it is."""
COMMIT_S: Final = 10.0
"""Time for which a call waits for its commit."""
PAUSE_S: Final = 0.2
"""Before a transaction is repeated."""
MOST_CONFLICTS: Final = 16
"""Attempts of one transaction whose serials are taken by others."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """Calls whose commit somebody waits for."""

    trajectory: str
    tenant: str
    records: Sequence[CallRecord]
    done: asyncio.Future[None]


class TokenWriter:
    """Writes the calls of this replica. `run` is its only task."""

    def __init__(self, sessions: Sessions, clock: ValkeyClock, *, keep_s: Seconds, most_ids: int) -> None:
        """Compose it.

        Args:
            keep_s: retention of a record after its last call.
            most_ids: ids of one trajectory's record, beyond which its calls are refused.
        """
        self._sessions = sessions
        self._clock = clock
        self._keep_s = keep_s
        self._most_ids = most_ids
        self._appender = CallAppender(sessions)
        self._known = KnownChains()
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._fresh_until = 0.0
        self._probe: asyncio.Task[bool] | None = None

    async def ready(self, trajectory: str) -> None:
        """Return if calls of this trajectory can be recorded now.

        Raises:
            Unavailable: Postgres does not answer.
            Conflict: the trajectory's record is full.
        """
        if asyncio.get_running_loop().time() > self._fresh_until:
            if self._probe is None or self._probe.done():
                self._probe = asyncio.create_task(self._answers(), name="probe of postgres")
            if not await asyncio.shield(self._probe):
                raise _away()
        try:
            async with asyncio.timeout(COMMIT_S):
                chains = await self._chains(trajectory)
        except Exception as error:
            if database.away(error):
                raise _away() from error
            raise
        if chains.ids >= self._most_ids:
            raise Conflict(
                what=f"the record of trajectory {trajectory} is full: {chains.ids} of {self._most_ids} ids. Read it, "
                "delete it with DELETE /v1/trajectories/{trajectory}/tokens, or open another trajectory"
            )

    async def append(self, trajectory: str, tenant: str, records: Sequence[CallRecord]) -> None:
        """Store calls; return when they are committed.

        Raises:
            Unavailable: they are not, or it is not known whether they are. They may be stored later.
        """
        waiting = _Waiting(trajectory, tenant, records, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._arrived.set()
        try:
            async with asyncio.timeout(COMMIT_S):
                await asyncio.shield(waiting.done)
        except TimeoutError as error:
            waiting.done.add_done_callback(_seen)
            raise _away() from error
        except asyncio.CancelledError:
            waiting.done.add_done_callback(_seen)
            raise

    async def run(self) -> None:
        """Write until cancelled."""
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while self._waiting:
                    await self._flush(self._taken())
        finally:
            await self._appender.close()

    def _taken(self) -> list[_Waiting]:
        taken: list[_Waiting] = []
        ids = 0
        while self._waiting and len(taken) < MOST_TOGETHER and ids < MOST_IDS_TOGETHER:
            taken.append(self._waiting.popleft())
            ids += sum(record.ids for record in taken[-1].records)
        return taken

    async def _flush(self, taken: list[_Waiting]) -> None:
        """Store calls together. If that fails for another reason than Postgres' absence, store each alone."""
        try:
            with RECORD_COMMIT.time():
                await self._stored(taken)
        except Exception as error:  # noqa: BLE001  # whatever a call causes, the others are stored
            if len(taken) > 1:
                for one in taken:
                    await self._flush([one])
                return
            _log.exception("record_failed", trajectory=taken[0].trajectory)
            failure = Unavailable(what="the call cannot be recorded: the router's log has the reason")
            failure.__cause__ = error
            _end(taken, failure)
        else:
            _end(taken, None)

    async def _stored(self, taken: Sequence[_Waiting]) -> None:
        conflicts = 0
        left = list(taken)
        while left:
            try:
                calls = await self._chained(left)
                await self._appender.append(calls, self._clock.unix() + self._keep_s)
            except Taken:
                conflicts += 1
                if conflicts == MOST_CONFLICTS:
                    raise
            except Exception as error:
                if not database.away(error):
                    raise
                self._fresh_until = 0.0
                _log.warning("postgres_unavailable", what="recording calls", error=str(error) or type(error).__name__)
                await asyncio.sleep(PAUSE_S)
            else:
                self._fresh()
                for call in calls:
                    if (known := self._known.get(call.trajectory)) is not None:
                        known.stored(call)
                    RECORDED.labels(call.record.status).inc(len(call.record.output))
                return
            left = await self._unstored(left)

    async def _chained(self, waiting: Sequence[_Waiting]) -> list[StoredCall]:
        """Return calls as they are stored, with serials in the order of their arrival."""
        calls: list[StoredCall] = []
        serials: dict[str, int] = {}
        for one in waiting:
            chains = await self._chains(one.trajectory)
            for record in one.records:
                serial = serials.get(one.trajectory, chains.next_serial)
                serials[one.trajectory] = serial + 1
                calls.append(chains.extended(one.trajectory, one.tenant, record, serial))
        return calls

    async def _unstored(self, waiting: Sequence[_Waiting]) -> list[_Waiting]:
        """Read chains again after a failure. Return calls that are not stored: a commit may not have been answered."""
        for one in waiting:
            self._known.forget(one.trajectory)
        left: list[_Waiting] = []
        for one in waiting:
            names = [record.call for record in one.records]
            try:
                async with self._sessions() as session:
                    known = await TokenCalls(session).stored(one.trajectory, names)
            except Exception as error:
                if not database.away(error):
                    raise
                left.append(one)
                continue
            if not known.issuperset(names):
                left.append(one)
        return left

    async def _chains(self, trajectory: str) -> Chains:
        chains = self._known.get(trajectory)
        if chains is None:
            async with self._sessions() as session:
                chains = Chains.of(await TokenCalls(session).ends(trajectory, MOST_HEADS))
            self._known.put(trajectory, chains)
            self._fresh()
        return chains

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_S):
                present = await database.answers(self._sessions)
        except TimeoutError:
            present = False
        if present:
            self._fresh()
        return present

    def _fresh(self) -> None:
        self._fresh_until = asyncio.get_running_loop().time() + FRESH_S


def _away() -> Unavailable:
    return Unavailable(what="Postgres does not answer, and the calls of this trajectory are recorded there")


def _end(taken: Sequence[_Waiting], failure: Exception | None) -> None:
    for one in taken:
        if one.done.done():
            continue
        if failure is None:
            one.done.set_result(None)
        else:
            one.done.set_exception(failure)


def _seen(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()
