"""Connections of a client that are kept between two requests, by server."""

from __future__ import annotations

import asyncio
import ssl
from functools import cache
from typing import Final

from shared.runtime.http_client_connection import ClientConnection
from shared.runtime.http_request_head import Origin
from shared.runtime.units import Seconds

KEPT_S: Final[Seconds] = 4.0
"""Time after which a connection without a request is not used again. uvicorn closes it after 5 s."""


@cache
def _tls() -> ssl.SSLContext:
    """Return the context of verified connections. It is made once, because it reads a file of some 200 kB."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class ConnectionPool:
    """Open connections. One of them has one request at most; the one that was used last is used first."""

    def __init__(self, connect_s: Seconds) -> None:
        """`connect_s`: limit of a lookup of a name, a connection and its handshake together."""
        self._connect_s = connect_s
        self._open: set[ClientConnection] = set()
        self._idle: dict[Origin, list[ClientConnection]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False

    def take(self, origin: Origin) -> ClientConnection | None:
        """Return a kept connection to a server; None if there is none."""
        idle, oldest = self._idle.get(origin), asyncio.get_running_loop().time() - KEPT_S
        while idle:
            connection = idle.pop()
            if connection.is_open and connection.idle_since >= oldest:
                return connection
            connection.abort()
        return None

    async def connect(self, origin: Origin) -> ClientConnection:
        """Connect to a server.

        Raises:
            OSError: it cannot be reached. TimeoutError is one of them.
            UnicodeError: its name cannot be one.
        """
        async with asyncio.timeout(self._connect_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: ClientConnection(lambda one: self._keep(origin, one), self._open.discard),
                origin.host,
                origin.port,
                ssl=_tls() if origin.is_secure else None,
                ssl_handshake_timeout=self._connect_s if origin.is_secure else None,
            )
        if self._is_closed:
            connection.abort()
            raise ConnectionAbortedError("the client was closed meanwhile")
        self._open.add(connection)
        return connection

    def _keep(self, origin: Origin, connection: ClientConnection) -> None:
        if self._is_closed:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.setdefault(origin, []).append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(KEPT_S, self._swept)

    def _swept(self) -> None:
        """Close connections that were idle for too long."""
        loop = asyncio.get_running_loop()
        oldest, self._sweep = loop.time() - KEPT_S, None
        for origin, idle in list(self._idle.items()):
            fresh = list[ClientConnection]()
            for one in idle:
                if one.is_open and one.idle_since > oldest:
                    fresh.append(one)
                else:
                    one.abort()
            if fresh:
                self._idle[origin] = fresh
            else:
                del self._idle[origin]
        if self._idle:
            self._sweep = loop.call_later(KEPT_S, self._swept)

    async def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        self._idle.clear()
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)  # their transports end
