"""The engine proxy: one call per connection. It parses the call, writes a new one, and forwards the engine's answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import AsyncIterator
from typing import Self

import msgspec

from services.engine_proxy.bodies import EmptyBody, NewContainer, check_owned, decode_body, is_agent_volume
from services.engine_proxy.engine import ProxiedEngine, Stream
from services.engine_proxy.http1 import (
    MOST_HEAD_BYTES,
    PIECE_BYTES,
    Head,
    Rejected,
    error_response,
    read_body,
    read_head,
    request_head,
)
from services.engine_proxy.routes import EngineCall, parse_call
from services.engine_proxy.settings import EngineProxySettings
from shared.runtime import log

_log = log.get(__name__)

MOST_JSON_BYTES = 1 << 20
LINGER_S = 2.0
"""Time for which a rejected caller may still send before its connection is closed, so that it can read the reason."""


class EngineProxy:
    """Connects one manager to one engine: `async with EngineProxy(settings): ...`."""

    def __init__(self, settings: EngineProxySettings) -> None:
        self._settings = settings
        self._engine = ProxiedEngine(settings.engine, settings.node)
        self._calls: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Start listening."""
        settings = self._settings
        self._server = await asyncio.start_unix_server(
            self._accept, sock=_listen_socket(settings), limit=MOST_HEAD_BYTES
        )
        _log.info("engine_proxy_opened", socket=str(settings.listen), engine=str(settings.engine), node=settings.node)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop listening, and end all calls under way."""
        self._server.close()
        while self._calls:
            for call in self._calls:
                call.cancel()
            await asyncio.wait(self._calls)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.create_task(self._serve(reader, writer))
        self._calls.add(call)
        call.add_done_callback(self._ended)

    def _ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if not call.cancelled() and (error := call.exception()) is not None:
            _log.error("engine_call_crashed", exc_info=error)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer((reader, writer))
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            _log.info("engine_call_broken", error=repr(error))  # one side has gone, so there is no one to answer
        finally:
            writer.close()

    async def _answer(self, caller: Stream) -> None:
        head: Head | None = None
        try:
            if len(self._calls) > self._settings.connections:
                raise Rejected(503, f"{self._settings.connections} calls are open at the engine proxy")
            head = await read_head(caller[0])
            if head is not None:
                await self._pass(head, caller)
        except Rejected as rejected:
            if rejected.status != 404:
                called = f"{head.method} {head.target[:200]}" if head else ""
                _log.warning("engine_call_rejected", call=called, status=rejected.status, why=str(rejected)[:400])
            caller[1].write(error_response(rejected))
            await _linger(caller)

    async def _pass(self, head: Head, caller: Stream) -> None:
        """Make the requested call. If this raises `Rejected`, nothing has been answered yet."""
        call = parse_call(head.method, head.target, self._settings.node)
        body = b"" if call.route.body == "archive" else await self._body(call, head, caller[0])
        container = await self._container(call)
        upgrades = head.upgrades and call.route.streams
        engine = await self._engine.connect()
        try:
            if call.route.body == "archive":
                await _put(
                    call.target(container), read_body(caller[0], head.headers, self._settings.archive_bytes), engine
                )
            else:
                headers = {"Content-Length": str(len(body))} | ({"Content-Type": "application/json"} if body else {})
                headers |= {"Upgrade": "tcp"} if upgrades else {}
                engine[1].write(request_head(head.method, call.target(container), headers) + body)
            await _forward_answer(caller, engine, upgrades=upgrades)
        finally:
            engine[1].close()

    async def _body(self, call: EngineCall, head: Head, reader: asyncio.StreamReader) -> bytes:
        """Return the call's JSON body as it is sent to the engine."""
        kind = call.route.body
        assert kind != "archive"
        body = b"".join([piece async for piece in read_body(reader, head.headers, MOST_JSON_BYTES)])
        decoded = decode_body(body, kind)
        if isinstance(decoded, NewContainer):
            check_owned(decoded, self._settings.node)
        return b"" if kind is EmptyBody else msgspec.json.encode(decoded)

    async def _container(self, call: EngineCall) -> str | None:
        """Return the call's container, which must be ours; None if the call has none."""
        if "exec" in call.names:
            return await self._engine.container_of(call.names["exec"])
        if "volume" in call.names and not is_agent_volume(call.names["volume"], self._settings.node):
            raise Rejected(403, f"the volume {call.names['volume']} is not one of node {self._settings.node}'s own")
        return await self._engine.container(call.names["container"]) if "container" in call.names else None


async def _put(target: str, body: AsyncIterator[bytes], engine: Stream) -> None:
    """Send an archive in our own chunks. If the engine stops reading, its answer is ready."""
    headers = {"Content-Type": "application/x-tar", "Transfer-Encoding": "chunked"}
    try:
        engine[1].write(request_head("PUT", target, headers))
        async for piece in body:
            engine[1].write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await engine[1].drain()
        engine[1].write(b"0\r\n\r\n")
    except (BrokenPipeError, ConnectionResetError):
        return


async def _forward_answer(caller: Stream, engine: Stream, *, upgrades: bool) -> None:
    """Forward the engine's answer until its end, or until the caller has gone.

    The caller's further bytes are forwarded only after the engine has answered that the connection is no longer HTTP.
    Before that they would be an unchecked second request.
    """
    if upgrades:
        head = await engine[0].readuntil(b"\r\n\r\n")
        caller[1].write(head)
        upgrades = head.startswith(b"HTTP/1.1 101 ")
    reading = asyncio.create_task(_copy(caller[0], engine[1]) if upgrades else _until_gone(caller[0]))
    answering = asyncio.create_task(_copy(engine[0], caller[1]))
    try:
        await asyncio.wait({answering, reading}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done() and not _hung_up(caller[1]):  # the caller only stopped sending and still reads
            await asyncio.wait({answering})
    finally:
        for task in (reading, answering):
            task.cancel()
        await asyncio.gather(reading, answering, return_exceptions=True)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy until the source ends. Then close the sink for writing; it may still answer."""
    with contextlib.suppress(OSError):
        while piece := await source.read(PIECE_BYTES):
            sink.write(piece)
            await sink.drain()
        sink.write_eof()


async def _until_gone(source: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await source.read(PIECE_BYTES):
            pass


def _hung_up(end: asyncio.StreamWriter) -> bool:
    """Return whether the other end of this Unix socket is closed, and not only its sending direction."""
    poller = select.poll()
    poller.register(end.get_extra_info("socket"), 0)
    return bool(poller.poll(0))


async def _linger(caller: Stream) -> None:
    """Let the caller read its answer before the connection is closed."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(LINGER_S):
            await caller[1].drain()
            caller[1].write_eof()
            await _until_gone(caller[0])


def _listen_socket(settings: EngineProxySettings) -> socket.socket:
    """Create the engine proxy's socket. From the beginning only its owner can open it."""
    settings.listen.parent.mkdir(parents=True, exist_ok=True)
    settings.listen.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(settings.listen))
    finally:
        os.umask(before)
    if os.geteuid() == 0:
        os.chown(settings.listen, settings.owner, -1)
    listener.setblocking(False)
    return listener
