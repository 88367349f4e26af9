"""Expiry of token records. Every replica does it, because two of them skip each other's rows."""

from __future__ import annotations

import asyncio
from typing import Final

from shared.runtime.units import Seconds
from shared.store.database import Sessions, persistently, transaction
from shared.store.token_calls import TokenCalls

PAUSE_S: Final = 60.0
MOST: Final = 16
"""Records of one transaction. One may have thousands of calls."""


async def expire_records(sessions: Sessions, pause_s: Seconds = PAUSE_S) -> None:
    """Delete expired records until cancelled, first after a pause."""

    async def some() -> int:
        async with transaction(sessions) as session:
            return await TokenCalls(session).expire(MOST)

    while True:
        await asyncio.sleep(pause_s)
        while await persistently(some, what="deleting expired token records") == MOST:
            pass
