"""How long a call is repeated while the proxy is away, and how often."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from treadle.client.errors import Transient, TreadleError, Unavailable
from treadle.client.http import PASSING

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """Bounds of a call's repetitions."""

    total_s: float = 60.0
    """Without a success for so long, the call is given up; a supervised service is back within that."""
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0

    def pause_s(self, failures: int, rng: random.Random) -> float:
        """Before the try that follows so many failures: doubling, with full jitter over its upper half."""
        ceiling = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 32))
        return ceiling * rng.uniform(0.5, 1.0)


class Tries:
    """The tries of one call, or of one stream that is taken up again."""

    def __init__(self, patience: Patience, what: str, rng: random.Random) -> None:
        self._patience = patience
        self._what = what
        self._rng = rng
        self._failures = 0
        self._good_at = asyncio.get_running_loop().time()

    def succeeded(self) -> None:
        """The proxy answered: patience starts anew."""
        self._failures = 0
        self._good_at = asyncio.get_running_loop().time()

    async def failed(self, error: BaseException) -> None:
        """Pause before the next try.

        Raises:
            TreadleError: no time is left: the server's own error, or `Unavailable` where there was no answer.
        """
        self._failures += 1
        pause_s = self._patience.pause_s(self._failures, self._rng)
        if isinstance(error, Transient):
            pause_s = max(pause_s, min(error.retry_after_s, self._patience.longest_pause_s))
        waited_s = asyncio.get_running_loop().time() - self._good_at
        if waited_s + pause_s > self._patience.total_s:
            if isinstance(error, TreadleError):
                raise error
            reason = str(error) or type(error).__name__
            raise Unavailable(f"{self._what}: no answer for {waited_s:.1f} s ({reason})") from error
        await asyncio.sleep(pause_s)


async def repeating(attempt: Callable[[], Awaitable[T]], patience: Patience, what: str, rng: random.Random) -> T:
    """The result of a harmless call, made again while the proxy is away or full.

    Raises:
        TreadleError: any answer that repeating does not change, or the last one when patience ends.
    """
    tries = Tries(patience, what, rng)
    while True:
        try:
            return await attempt()
        except (*PASSING, Transient) as error:
            await tries.failed(error)
