"""One trajectory in the forwarder: its listener, its connections, and its calls to the trajectory router.

The other end of each connection is hostile. Laws (tests/services/cpu_manager/forwarder):
  - only the model routes of its own trajectory are passed; paths are compared, not interpreted;
  - the key is added here, and headers that would replace it or change the order of calls are dropped;
  - bytes pass in both directions as they arrive; heads, bodies, connections and their rate are bounded;
  - when a connection ends, so does its call to the router, so that the engine aborts.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from aiohttp import web
from multidict import CIMultiDict

from services.cpu_manager.forwarder.control import CallsChanged
from services.cpu_manager.forwarder.pace import Pace
from shared.api.engine_errors import engine_error
from shared.api.model_routes import KEY_HEADERS, MODEL_ROUTES, MODELS, OWN, ErrorStyle
from shared.runtime import log
from shared.runtime.errors import BadGateway, NotFound, TooLarge, TreadleError
from shared.runtime.http_streams import StreamClient, Unreachable, passed_headers
from shared.runtime.streamed_answer import AnswerBroken, Header, StreamedAnswer

_log = log.get(__name__)

MOST_CONNECTIONS: Final = 64
"""Open connections of one trajectory. Further ones wait in the kernel."""
MOST_BODY_BYTES: Final = 64 << 20
"""Largest body of a call; the default of the router."""
MOST_HEAD_BYTES: Final = 16 << 10
"""Longest line of a head."""
MOST_HEADERS: Final = 100
RATE: Final = 100.0
"""Connections and requests of one trajectory a second, so that it cannot occupy the forwarder, which has no cores of
its own."""
BURST: Final = 200
KEEPALIVE_S: Final = 75.0
BLOCKED_S: Final = 0.02
"""Time after which a part of an answer that does not fit into the buffers counts as blocked."""
ACCEPT_AGAIN_S: Final = 0.1
"""Pause after a connection could not be accepted, because this process has no descriptors left."""

DROPPED: Final = KEY_HEADERS | {b"x-trajectory-id", b"x-trajectory-group", b"x-trajectory-priority"}
"""Headers of requests that are not passed: programs in a sandbox choose neither identity nor order."""
KEPT_OUTSIDE: Final = frozenset({b"x-treadle-worker"})
"""Headers of answers that name parts of the mesh."""

Report = Callable[[CallsChanged], None]


class _Call:
    """One call under way."""

    __slots__ = ("too_large", "waiting")

    def __init__(self) -> None:
        self.waiting = False
        self.too_large = False


class _Server(web.Server):
    """Releases the room of a connection at its end."""

    def __init__(self, room: asyncio.Semaphore, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._room = room

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._room.release()


class ServedTrajectory:
    """Accepts and answers connections from one environment, until it is closed."""

    def __init__(
        self,
        trajectory: str,
        key: str,
        listener: socket.socket,
        routers: StreamClient,
        router_url: Callable[[], str],
        report: Report,
    ) -> None:
        """Take ownership of the listener, and begin to accept."""
        listener.setblocking(False)
        self._trajectory = trajectory
        self._key: Header = (b"authorization", f"Bearer {key}".encode())
        self._listener = listener
        self._routers = routers
        self._router_url = router_url
        self._report = report
        self._pace = Pace(RATE, BURST)
        self._room = asyncio.Semaphore(MOST_CONNECTIONS)
        self._calls: set[_Call] = set()
        self._server = _Server(
            self._room,
            self._answer,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=KEEPALIVE_S,
            max_line_size=MOST_HEAD_BYTES,
            max_field_size=MOST_HEAD_BYTES,
            max_headers=MOST_HEADERS,
            lingering_time=0,
        )
        self._accepting = asyncio.create_task(self._accept(), name=f"accept {trajectory}")

    async def close(self) -> None:
        """Close the listener and every connection."""
        self._accepting.cancel()
        await asyncio.wait([self._accepting])
        self._listener.close()
        await self._server.shutdown(0)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            try:
                await self._pace.turn()
                connection, _ = await loop.sock_accept(self._listener)
                await loop.connect_accepted_socket(self._server, connection)
            except OSError:
                self._room.release()
                await asyncio.sleep(ACCEPT_AGAIN_S)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path, _, query = request.message.path.partition("?")
        route = MODEL_ROUTES.get(path)
        style: ErrorStyle = route.error_style if route is not None else "openai"
        try:
            await self._pace.turn()
            if request.method == "HEAD" and path in ("", "/"):  # claude-code asks for its base address
                return web.Response()
            allowed = ("POST",) if route is not None else ("GET", "HEAD") if path == MODELS else ()
            if not allowed:
                raise NotFound(kind="route", name=path, hint=f"there are {', '.join(MODEL_ROUTES)} and {MODELS}")
            if request.method not in allowed:
                return web.Response(status=405, headers={"allow": ", ".join(allowed)})
            target = f"{self._router_url()}{OWN}{self._trajectory}{path}" + (f"?{query}" if query else "")
            return await self._carry(request, target)
        except TreadleError as error:
            status, body, headers = engine_error(error, style)
            return web.Response(status=status, body=body, headers=_fields(headers))
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            _log.error("forwarding_failed", trajectory=self._trajectory, exc_info=error)
            raise

    async def _carry(self, request: web.BaseRequest, target: str) -> web.StreamResponse:
        if (request.content_length or 0) > MOST_BODY_BYTES:
            raise TooLarge(limit_bytes=MOST_BODY_BYTES)
        call = _Call()
        self._calls.add(call)
        try:
            self._changed()
            answer = await self._request(request, target, call)
            try:
                return await self._relay(request, answer, call)
            finally:
                answer.close()
        finally:
            self._calls.discard(call)
            self._changed()

    async def _request(self, request: web.BaseRequest, target: str, call: _Call) -> StreamedAnswer:
        """Send a call to the router, and return its answer when the first bytes have arrived."""
        raw = [(name.lower(), value) for name, value in request.raw_headers]
        headers = [*passed_headers(raw, DROPPED), self._key]
        body = self._body(request, call) if request.body_exists else None
        if body is None:
            self._waits(call)
        try:
            return await self._routers.request(request.method, target, headers, body)
        except Unreachable as error:
            if call.too_large:
                raise TooLarge(limit_bytes=MOST_BODY_BYTES) from error
            raise BadGateway(what=f"the trajectory router does not answer: {error}") from error

    async def _body(self, request: web.BaseRequest, call: _Call) -> AsyncIterator[bytes]:
        """Yield the parts of a body as they arrive."""
        if request.headers.get("expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        size = 0
        async for part in request.content.iter_any():
            size += len(part)
            if size > MOST_BODY_BYTES:
                call.too_large = True
                raise TooLarge(limit_bytes=MOST_BODY_BYTES)
            yield part
        self._waits(call)

    async def _relay(self, request: web.BaseRequest, answer: StreamedAnswer, call: _Call) -> web.StreamResponse:
        """Pass an answer as it arrives. If it breaks off, so does the connection."""
        kept = [(name, value) for name, value in answer.headers if name not in KEPT_OUTSIDE]
        response = web.StreamResponse(status=answer.status, headers=_fields(kept))
        await response.prepare(request)
        try:
            data = answer.first
            while data:
                await self._write(response, data, call)
                data = await answer.next()
            self._blocks(call)  # its end may wait for a reader, too
            await response.write_eof()
        except AnswerBroken:
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _write(self, response: web.StreamResponse, data: bytes, call: _Call) -> None:
        """Write a part of an answer. A call whose reader does not read does not wait: the reader may be frozen."""
        waited = call.waiting
        blocked = asyncio.get_running_loop().call_later(BLOCKED_S, self._blocks, call)
        try:
            await response.write(data)
        finally:
            blocked.cancel()
            if waited and not call.waiting:
                self._waits(call)

    def _waits(self, call: _Call) -> None:
        call.waiting = True
        self._changed()

    def _blocks(self, call: _Call) -> None:
        call.waiting = False
        self._changed()

    def _changed(self) -> None:
        waiting = sum(call.waiting for call in self._calls)
        self._report(CallsChanged(self._trajectory, len(self._calls), waiting))


def _fields(headers: list[Header]) -> CIMultiDict[str]:
    return CIMultiDict((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
