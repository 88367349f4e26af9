"""Leases: amounts of quotas that a program holds while it calls an API itself.

A lease is renewed in the background at a third of its time. If a renewal is refused, or does not come through in time,
the lease is lost: other callers may hold its amounts, so the body must stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, Self

import aiohttp

from treadle.client.answers import LeaseView, QuotaLease
from treadle.client.errors import LeaseLost, Transient, TreadleError, error_of
from treadle.client.requests import AcquireRequest, LeaseFence, LeaseSettlement
from treadle.client.retry import CONNECTION_ERRORS, RetryPolicy, retry
from treadle.client.transport import JSON, MAX_ACQUIRING, Transport, encoded, quoted

RENEWALS: Final = 3
"""Renewals in the time of a lease."""
ANSWER_S: Final = 15.0
"""Seconds beyond `wait_s` after which a silent connection is opened anew."""
RELEASE_POLICY: Final = RetryPolicy(give_up_after_s=5.0)
"""Bounds of a release. A lease that cannot be released expires by itself."""
MOST_AMOUNT: Final = 1e9
"""Largest amount that the mesh accepts."""
PATH: Final = "/v1/acquire"

Quotas = str | Mapping[str, float]
"""A quota, of which 1 is held, or amounts of several."""


class AsyncLease:
    """Amounts of quotas in an `async with` block: acquired at its begin, released at its end.

    One block at a time: a second one, also of another task, raises `RuntimeError`. If the lease is lost, the task of
    the block is cancelled, and the block raises `LeaseLost`.
    """

    def __init__(self, transport: Transport, request: AcquireRequest) -> None:
        self._transport = transport
        self._request = request
        self._entered = False
        """From the begin of an acquire to the end of the release."""
        self._lease: QuotaLease | None = None
        self._until = 0.0
        """Monotonic time until which the lease is held. After `acquire` it is late by the time of the answer on its way
        at most; after a renewal it is early."""
        self._used: Mapping[str, float] = {}
        self._lost: LeaseLost | None = None
        self._owner: asyncio.Task[object] | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """Id of the lease; empty before it is held."""
        return "" if self._lease is None else self._lease.lease

    @property
    def fence(self) -> int:
        """Number that grows with each lease of the mesh: a service of your own can reject calls with an older one."""
        return 0 if self._lease is None else self._lease.fence

    @property
    def is_lost(self) -> bool:
        """True if other callers may hold the amounts."""
        return self._lost is not None

    def check(self) -> None:
        """Raise if the lease is lost. For bodies that cannot be cancelled.

        Raises:
            LeaseLost: other callers may hold the amounts.
        """
        if self._lost is not None:
            raise self._lost

    def settle(self, used: Mapping[str, float]) -> None:
        """Note the amounts that were really used, quota -> amount. They are sent with the release, and correct what was
        taken of rates.

        Raises:
            ValueError: the lease takes nothing of such a quota, or the mesh accepts no such amount.
            RuntimeError: the lease is not held: its block has ended, or has not begun.
        """
        if self._lease is None:
            raise RuntimeError(
                "this lease is not held, so the amounts could not be sent; call settle inside the block, "
                "before the lease is released"
            )
        if others := used.keys() - self._request.quotas.keys():
            raise ValueError(f"the lease takes nothing of {min(others)!r}; it takes {', '.join(self._request.quotas)}")
        for quota, amount in used.items():
            if not _is_amount(amount):
                what = f"{amount!r} is no used amount of {quota!r}; write a number from 0 to {MOST_AMOUNT:g}"
                raise ValueError(f'{what}, for example settle({{"{quota}": 1}})')
        self._used = {**self._used, **used}

    async def acquire(self) -> Self:
        """Hold the amounts, and renew the lease from now on.

        Raises:
            QuotaTaken: they cannot be had within `wait_s`.
            QuotaNever: a quota does not exist, or can never give its amount.
            Unavailable: the mesh was away until the retry policy gave up.
            RuntimeError: this object is held, or is being acquired.
        """
        if self._entered and self._lost is None:
            quotas = dict(self._request.quotas)
            raise RuntimeError(
                "this lease is held or being acquired; a lease object serves one block at a time: "
                f"write client.quota({quotas!r}) for each block"
            )
        self._entered, self._lost, self._used = True, None, {}
        try:
            return await self._acquire()
        except BaseException:
            self._entered = False
            raise

    async def _acquire(self) -> Self:
        transport, content = self._transport, encoded(self._request, f"the body of POST {PATH}")
        timeout = aiohttp.ClientTimeout(sock_read=(self._request.wait_s or 0.0) + ANSWER_S)

        async def attempt() -> bytes:
            with transport.http_errors(PATH):
                async with transport.request(
                    "POST", PATH, most=MAX_ACQUIRING, data=content, headers=JSON, timeout=timeout
                ) as reply:
                    answer = await reply.read()
            if reply.status >= 400:
                raise error_of(reply.status, answer, str(reply.url), reply.headers.get("retry-after"))
            return answer

        reply = await retry(attempt, transport.retry_policy, f"POST {transport.url}{PATH}", transport.rng)
        arrived, self._lease = time.monotonic(), transport.decoded(QuotaLease, reply, PATH)
        self._until = arrived + self._lease.expires_in_s
        self._renewing = asyncio.create_task(self._renew(), name="renewal of a lease")
        return self

    async def release(self) -> None:
        """End the lease; with the amounts of `settle`. One that cannot be released expires by itself.

        Raises:
            LeaseLost: it had ended before.
        """
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            await self._end(lease)
        finally:
            self._entered, self._used = False, {}

    async def _end(self, lease: QuotaLease) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        if self._lost is not None:
            return
        if not self._used:
            await self._send_end(lease, "release", LeaseFence(fence=lease.fence))
            return
        try:
            await self._send_end(lease, "settle", LeaseSettlement(fence=lease.fence, used=self._used))
        except LeaseLost:
            raise
        except TreadleError:  # without a settlement the slots must not stay taken until the lease expires
            await self._send_end(lease, "release", LeaseFence(fence=lease.fence))
            raise

    async def _send_end(self, lease: QuotaLease, verb: str, body: LeaseSettlement | LeaseFence) -> None:
        path = f"/v1/leases/{quoted(lease.lease)}/{verb}"
        try:
            await self._transport.call(LeaseView, "POST", path, body, retry_policy=RELEASE_POLICY)
        except Transient:
            return
        except TreadleError as error:
            if error.slug not in LOST:
                raise
            raise LeaseLost(str(error), error.problem) from error

    async def _renew(self) -> None:
        """Renew until cancelled, or until the lease is lost."""
        lease = self._lease
        assert lease is not None, "only a lease that is held is renewed"
        pause_s = lease.expires_in_s / RENEWALS
        path, body = f"/v1/leases/{quoted(lease.lease)}/renew", LeaseFence(fence=lease.fence)
        while True:
            await asyncio.sleep(max(0.0, min(pause_s, self._until - time.monotonic())))
            left_s = self._until - time.monotonic()
            try:
                if left_s <= 0:
                    raise LeaseLost("the lease could not be renewed before it expired")
                sent = time.monotonic()
                async with asyncio.timeout(left_s):
                    policy = RetryPolicy(give_up_after_s=left_s)
                    renewed = await self._transport.call(QuotaLease, "POST", path, body, retry_policy=policy)
                self._until = sent + renewed.expires_in_s
            except (TreadleError, *CONNECTION_ERRORS) as error:
                if isinstance(error, Transient | TimeoutError) and self._until > time.monotonic():
                    continue
                self._lose(error)
                return

    def _lose(self, error: Exception) -> None:
        problem = error.problem if isinstance(error, TreadleError) else {}
        self._lost = error if isinstance(error, LeaseLost) else LeaseLost(str(error), problem)
        if self._owner is not None:
            self._owner.cancel()

    async def __aenter__(self) -> Self:
        await self.acquire()
        self._owner = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        owner, self._owner = self._owner, None
        if self._lost is not None:
            await self.release()
            if owner is not None and owner.uncancel() == 0 and kind in (None, asyncio.CancelledError):
                raise self._lost from error
            return
        with noted(error):
            await self.release()


LOST: Final = frozenset({"lease-expired", "fenced", "not-found"})
"""Problems that say that a lease is not held."""


def _is_amount(value: object) -> bool:
    """Return whether the mesh accepts a used amount. NaN is not within bounds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_AMOUNT


@contextlib.contextmanager
def noted(error: BaseException | None) -> Iterator[None]:
    """Raise an error of a block's exit, or note it at the exception of the block's body, which must not be hidden."""
    try:
        yield
    except Exception as failure:
        if error is None:
            raise
        error.add_note(f"the lease could not be released: {type(failure).__name__}: {failure}")


def requested(quotas: Quotas, wait_s: float, ttl_s: float, priority: float) -> AcquireRequest:
    """Return the body of an acquire."""
    amounts = {quotas: 1.0} if isinstance(quotas, str) else dict(quotas)
    return AcquireRequest(quotas=amounts, wait_s=wait_s, ttl_s=ttl_s, priority=priority)
