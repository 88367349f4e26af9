"""Connections to Valkey: one writer and one reader a process, and patience while it restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,  # noqa: A004  # redis's own
    OutOfMemoryError,
    ReadOnlyError,
    TimeoutError,  # noqa: A004  # redis's own
)

from shared.bus.wire import PipelinedRedis
from shared.runtime import log
from shared.runtime.errors import Overloaded, Unavailable
from shared.runtime.units import Seconds

T = TypeVar("T")

_log = log.get(__name__)

TRANSIENT = (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError, OSError)
"""What a restarting server looks like. What we send is idempotent, so it is sent again."""

MEMORY_FULL = "Valkey's memory bound is reached"


def client(url: str, *, name: str, timeout_s: Seconds | None = 30.0) -> Redis:
    """A client for one connection's worth of traffic; it appears in CLIENT LIST under `name`.

    `timeout_s` bounds each read from the socket; blocking reads need one above their BLOCK.
    """
    redis = PipelinedRedis.from_url(
        url,
        client_name=f"treadle-{name}",
        protocol=2,  # streams come as plain lists, which parse fastest
        socket_timeout=timeout_s,
        socket_connect_timeout=5.0,
        health_check_interval=0,
        retry=None,
        max_connections=64,
    )
    redis.response_callbacks.clear()  # replies stay as Valkey sends them; redis-py's reshaping costs more than parsing
    return redis


@asynccontextmanager
async def connect(url: str, *, name: str) -> AsyncIterator[Redis]:
    """A client that is closed at the end."""
    redis = client(url, name=name)
    try:
        yield redis
    finally:
        await redis.aclose()


async def patiently(
    attempt: Callable[[], Awaitable[T]], *, what: str, patience_s: Seconds | None, pause_s: Seconds = 0.05
) -> T:
    """Repeat an idempotent call while Valkey is away.

    Args:
        attempt: makes the call; must be harmless to repeat.
        what: for the error, e.g. "submitting".
        patience_s: give up after so long; None: never (loops that are stopped by cancellation).
        pause_s: first pause; doubles up to 1 s.
    Raises:
        Unavailable: Valkey did not come back in time.
        Overloaded: its memory bound is reached; waiting here would not free any.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    while True:
        try:
            return await attempt()
        except OutOfMemoryError as error:
            raise Overloaded(what=MEMORY_FULL, retry_after_s=2.0) from error
        except TRANSIENT as error:
            waited = loop.time() - started
            if patience_s is not None and waited + pause_s > patience_s:
                raise Unavailable(what=f"{what}: Valkey has not answered for {waited:.0f} s") from error
            _log.warning("valkey_away", what=what, error=str(error), waited_s=round(waited, 2))
            await asyncio.sleep(pause_s)
            pause_s = min(1.0, pause_s * 2)


async def command(redis: Redis, *args: Any) -> Any:
    """Send one command as it is and hand back the plain reply."""
    return await redis.execute_command(*args)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped


QUESTIONS = 5
"""Of which the quickest answered sets a clock; 0.1 ms each."""


class ValkeyClock:
    """Valkey's clock seen from here: Unix seconds by Valkey, from the local monotonic clock and one measured offset."""

    def __init__(self, offset_s: Seconds) -> None:
        self._offset_s = offset_s

    @classmethod
    async def measure(cls, redis: Redis) -> ValkeyClock:
        """Ask TIME a few times; the quickest answer counts: the error is at most half of its round trip.

        Once is not enough: at start the loop is busy, and a reply that lies unread puts the clock back by half of that.
        """
        return cls(min([await _offset(redis) for _ in range(QUESTIONS)])[1])

    def unix(self) -> Seconds:
        """Now, by Valkey. Not the loop's own time: uvloop's stands still while the loop is busy."""
        return time.monotonic() + self._offset_s

    def monotonic(self, unix: Seconds) -> Seconds:
        """The local monotonic time of a moment on Valkey's clock."""
        return unix - self._offset_s


async def _offset(redis: Redis) -> tuple[Seconds, Seconds]:
    """(round trip, what to add to the local monotonic time to get Valkey's)."""
    before = time.monotonic()
    seconds, micros = await command(redis, "TIME")
    after = time.monotonic()
    return after - before, int(seconds) + int(micros) / 1e6 - (before + after) / 2
