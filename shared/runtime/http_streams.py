"""Requests to inference engines: one HTTP request each, whose answer is read in parts as they arrive.

Nothing is retried here, no redirect is followed, and nothing is decompressed. There is no limit on the time of an
answer: only its caller's deadline ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from shared.runtime.http_client_connection import ClientConnection
from shared.runtime.http_client_pool import ConnectionPool
from shared.runtime.http_request_head import InvalidRequest, Origin, request_head, split_address
from shared.runtime.streamed_answer import HOP_BY_HOP, AnswerBroken, Header, StreamedAnswer
from shared.runtime.units import Seconds

OURS: Final = frozenset({b"host", b"content-length", b"expect", b"treadle-tenant"})
"""Headers of a request that are written anew or are not for engines."""
LARGE_BYTES: Final = 1 << 18
"""Bytes of a body that are sent at once. A longer one is sent in parts, so that other requests have their turn."""
_CLOSE: Final = (b"connection", b"close")
_MOST_PARTS: Final = 16
"""Parts of an answer that nobody uses. The connection of a longer one is closed."""


class Unreachable(Exception):
    """No byte of an answer's body came: the engine did not take the call, or has ended."""

    def __init__(self, reason: str, *, kept_ended: bool = False) -> None:
        super().__init__(reason)
        self.kept_ended = kept_ended
        """A connection that was kept from an earlier request has ended before any byte of the answer."""


class StreamClient:
    """Connections to inference engines."""

    def __init__(self, pool: ConnectionPool, key: str = "") -> None:
        """`key`: sent as `Authorization: Bearer` where a request has none; empty: none."""
        self._pool = pool
        self._key = f"Bearer {key}".encode() if key else b""

    async def request(
        self,
        method: str,
        url: str,
        headers: Sequence[Header],
        body: bytes | AsyncIterator[bytes] | None,
        *,
        new_connection: bool = False,
    ) -> StreamedAnswer:
        """Send a request, and return its answer when the first bytes of its body have arrived.

        A body in parts is sent as they arrive. `new_connection`: it gets a connection of its own, not a kept one.

        Raises:
            Unreachable: no byte of a body came.
        """
        whole = b"" if body is None else body
        size = len(whole) if isinstance(whole, bytes) else None
        keeps = not new_connection and _CLOSE not in headers
        try:
            origin, target = split_address(url)
            head = request_head(method, target, origin, headers, size, closes=new_connection, key=self._key)
        except InvalidRequest as error:
            raise Unreachable(str(error)) from error
        connection = None if new_connection else self._pool.take(origin)
        is_reused = connection is not None
        if connection is None:
            connection = await self._connected(origin)
        answer = connection.request(head, _sent(whole), keeps=keeps, is_head=method == "HEAD")
        try:
            answer.first = await answer.next()
        except AnswerBroken as error:
            raise Unreachable(str(error), kept_ended=is_reused and not connection.has_received) from error
        except BaseException:  # cancelled
            answer.close()
            raise
        return answer

    async def _connected(self, origin: Origin) -> ClientConnection:
        try:
            return await self._pool.connect(origin)
        except (OSError, UnicodeError) as error:  # a name that cannot be encoded
            raise Unreachable(type(error).__name__) from error

    async def preconnect(self, url: str) -> None:
        """Make a kept connection to a server by a GET, whatever it answers."""
        with suppress(Unreachable, AnswerBroken):
            answer = await self.request("GET", url, (), None)
            try:
                for _ in range(_MOST_PARTS):
                    if answer.is_whole or not await answer.next():
                        break
            finally:
                answer.close()


def _sent(body: bytes | AsyncIterator[bytes]) -> bytes | AsyncIterator[bytes | memoryview]:
    if not isinstance(body, bytes):
        return _chunks(body)
    return body if len(body) <= LARGE_BYTES else _slices(body)


async def _chunks(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the parts of a body as chunks (RFC 9112, 7.1)."""
    async for part in parts:
        if part:
            yield b"%x\r\n%b\r\n" % (len(part), part)
    yield b"0\r\n\r\n"


async def _slices(body: bytes) -> AsyncIterator[memoryview]:
    """Yield a long body in parts. Other callbacks run between two of them."""
    view = memoryview(body)
    for begin in range(0, len(body), LARGE_BYTES):
        yield view[begin : begin + LARGE_BYTES]
        await asyncio.sleep(0)


def passed_headers(headers: Sequence[Header], drop: frozenset[bytes] = frozenset()) -> list[Header]:
    """Return the headers of a client's request that an engine gets."""
    return [
        (name, value) for name, value in headers if name not in HOP_BY_HOP and name not in OURS and name not in drop
    ]


@asynccontextmanager
async def open_streams(*, connect_s: Seconds, key: str = "") -> AsyncIterator[StreamClient]:
    """Open connections to engines for as long as the context lasts.

    Args:
        connect_s: limit of one connection, with the lookup of its name.
        key: sent as `Authorization: Bearer` where a call has none; empty: none.
    """
    pool = ConnectionPool(connect_s)
    try:
        yield StreamClient(pool, key)
    finally:
        await pool.close()
