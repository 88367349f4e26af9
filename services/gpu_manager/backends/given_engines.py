"""Stops of engines that were given by their address: they are not ours to stop, so they are put to sleep.

A stop has succeeded if the engine is found asleep, or if nothing listens at its address any more. Otherwise it may hold
all of its memory: the stop has failed, so the machine keeps the memory counted, and tries again with each probe.
(A dead server may leave a process that holds memory. So the device is measured before the next load, where it can be.)
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from services.gpu_manager.backends.protocol import Backend, EngineError, EngineGone, Level
from shared.runtime.units import Seconds

CONNECT_S: Final[Seconds] = 5.0


async def leave_given(backend: Backend) -> Level:
    """Put an engine that was given to sleep, at its deepest level. Return its level; `cold`: it is gone.

    Raises:
        EngineError: neither is confirmed.
    """
    deepest = backend.flags.levels[-1]
    try:
        await backend.evict(deepest)
    except EngineError as error:
        found = await backend.residency()
        if found == "asleep1" or found == "asleep2":
            return found
        if isinstance(error, EngineGone) and not await listens(backend.url):
            return "cold"
        raise
    return deepest


async def listens(url: str) -> bool:
    """Return False if a connection to this address is refused. Any other failure is no proof."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(
                parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
            )
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return True
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
