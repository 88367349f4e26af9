"""The one door for calls over HTTP: aiohttp, because httpx's pool collapses under concurrency (facts-performance)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp

from shared.runtime.units import Seconds

PASSING = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)
"""What a restarting server looks like from here: refused, reset, cut off, silent. A harmless call is made again."""

CONNECT_S: Seconds = 5.0
"""For a connection to stand, the wait for a free place in the pool included."""


@asynccontextmanager
async def http_session(
    base_url: str, *, connections: int = 64, headers: Mapping[str, str] | None = None, silence_s: Seconds = 30.0
) -> AsyncIterator[aiohttp.ClientSession]:
    """A session for one server, closed at the end.

    Args:
        base_url: scheme, host and port; paths of requests start with a slash.
        connections: held at once at most; further requests wait for one.
        headers: sent with every request.
        silence_s: a connection that says nothing for so long is given up (`TimeoutError`), whatever it was doing.
    Raises:
        ValueError: `base_url` is not the address of a server.
    """
    timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=CONNECT_S, sock_read=silence_s)
    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(base_url, connector=connector, headers=headers, timeout=timeout) as session:
        yield session
