"""One pipelined connection to Valkey: commands leave at once and replies arrive in order, without a connection pool.

redis-py takes 100-150 us of Python per command (pool, retry wrapper, timeouts, reply callbacks); this takes about 15.
`PipelinedRedis` is redis-py's client, whose single commands use this connection. Its other parts (URLs, pipelines,
errors) are unchanged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import hiredis
from redis.asyncio import Redis, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,  # noqa: A004  # redis-py's own
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from shared.runtime.units import Seconds

_ERRORS: dict[str, type[ResponseError | ConnectionError]] = {
    "OOM": OutOfMemoryError,
    "LOADING": BusyLoadingError,
    "READONLY": ReadOnlyError,
}


def _reply_error(text: str) -> Exception:
    return _ERRORS.get(text.partition(" ")[0], ResponseError)(text)


class Wire(asyncio.Protocol):
    """One connection. Replies are matched to calls by order. If it breaks, every call on it fails."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(replyError=_reply_error)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._transport: asyncio.Transport | None = None
        self._heard = 0.0
        self._joined: list[bytes] | None = None
        """Commands that leave together, in a moment."""
        self.replied = 0.0
        """Loop time of the last received bytes; 0: none yet."""
        self.published: Callable[[bytes], None] | None = None
        """Called with each message of a channel, if the connection has subscribed to one."""
        self.lost = asyncio.Event()
        """The connection has ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not derive from asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.lost.set()
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(ConnectionError(f"the connection to Valkey broke: {exc or 'closed'}"))
                future.exception()  # mark it as retrieved, because its caller may have gone

    def data_received(self, data: bytes) -> None:
        self._heard = self.replied = asyncio.get_running_loop().time()
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if self.published is not None and isinstance(reply, list) and reply[0] == b"message":
                self.published(reply[2])
                continue
            future = self._waiting.popleft()
            if future.done():
                continue
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)

    @property
    def open(self) -> bool:
        """True if it can send commands."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        """Send a command. The future gets its reply.

        Raises:
            ConnectionError: the connection is closed; nothing was sent.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the connection to Valkey is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self._waiting:
            self._heard = loop.time()
        self._waiting.append(future)
        if self._joined is None:
            self._transport.write(hiredis.pack_command(args))
        else:
            self._joined.append(hiredis.pack_command(args))
        return future

    def join(self) -> None:
        """Let all commands leave in one write that the callbacks send which are scheduled by now.

        A write leaves at once otherwise. Valkey executes what it reads at once in one turn, with one fsync.
        """
        if self._joined is None and self.open:
            self._joined = []
            asyncio.get_running_loop().call_soon(self._send_joined)

    def _send_joined(self) -> None:
        joined, self._joined = self._joined, None
        if joined and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(joined))

    def silent_s(self, now: Seconds) -> Seconds:
        """Return for how long a pending reply has brought no bytes; 0 if none is pending."""
        return now - self._heard if self._waiting else 0.0

    def close(self) -> None:
        """Close the connection. Calls under way fail."""
        if self._transport is not None:
            self._transport.abort()


class PipelinedRedis(Redis):
    """redis-py's client. Single commands share one pipelined connection instead of borrowing one each.

    The reply of a cancelled call is still read, and dropped, so the order is kept. A server that sends nothing for
    `socket_timeout` while replies are pending is treated as dead.
    """

    _wire: Wire | None = None
    _connecting: asyncio.Task[Wire] | None = None
    _watch: asyncio.TimerHandle | None = None

    async def execute_command(self, *args: Any, **options: Any) -> Any:  # redis-py's name and types
        """Send one command over the wire and return the plain reply."""
        del options
        wire = self._wire
        if wire is None or not wire.open:
            wire = await self._connected()
        return await wire.send(args)

    def post(self, *args: Any) -> None:
        """Send a command and drop its reply. Sends nothing if the connection is closed."""
        if self._wire is not None and self._wire.open:
            self._wire.send(args).add_done_callback(lambda reply: reply.cancelled() or reply.exception())

    async def subscribed(self, channel: str, receive: Callable[[bytes], None]) -> Wire:
        """Subscribe to a channel, and return the connection, which serves nothing else from now on. `receive`: called
        with each message.
        """
        wire = self._wire if self._wire is not None and self._wire.open else await self._connected()
        wire.published = receive
        await wire.send(("SUBSCRIBE", channel))
        return wire

    def join(self) -> None:
        """Let all commands leave in one write that the callbacks send which are scheduled by now."""
        if self._wire is not None:
            self._wire.join()

    async def _connected(self) -> Wire:
        """Connect once for all concurrent callers."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(), name="connect to valkey")
            self._connecting.add_done_callback(lambda _: setattr(self, "_connecting", None))
        connecting, caller = self._connecting, asyncio.current_task()
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled() and not (caller and caller.cancelling()):  # `aclose` cancelled it, not the caller
                raise ConnectionError("the client was closed while it connected") from None
            raise

    async def _connect(self) -> Wire:
        kwargs = self.connection_pool.connection_kwargs
        try:
            async with asyncio.timeout(kwargs.get("socket_connect_timeout") or 5.0):
                wire = await self._dial(kwargs)
                try:
                    await _introduce(wire, kwargs)
                except BaseException:  # rejected, silent or cancelled: no other code has a reference to this wire
                    wire.close()
                    raise
        except OSError as error:  # includes the builtin TimeoutError
            raise ConnectionError(f"Valkey cannot be reached: {str(error) or 'no answer in time'}") from error
        self._wire = wire
        if self._watch is not None:
            self._watch.cancel()
        self._look(kwargs.get("socket_timeout"))
        return wire

    async def _dial(self, kwargs: dict[str, Any]) -> Wire:
        loop, kind = asyncio.get_running_loop(), self.connection_pool.connection_class
        if issubclass(kind, UnixDomainSocketConnection):
            _, wire = await loop.create_unix_connection(Wire, kwargs["path"])
        else:
            tls = True if issubclass(kind, SSLConnection) else None
            host, port = kwargs.get("host", "localhost"), int(kwargs.get("port", 6379))
            _, wire = await loop.create_connection(Wire, host, port, ssl=tls)
        return wire

    def _look(self, timeout_s: Seconds | None) -> None:
        """Check at intervals whether the server has become silent."""
        loop = asyncio.get_running_loop()
        wire = self._wire
        if timeout_s is None or wire is None or not wire.open:
            return
        if wire.silent_s(loop.time()) > timeout_s:
            wire.close()
            return
        self._watch = loop.call_later(timeout_s / 4, self._look, timeout_s)

    @property
    def replied(self) -> Seconds:
        """Loop time of the last reply over the present connection, to any caller; 0: none yet."""
        return self._wire.replied if self._wire is not None else 0.0

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close the wire and redis-py's own connections."""
        if self._watch is not None:
            self._watch.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._wire is not None:
            self._wire.close()
        await super().aclose(close_connection_pool)


async def _introduce(wire: Wire, kwargs: dict[str, Any]) -> None:
    """Authenticate, select the database and name the connection."""
    if password := kwargs.get("password"):
        username = kwargs.get("username")
        await wire.send(("AUTH", username, password) if username else ("AUTH", password))
    if db := kwargs.get("db"):
        await wire.send(("SELECT", db))
    if name := kwargs.get("client_name"):
        await wire.send(("CLIENT", "SETNAME", name))
