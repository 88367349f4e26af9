"""A transport that sends the head of an answer together with the first bytes behind it.

uvicorn writes them one after the other: two system calls for the server, and two reads for its client.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

HEAD: Final = b"HTTP/1.1 "
"""Begins a head. Bytes of a body that begin so are sent in their order, too."""
MOST_JOINED: Final = 1 << 16
"""Bytes that are copied behind a head. More are sent on their own."""


class JoinedHead:
    """Holds a head until the next write, the close, or the end of this turn of the event loop."""

    __slots__ = ("_flush", "_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self._flush: asyncio.Handle | None = None

    def __getattr__(self, name: str) -> Any:
        """Return what is not about writing from the transport."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send bytes, or hold them if they begin a head."""
        if self._head:
            head = self._taken()
            if len(data) <= MOST_JOINED:
                self._transport.write(head + data)
            else:
                self._transport.write(head)
                self._transport.write(data)
        elif data.startswith(HEAD):
            self._head = data
            self._flush = self._loop.call_soon(self._send)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection after what was written."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._head:
            self._transport.write(self._taken())

    def _taken(self) -> bytes:
        head, self._head = self._head, b""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        return head
