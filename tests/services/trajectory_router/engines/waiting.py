"""Waiting in tests of engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LIMIT_S = 60.0


async def until(holds: Callable[[], object], *, pause_s: float = 0.02) -> None:
    """Return when `holds()` is true. It may block briefly. `pause_s`: between two questions.

    Raises:
        TimeoutError: it is not true after a minute.
    """
    async with asyncio.timeout(LIMIT_S):
        while not holds():  # noqa: ASYNC110  # a process or a log
            await asyncio.sleep(pause_s)


async def until_idle(busy: Callable[[], int]) -> None:
    """Return when no slot of a worker computes. It asks rarely: each question delays the end of an aborted call."""
    await until(lambda: not busy(), pause_s=1.0)
