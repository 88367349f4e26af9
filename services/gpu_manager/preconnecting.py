"""Connections to engines before their first call."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from shared.runtime.http_streams import StreamClient
from shared.runtime.units import Seconds

CONNECTED_WITHIN_S: Final[Seconds] = 0.5


async def preconnect(http: StreamClient, url: str) -> None:
    """Make a kept connection to an engine, so that its first call needs none. Ends after `CONNECTED_WITHIN_S`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CONNECTED_WITHIN_S):
            await http.preconnect(url)
