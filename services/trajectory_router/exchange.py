"""One HTTP exchange with a client, in bare ASGI: its request, its answer in parts, and the end of its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec
from starlette.types import Message, Receive, Scope, Send

from shared.runtime.app import PROBLEM_JSON
from shared.runtime.coarse_timers import CoarseTimers
from shared.runtime.connection_watch import ConnectionWatch
from shared.runtime.errors import Overloaded, TooLarge, TreadleError
from shared.runtime.streamed_answer import Header

T = TypeVar("T")
_json = msgspec.json.Encoder().encode
CLIENT_CLOSED: Final = 499
"""Status of an exchange whose client has gone, for logs: it is not sent."""


class ClientGone(Exception):
    """The client's connection has ended. Nobody reads an answer."""


class BodyMemory:
    """Bytes of request bodies that this replica holds, until the end of their calls."""

    __slots__ = ("_most", "held")

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    def take(self, count: int) -> None:
        """Count bytes that were read.

        Raises:
            Overloaded: the bound would be exceeded. These bytes are not counted.
        """
        if self.held + count > self._most:
            raise Overloaded(what=f"this router holds {self.held} bytes of request bodies, of {self._most} at most")
        self.held += count

    def give_back(self, count: int) -> None:
        """Release the bytes of a call that has ended."""
        self.held -= count


class Exchange:
    """One request and its answer. `close` it at the end."""

    __slots__ = ("_memory", "_receive", "_scope", "_send", "_taken", "_timers", "started")

    def __init__(self, scope: Scope, receive: Receive, send: Send, memory: BodyMemory, timers: CoarseTimers) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._memory = memory
        self._timers = timers
        self._taken = 0
        self.started = False
        """The head of the answer was sent."""

    @property
    def method(self) -> str:
        """`GET`, `POST` or another."""
        method: str = self._scope["method"]
        return method

    @property
    def path(self) -> str:
        """Decoded path."""
        path: str = self._scope["path"]
        return path

    @property
    def target(self) -> str:
        """Path and query as received."""
        raw: bytes = self._scope.get("raw_path") or self._scope["path"].encode()
        query: bytes = self._scope["query_string"]
        return (raw + b"?" + query if query else raw).decode("latin-1")

    @property
    def query(self) -> str:
        """Query as received, with its question mark; empty: there is none."""
        query: bytes = self._scope["query_string"]
        return "?" + query.decode("latin-1") if query else ""

    @property
    def headers(self) -> Sequence[Header]:
        """Headers of the request, names in lower case."""
        headers: Sequence[Header] = self._scope["headers"]
        return headers

    def header(self, name: bytes) -> str:
        """Return the first header of this name (in lower case); empty if there is none."""
        for each, value in self.headers:
            if each == name:
                return value.decode("latin-1")
        return ""

    @property
    def peer(self) -> str:
        """Address of the client; empty if it is not known."""
        client = self._scope.get("client")
        return str(client[0]) if client else ""

    async def body(self, limit: int) -> bytes:
        """Return the whole body.

        Raises:
            TooLarge: it is longer than `limit` bytes. Reading stops there.
            Overloaded: this replica holds too many bytes of bodies.
            ClientGone: the connection ended before the body was complete.
        """
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            message: Message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk: bytes = message.get("body", b"")
            if chunk:
                self._memory.take(len(chunk))
                self._taken += len(chunk)
                chunks.append(chunk)
                size += len(chunk)
                if size > limit:
                    raise TooLarge(limit_bytes=limit)
            more = message.get("more_body", False)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def while_connected(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of some work. It is cancelled when the client's connection ends. The body was read before.

        Raises:
            ClientGone: the connection has ended, and the work with it.
        """
        working = asyncio.current_task()
        assert working is not None
        with ConnectionWatch(self._disconnected, working.cancel, self._timers) as watch:
            try:
                return await work()
            except asyncio.CancelledError:
                if watch.gone and not working.uncancel():
                    raise ClientGone from None
                raise

    async def _disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """Send the head of the answer."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def part(self, data: bytes, *, last: bool = False) -> None:
        """Send bytes of the answer."""
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def reply(self, status: int, body: bytes, headers: Sequence[Header] = ()) -> None:
        """Send a whole answer."""
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.part(body, last=True)

    async def problem(self, error: TreadleError) -> None:
        """Send an error as problem+json."""
        headers = [(name.encode(), value.encode()) for name, value in error.headers().items()]
        await self.reply(error.status, _json(error.problem()), [(b"content-type", PROBLEM_JSON.encode()), *headers])

    def close(self) -> None:
        """Release the memory of its body."""
        self._memory.give_back(self._taken)
        self._taken = 0
