"""Callers of this replica that wait for leases: in-process futures, no polling of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec
from redis.asyncio import Redis

from shared.api.leases import LeaseNews
from shared.bus import held_leases
from shared.bus.connection import TRANSIENT
from shared.bus.held_leases import LeaseCode, LeaseRecord
from shared.messages.actions import ActionSubmitted
from shared.messages.leases import GrantedLease
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)
_news = msgspec.json.Decoder(LeaseNews).decode

RECHECK_S: Final[Seconds] = 5.0
LOOKED_UP_AT_ONCE: Final = 256

Outcome = GrantedLease | LeaseNews
"""A grant, or the end of an action that was not granted."""


class LeaseDecider(Protocol):
    """The leader, if it is this replica: it decides about its own callers' leases at once (`leader.local_leases`)."""

    def acquire(self, submitted: ActionSubmitted) -> asyncio.Future[bool]:
        """Submit a lease with a new id. True: it is journaled. False: submit it to the journal. Raises Overloaded if
        the journal rejects it.

        If the future is done before, nothing is submitted, or what was submitted is cancelled.
        """
        ...

    def release(self, lease: str, fence: int, used: Mapping[str, float]) -> asyncio.Future[LeaseCode | None] | None:
        """End a lease. None, here or as the result: release it in the store, which knows its holder."""
        ...


class LeaseWaiters:
    """Waiting callers by the action of their lease.

    The leader's own callers are woken directly, those of other replicas by the stream `answered`. If a wake-up is
    missed (trimmed stream, restart of Valkey), the reply is at most `RECHECK_S` late, never lost
    (tests/services/proxy/records/test_lease_waiters.py).
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: dict[str, set[asyncio.Future[Outcome | None]]] = {}
        self.leader: LeaseDecider | None = None
        """Set while this replica leads."""
        self.cancel: Callable[[str], None] = lambda _action: None
        """Cancels the lease of a caller that has gone, in the background. Set by the service of leases."""

    def __len__(self) -> int:
        return len(self._waiting)

    def waited_for(self) -> list[str]:
        """Return every action that a caller waits for."""
        return list(self._waiting)

    def expect(self, action: str) -> asyncio.Future[Outcome | None]:
        """Return a future of the action's outcome. Call it before submitting, and `discard` at the end."""
        future: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(action, set()).add(future)
        return future

    def discard(self, action: str, future: asyncio.Future[Outcome | None]) -> None:
        """Remove a caller that no longer waits."""
        futures = self._waiting.get(action)
        if futures is not None:
            futures.discard(future)
            if not futures:
                del self._waiting[action]

    def granted(self, leases: Sequence[GrantedLease]) -> None:
        """Wake the callers of granted leases."""
        for lease in leases:
            self._resolve(lease.action, lease)

    def answered(self, action: str, answer: bytes) -> None:
        """Wake the callers of an action that was answered. Actions that are no leases have none."""
        if action in self._waiting:
            self._resolve(action, _news(answer))

    def _resolve(self, action: str, outcome: Outcome) -> None:
        for future in self._waiting.pop(action, ()):
            if not future.done():
                future.set_result(outcome)

    async def look_up(self, actions: Iterable[str]) -> None:
        """Wake the callers of these actions by what the store has. If it cannot be read, `recheck` tries again."""
        wanted = [action for action in actions if action in self._waiting]
        try:
            for start in range(0, len(wanted), LOOKED_UP_AT_ONCE):
                part = wanted[start : start + LOOKED_UP_AT_ONCE]
                for action, record in zip(part, await held_leases.read_leases(self._redis, part), strict=True):
                    outcome = outcome_of(action, record)
                    if outcome is not None:
                        self._resolve(action, outcome)
        except TRANSIENT as error:
            _log.warning("reading_leases_failed", waiting=len(wanted), error=str(error))

    async def recheck(self) -> None:
        """Loop: look up every action that a caller waits for, at intervals of `RECHECK_S`."""
        while True:
            await asyncio.sleep(RECHECK_S)
            if self._waiting:
                await self.look_up(self.waited_for())


def outcome_of(action: str, record: LeaseRecord | None) -> Outcome | None:
    """Return what a caller learns from a record; None while it has to wait, also before the action is journaled."""
    if record is None:
        return None
    if record.answer is not None:
        return _news(record.answer)
    if record.ended:
        ended = {"released": "", "expired": "timeout"}.get(record.ended, "cancelled")
        return LeaseNews(id=action, state="finished", ended=ended)
    if record.is_held:
        return GrantedLease(action, record.fence, round(1000 * record.expires_s), round(1000 * record.ttl_s))
    return None
