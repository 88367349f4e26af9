"""Connections to Valkey, one writer and one reader per process, and retries while it restarts."""

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
"""Errors of a restarting server. All our commands are idempotent, so they are sent again."""

MEMORY_FULL = "Valkey's memory bound is reached"


def client(url: str, *, name: str, timeout_s: Seconds | None = 30.0) -> Redis:
    """Return a client for one connection's traffic. CLIENT LIST shows it under `name`.

    `timeout_s` bounds each read from the socket. Blocking reads need a value above their BLOCK.
    """
    redis = PipelinedRedis.from_url(
        url,
        client_name=f"treadle-{name}",
        protocol=2,  # streams arrive as plain lists, which parse fastest
        socket_timeout=timeout_s,
        socket_connect_timeout=5.0,
        health_check_interval=0,
        retry=None,
        max_connections=64,
    )
    redis.response_callbacks.clear()  # keep plain replies: redis-py's conversion costs more than parsing
    return redis


@asynccontextmanager
async def connect(url: str, *, name: str) -> AsyncIterator[Redis]:
    """Yield a client, and close it at the end."""
    redis = client(url, name=name)
    try:
        yield redis
    finally:
        await redis.aclose()


async def with_retries(
    attempt: Callable[[], Awaitable[T]], *, what: str, limit_s: Seconds | None, pause_s: Seconds = 0.05
) -> T:
    """Repeat an idempotent call while Valkey is away.

    Args:
        attempt: makes the call; must be safe to repeat.
        what: for the error, e.g. "submitting".
        limit_s: time limit of the retries; None: no limit (loops that are stopped by cancellation).
        pause_s: first pause; doubles up to 1 s.
    Raises:
        Unavailable: Valkey did not answer in time.
        Overloaded: its memory bound is reached. Waiting here would not free memory.
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
            if limit_s is not None and waited + pause_s > limit_s:
                raise Unavailable(what=f"{what}: Valkey has not answered for {waited:.0f} s") from error
            _log.warning("valkey_unavailable", what=what, error=str(error), waited_s=round(waited, 2))
            await asyncio.sleep(pause_s)
            pause_s = min(1.0, pause_s * 2)


async def command(redis: Redis, *args: Any) -> Any:
    """Send one command as it is and return the plain reply."""
    return await redis.execute_command(*args)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped


async def together(redis: Redis, *commands: Awaitable[Any]) -> list[Any]:
    """Gather coroutines that send commands. Those that they send first leave in one write, so Valkey executes them in
    one turn, with one fsync, as far as they fit into its read buffer (16 KiB). Raises the first of their errors.
    """
    replies = asyncio.gather(*commands)
    if commands and isinstance(redis, PipelinedRedis):
        redis.join()
    return await replies


QUESTIONS = 5
"""TIME commands per clock measurement, 0.1 ms each. The one with the shortest round trip counts."""


class ValkeyClock:
    """Valkey's clock in Unix seconds, computed from the local monotonic clock and one measured offset."""

    def __init__(self, offset_s: Seconds) -> None:
        self._offset_s = offset_s

    @classmethod
    async def measure(cls, redis: Redis) -> ValkeyClock:
        """Send TIME several times. The fastest reply counts; the error is at most half of its round trip.

        Once is not enough. At start the event loop is busy, and an unread reply shifts the clock by half of the delay.
        """
        return cls(min([await _offset(redis) for _ in range(QUESTIONS)])[1])

    def unix(self) -> Seconds:
        """Return the time now, by Valkey. The loop's time is not used: uvloop's stops while the loop is busy."""
        return time.monotonic() + self._offset_s

    def monotonic(self, unix: Seconds) -> Seconds:
        """Return the local monotonic time of a time on Valkey's clock."""
        return unix - self._offset_s


async def _offset(redis: Redis) -> tuple[Seconds, Seconds]:
    """Return (round trip, offset from the local monotonic time to Valkey's time)."""
    before = time.monotonic()
    seconds, micros = await command(redis, "TIME")
    after = time.monotonic()
    return after - before, int(seconds) + int(micros) / 1e6 - (before + after) / 2
