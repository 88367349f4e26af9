"""HTTP client of the bench for many small calls: 15 us of CPU a call, where aiohttp takes 90.

On two cores a client competes with the mesh that it measures, so its own cost is part of every latency.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Self, cast
from urllib.parse import urlsplit

import httptools

from treadle.lab.bench.figures import BenchError
from treadle.lab.bench.mesh import CALL_TIMEOUT_S

_HEAD: Final = (
    "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n{more}\r\n"
)


class _Connection(asyncio.Protocol):
    """One connection, with at most one call on it."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no instance of it

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BenchError(f"the connection to the mesh broke: {exc or 'closed'}"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result((self._parser.get_status_code(), self._body))

    def call(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        """Send a request. The future gets status and body."""
        if self._transport.is_closing():
            raise BenchError("the mesh has closed the connection")
        self._body = b""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        self._transport.abort()


class LightHttp:
    """Calls of many callers to one address; as many connections as calls at once."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        self._address = parts.hostname or "127.0.0.1", parts.port or 80
        self._host = parts.netloc
        self._more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._idle: list[_Connection] = []
        self._all: list[_Connection] = []

    @classmethod
    @asynccontextmanager
    async def to(cls, url: str, headers: dict[str, str] | None = None) -> AsyncIterator[Self]:
        """Yield a client. `url`: `http://host:port`."""
        self = cls(url, headers or {})
        try:
            yield self
        finally:
            for connection in self._all:
                connection.close()

    async def post(self, path: str, body: bytes) -> bytes:
        """Return the body of an answer of status 200.

        Raises:
            BenchError: it has another status, or the connection broke.
            TimeoutError: no answer within `CALL_TIMEOUT_S`.
        """
        connection = self._idle.pop() if self._idle else await self._connect()
        head = _HEAD.format(path=path, host=self._host, size=len(body), more=self._more).encode()
        async with asyncio.timeout(CALL_TIMEOUT_S):  # a call that fails loses its connection
            status, answer = await connection.call(head + body)
        self._idle.append(connection)
        if status != 200:
            raise BenchError(f"POST {path} was answered {status}: {answer[:500].decode(errors='replace')}")
        return answer

    async def _connect(self) -> _Connection:
        _, connection = await asyncio.get_running_loop().create_connection(_Connection, *self._address)
        self._all.append(connection)
        return connection
