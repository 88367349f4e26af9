"""Leases of callers: acquired as journaled actions, released and renewed in the store.

Laws (tests/e2e/test_leases.py):
  - a lease is granted by the leader in the order of all work, or not at all;
  - a refusal comes only if the amounts cannot be had by the deadline, or ever;
  - what a caller without a request id no longer waits for is cancelled, and what it no longer renews expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from redis.asyncio import Redis

from services.proxy.metrics import SUBMITTED
from services.proxy.records.batching import Batcher
from services.proxy.records.ids import Ids, random_id
from services.proxy.records.intake import Intake
from services.proxy.records.lease_records import is_lease, read_known_lease
from services.proxy.records.lease_states import check_held, check_refused, unknown_lease, view_of
from services.proxy.records.lease_submissions import submission_of_lease
from services.proxy.records.lease_waiters import LeaseWaiters, Outcome, outcome_of
from shared.api.leases import AcquireRequest, LeaseNews, LeaseView
from shared.bus import held_leases
from shared.bus.actions import read_action, read_submission
from shared.bus.connection import TRANSIENT, ValkeyClock, with_retries
from shared.bus.held_leases import LeaseCode, LeaseEnd, LeaseRecord
from shared.messages.actions import ActionSubmitted
from shared.messages.leases import GONE, GrantedLease
from shared.policy.model.quotas import NO_QUOTAS
from shared.runtime.coarse_timers import CoarseTimers
from shared.runtime.connection_watch import ConnectionWatch
from shared.runtime.errors import (
    BadRequest,
    Conflict,
    Overloaded,
    TreadleError,
    Unavailable,
)
from shared.runtime.units import Seconds

GRACE_S: Final[Seconds] = 2.0
"""Time after the deadline in which the leader's refusal is awaited. Without one, no leader can answer."""

Result = TypeVar("Result")

Cancel = Callable[[str, str], None]
"""Cancels an action in the background: (action, reason)."""


class LeaseUnderWay(NamedTuple):
    """A lease that a caller waits for."""

    submitted: ActionSubmitted
    outcome: asyncio.Future[Outcome | None]
    journaled: asyncio.Future[bool] | None
    """As from `LeaseDecider.acquire`; None: it is to be submitted to the journal."""


class LeaseService:
    """Leases of one replica's callers."""

    def __init__(
        self,
        redis: Redis,
        intake: Intake,
        ids: Ids,
        clock: ValkeyClock,
        waiters: LeaseWaiters,
        cancel: Cancel,
        timers: CoarseTimers,
        *,
        replica: str,
        limit_s: Seconds,
        most_waiting: int,
    ) -> None:
        """`limit_s`: time for which a release waits for a restarting Valkey. `most_waiting`: bound of waiting callers.
        `replica`: name under which the leader finds out that this replica has ended.
        """
        self._redis = redis
        self._intake = intake
        self._ids = ids
        self._clock = clock
        self._waiters = waiters
        waiters.cancel = lambda action: cancel(action, GONE)
        self._cancel, self._timers = cancel, timers
        self._replica = replica
        self._limit_s = limit_s
        self._most_waiting = most_waiting
        self._accepted = SUBMITTED.labels("accepted")
        self._ends: Batcher[LeaseEnd, LeaseCode] = Batcher(self._end_all)
        self._renewals: Batcher[tuple[str, int], tuple[LeaseCode, Seconds]] = Batcher(self._renew_all)

    # ---- acquire -----------------------------------------------------------------------------------------------

    async def acquire(
        self, tenant: str, request: AcquireRequest, gone: Callable[[], Awaitable[None]]
    ) -> GrantedLease | LeaseNews:
        """Return the granted lease, or why it was not granted by its deadline.

        Args:
            tenant: of the caller.
            request: the amounts.
            gone: returns when the caller's connection has ended.

        Raises:
            Conflict: the same request id with another body, or a lease that has ended; the caller has gone.
            QuotaNever: a quota does not exist, or can never give the amount.
            Overloaded: a bound is reached. Nothing was accepted.
            Unavailable: Valkey or the leader does not answer. Nothing is granted for this call unless it has a
                request id: then a repeat finds the same lease.
        """
        if len(self._waiters) >= self._most_waiting:
            raise Overloaded(what="this replica has too many long polls")
        acquire = self.begin(tenant, request)
        if acquire is None:
            submitted = submission_of_lease(tenant, request, await self._id(tenant, request), self._replica)
            acquire = LeaseUnderWay(submitted, self._waiters.expect(submitted.action), None)
        return await self.finish(acquire, gone)

    def begin(self, tenant: str, request: AcquireRequest) -> LeaseUnderWay | None:
        """Let the leader decide, if it is this replica. The caller goes on with `finish`, or has the lease by
        `granted`. None: nothing has begun, and `acquire` is needed.

        Raises:
            BadRequest: an amount is out of bounds.
        """
        leader = self._waiters.leader
        if leader is None or request.request_id is not None or not self._intake.accepts_new:
            return None
        if len(self._waiters) >= self._most_waiting:
            return None
        submitted = submission_of_lease(tenant, request, random_id(), self._replica)
        outcome = self._waiters.expect(submitted.action)
        return LeaseUnderWay(submitted, outcome, leader.acquire(submitted))

    def granted(self, acquire: LeaseUnderWay) -> GrantedLease | None:
        """Return the lease if the leader has decided by now and it is granted; None: go on with `finish`."""
        journaled, outcome = acquire.journaled, acquire.outcome
        if journaled is None or journaled.exception() is not None or not (journaled.result() and outcome.done()):
            return None
        lease = outcome.result()
        if not isinstance(lease, GrantedLease):
            return None
        self._accepted.inc()
        return lease

    def give_up(self, acquire: LeaseUnderWay) -> None:
        """Note at once that the caller of `begin` has gone. `finish` cancels the lease, also if it is granted later."""
        _expire(acquire.outcome)

    async def finish(self, acquire: LeaseUnderWay, gone: Callable[[], Awaitable[None]]) -> GrantedLease | LeaseNews:
        """Return the outcome of a call that has begun. See `acquire`."""
        submitted = acquire.submitted
        try:
            outcome = await self._outcome(acquire, gone)
        except (TreadleError, *TRANSIENT, asyncio.CancelledError) as error:
            accepted = not isinstance(error, Overloaded | Conflict)
            if accepted and not submitted.request:
                self._cancel(submitted.action, GONE)
            raise
        finally:
            self._waiters.discard(submitted.action, acquire.outcome)
        if isinstance(outcome, LeaseNews):
            check_refused(outcome)
        return outcome

    async def _id(self, tenant: str, request: AcquireRequest) -> str:
        given = request.request_id
        return random_id() if given is None else await self._ids.of(tenant, "", "", f"\x00lease {given}")

    async def _outcome(self, acquire: LeaseUnderWay, gone: Callable[[], Awaitable[None]]) -> Outcome:
        submitted, future = acquire.submitted, acquire.outcome
        expire, expiry = partial(_expire, future), None
        with ConnectionWatch(gone, expire, self._timers) as watch:
            try:
                if not await self._decided(acquire):
                    accepted = await self._intake.submit(submitted)
                    if accepted.repeated:
                        found = outcome_of(submitted.action, await self._read(submitted.action))
                        if found is not None:
                            return found
                expiry = self._timers.after(submitted.budget_s + GRACE_S, expire)
                outcome = await future
            finally:
                if expiry is not None:
                    expiry.cancel()
        if outcome is not None:
            return outcome
        if watch.gone:
            if not submitted.request:  # else a repeat may wait for it, through another replica
                self._cancel(submitted.action, GONE)
            raise Conflict(what=GONE)
        raise Unavailable(what="no leader has answered before the deadline")

    async def _decided(self, acquire: LeaseUnderWay) -> bool:
        """Return whether the leader has journaled it; False: it did not begin with the leader, or the leader knows no
        more.
        """
        if acquire.journaled is None or not await self._within(acquire.journaled):
            return False
        self._accepted.inc()
        return True

    async def _within(self, future: asyncio.Future[Result]) -> Result:
        """Wait for a write, as long as for a restarting Valkey."""
        timer = self._timers.after(self._limit_s, partial(_fail, future))
        try:
            return await future
        finally:
            timer.cancel()

    # ---- held leases -------------------------------------------------------------------------------------------

    async def release(self, lease: str, fence: int, used: Mapping[str, float] = NO_QUOTAS) -> None:
        """Release a lease. `used`: quota -> amount that was really used; empty: not known. May be repeated.

        Raises:
            BadRequest: the lease takes nothing of a quota that is named in `used`.
            Conflict: it has ended with other amounts.
            LeaseExpired, Fenced: the caller does not hold it.
            NotFound: there is none.
        """
        await self.finish_release(lease, fence, self.begin_release(lease, fence, used), used)

    def begin_release(
        self, lease: str, fence: int, used: Mapping[str, float] = NO_QUOTAS
    ) -> asyncio.Future[LeaseCode | None] | None:
        """Let the leader release a lease, if it is this replica and knows the holder. Go on with `finish_release`."""
        leader = self._waiters.leader
        return None if leader is None else leader.release(lease, fence, used)

    async def finish_release(
        self,
        lease: str,
        fence: int,
        ending: asyncio.Future[LeaseCode | None] | None,
        used: Mapping[str, float] = NO_QUOTAS,
    ) -> None:
        """Release a lease of which `begin_release` has returned this. See `release`."""
        if ending is not None and (code := await self._within(ending)) is not None:
            await self._check_held(lease, code)
            return
        if used:
            await self._check_used(lease, used)
        code = await self._ends.call(LeaseEnd(lease, fence, held_leases.encoded_amounts(used)))
        await self._check_held(lease, code)

    async def _check_used(self, lease: str, used: Mapping[str, float]) -> None:
        async def read() -> ActionSubmitted | None:
            record = await read_action(self._redis, lease)
            return None if record is None or not record.entry else await read_submission(self._redis, record.entry)

        submitted = await with_retries(read, what="reading a lease", limit_s=self._limit_s)
        if submitted is not None and not is_lease(submitted):
            raise unknown_lease(lease)
        if submitted is not None and (others := used.keys() - submitted.stages[0].quotas.keys()):
            names = ", ".join(submitted.stages[0].quotas)
            raise BadRequest(what=f"used: the lease takes nothing of {min(others)!r}; it takes {names}")

    async def renew(self, lease: str, fence: int) -> Seconds:
        """Renew a lease for its whole time. Returns the Unix time at which it expires then.

        Raises:
            LeaseExpired, Fenced: the caller does not hold it.
            NotFound: there is none.
        """
        code, expires_s = await self._renewals.call((lease, fence))
        await self._check_held(lease, "over" if code == "released" else code)
        return expires_s

    async def _check_held(self, lease: str, code: LeaseCode) -> None:
        """See `check_held`. The store's functions answer `waits` for every action that is not granted as a lease."""
        if code == "waits" and await self._read_known(lease) is None:
            raise unknown_lease(lease)
        check_held(lease, code)

    async def view(self, lease: str) -> LeaseView:
        """Return the state of a lease.

        Raises:
            NotFound: it was never requested, or has ended more than a minute ago.
        """
        record = await self._read_known(lease)
        if record is None:
            raise unknown_lease(lease)
        return view_of(lease, record, self._clock.unix())

    async def _read(self, lease: str) -> LeaseRecord | None:
        return await with_retries(
            lambda: held_leases.read_lease(self._redis, lease), what="reading a lease", limit_s=self._limit_s
        )

    async def _read_known(self, lease: str) -> LeaseRecord | None:
        return await with_retries(
            lambda: read_known_lease(self._redis, lease), what="reading a lease", limit_s=self._limit_s
        )

    async def _end_all(self, ends: list[LeaseEnd]) -> list[LeaseCode]:
        return await with_retries(
            lambda: held_leases.end_leases(self._redis, ends), what="releasing leases", limit_s=self._limit_s
        )

    async def _renew_all(self, renewals: list[tuple[str, int]]) -> list[tuple[LeaseCode, Seconds]]:
        return await with_retries(
            lambda: held_leases.renew_leases(self._redis, renewals), what="renewing leases", limit_s=self._limit_s
        )


def _fail(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(Unavailable(what="Valkey does not answer"))


def _expire(future: asyncio.Future[Outcome | None]) -> None:
    if not future.done():
        future.set_result(None)
