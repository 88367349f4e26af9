"""Calls over HTTP: aiohttp, because httpx's pool collapses under concurrency (CONTRIBUTING.md, Dependencies)."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import aiohttp

PASSING = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)
"""Errors of a server that restarts: refused, reset, cut off, silent. A harmless call is made again."""

CONNECT_S = 5.0
"""For opening a connection, with the wait for a free place in the pool."""


def checked_url(url: str) -> str:
    """Return the address of a server without a final slash.

    Raises:
        ValueError: it is not the address of a server.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no address: write it as http://127.0.0.1:8700")
    return url.rstrip("/")


def open_session(
    url: str, *, connections: int = 64, headers: Mapping[str, str] | None = None, silence_s: float = 30.0
) -> aiohttp.ClientSession:
    """Return a session for one server. Call it in a running event loop, and close the session in the same loop.

    Args:
        url: scheme, host and port; paths of requests start with a slash.
        connections: held at once at most; further requests wait for one.
        headers: sent with every request.
        silence_s: a connection without a byte for so long is given up (`TimeoutError`).
    """
    timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=CONNECT_S, sock_read=silence_s)
    connector = aiohttp.TCPConnector(limit=connections)
    return aiohttp.ClientSession(url, connector=connector, headers=headers, timeout=timeout)
