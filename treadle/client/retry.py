"""Retries with exponential backoff, while the proxy is away or full."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import aiohttp

from treadle.client.errors import Transient, TreadleError, Unavailable

T = TypeVar("T")

CONNECTION_ERRORS = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)
"""Errors of a server that restarts: refused, reset, cut off, silent. An idempotent call is retried."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds of a call's retries."""

    give_up_after_s: float = 60.0
    """Seconds without a success after which the call fails. A supervised service restarts within this time."""
    first_backoff_s: float = 0.05
    max_backoff_s: float = 2.0

    def backoff_s(self, failures: int, rng: random.Random) -> float:
        """Seconds before the next attempt: doubled by each failure, with jitter over the upper half."""
        ceiling = min(self.max_backoff_s, self.first_backoff_s * 2.0 ** min(failures - 1, 32))
        return ceiling * rng.uniform(0.5, 1.0)


class RetryState:
    """Failures and backoff of one call, or of one stream that is continued after a failure."""

    def __init__(self, policy: RetryPolicy, what: str, rng: random.Random) -> None:
        self._policy = policy
        self._what = what
        self._rng = rng
        self._failures = 0
        self._success_at = asyncio.get_running_loop().time()

    def reset(self) -> None:
        """Start the policy anew, because the proxy answered."""
        self._failures = 0
        self._success_at = asyncio.get_running_loop().time()

    async def backoff(self, error: BaseException) -> None:
        """Wait before the next attempt.

        Raises:
            TreadleError: no time is left: the server's own error, or `Unavailable` if there was no answer.
        """
        self._failures += 1
        backoff_s = self._policy.backoff_s(self._failures, self._rng)
        if isinstance(error, Transient):
            backoff_s = max(backoff_s, min(error.retry_after_s, self._policy.max_backoff_s))
        waited_s = asyncio.get_running_loop().time() - self._success_at
        if waited_s + backoff_s > self._policy.give_up_after_s:
            if isinstance(error, TreadleError):
                raise error
            reason = str(error) or type(error).__name__
            raise Unavailable(f"{self._what}: no answer for {waited_s:.1f} s ({reason})") from error
        await asyncio.sleep(backoff_s)


async def retry(attempt: Callable[[], Awaitable[T]], policy: RetryPolicy, what: str, rng: random.Random) -> T:
    """Return the result of an idempotent call, retried while the proxy is away or full.

    Raises:
        TreadleError: an error that a retry does not change, or the last one when the policy gives up.
    """
    retries = RetryState(policy, what, rng)
    while True:
        try:
            return await attempt()
        except (*CONNECTION_ERRORS, Transient) as error:
            await retries.backoff(error)
