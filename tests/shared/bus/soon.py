"""Waits for an effect of another process or task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def soon(condition: Callable[[], Awaitable[bool]], *, within_s: float = 20.0) -> None:
    """Return as soon as the condition holds.

    Raises:
        TimeoutError: it did not come to hold.
    """
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110  # the other side is another process
            await asyncio.sleep(0.005)
