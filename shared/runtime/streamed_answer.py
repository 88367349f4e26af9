"""An answer to an HTTP request, whose body is read as it arrives."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

Header = tuple[bytes, bytes]
"""Name in lower case, and value."""
HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers of one connection (RFC 9110, 7.6.1), which are not passed on."""
MOST_UNREAD: Final = 128 << 10
"""Bytes of a body that wait for their reader before the connection is read no further."""


class AnsweringConnection(Protocol):
    """Connection of an answer that is not complete."""

    def read_on(self) -> None:
        """Read further, if reading was paused."""

    def abort(self) -> None:
        """Close the connection."""


class AnswerBroken(Exception):
    """The server broke its answer off after it had begun."""


class StreamedAnswer:
    """An answer whose first bytes have arrived, or which has none."""

    __slots__ = ("_connection", "_ended", "_error", "_parts", "_unread", "_waiter", "first", "headers", "status")

    def __init__(self, connection: AnsweringConnection) -> None:
        self._connection = connection
        self._parts: list[bytes] = []
        self._unread = 0
        self._ended = False
        self._error: str | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.status = 0
        self.headers: list[Header] = []
        """Without those of the connection."""
        self.first = b""
        """First bytes of the body; empty: it has none."""

    @property
    def is_whole(self) -> bool:
        """Whether all of the body has been read."""
        return self._ended and not self._parts

    async def next(self) -> bytes:
        """Return further bytes of the body as they arrive; empty at its end.

        Raises:
            AnswerBroken: the server has broken off.
        """
        while not self._parts:
            if self._ended:
                return b""
            if self._error is not None:
                raise AnswerBroken(self._error)
            if self._waiter is not None:
                raise RuntimeError("an answer has one reader")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._unread = 0
        if not self._ended:
            self._connection.read_on()
        return data

    def close(self) -> None:
        """End the request. If its answer is not complete, the connection is closed, so that the server aborts it."""
        if not self._ended:
            self._connection.abort()

    def feed(self, data: bytes) -> bool:
        """Take bytes of the body. Return whether the connection shall be read no further until they are read."""
        self._parts.append(data)
        self._unread += len(data)
        self.wake()
        return self._unread > MOST_UNREAD

    def end(self) -> None:
        """Note that the body is complete."""
        self._ended = True
        self.wake()

    def fail(self, reason: str) -> None:
        """Note that the answer is broken off. What has arrived can be read before."""
        if not self._ended and self._error is None:
            self._error = reason
            self.wake()

    def wake(self) -> None:
        """Let the reader go on."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
