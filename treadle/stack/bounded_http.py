"""uvicorn's HTTP protocol with bounds: heads of bounded size, and a limit for silence in the middle of a request.

It ignores requests to change the protocol (RFC 9110 §7.8). The JDK's client begins with `Upgrade: h2c` and sends its
body as HTTP/1.1; httptools would take the body for the next protocol.

It sends the head of a response with the body's first part: in one packet and one system call, not two. An application
that has a whole response can hand it over in one call (`shared.runtime.whole_response`), and one that gets a request
with its whole body can begin it without a task (`shared.runtime.whole_request`).

With httptools uvicorn has no bounds. It reads a head of a hundred megabytes (which blocks the loop meanwhile), and a
caller that sends half a request keeps its connection for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import Any, Final, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from shared.runtime import whole_request, whole_response
from shared.runtime.whole_request import ANSWERED_LATER
from treadle.stack.head_joining import HeadJoiningTransport

MOST_HEAD_BYTES: Final = 1 << 16
"""Bytes of the request line and headers (and of trailers). A longer incomplete head is rejected at the next read."""
SEPARATORS: Final = 4
"""Bytes of a header line in addition to its name and value."""
SILENCE_LIMIT_S: Final = 60.0
"""Silence allowed in the middle of a request, and before the first one."""


class _RequestParser(httptools.HttpRequestParser):
    """httptools' parser, which hands a request to change the protocol to the connection."""

    def __init__(self, connection: BoundedHttp) -> None:
        super().__init__(connection)
        self._connection = connection
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn sets it

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]  # uvicorn passes bytes
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._connection.ignore_upgrade(memoryview(data)[upgrade.args[0] :])

    def feed(self, data: bytes | memoryview) -> memoryview | None:
        """Parse bytes. Return those behind the head of a request to change the protocol, if there is one."""
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return memoryview(data)[upgrade.args[0] :]
        return None


class WholeResponse:
    """Sends the response of one request at once. See `shared.runtime.whole_response`."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def __call__(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        cycle = self._cycle
        if cycle.response_started or cycle.disconnected or not cycle.keep_alive or cycle.flow.write_paused:
            return False
        lines = b"".join([b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)])
        if len(lines.splitlines()) != len(cycle.default_headers) + len(headers):
            return False  # a value with a line break: uvicorn rejects it
        head = b"%b%bcontent-length: %d\r\n\r\n" % (STATUS_LINE[status], lines, len(body))
        cycle.response_started, cycle.waiting_for_100_continue = True, False
        cycle.transport.write(head + body)
        cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()
        cycle.on_response = _nothing  # it refers to the connection, which refers to this; a task would do the same
        return True


class ArrivedRequest:
    """One request that has arrived with its whole body. See `shared.runtime.whole_request`."""

    __slots__ = ("_connection", "_cycle", "body", "respond", "when_gone")

    def __init__(self, connection: BoundedHttp, cycle: RequestResponseCycle, respond: WholeResponse) -> None:
        self._connection = connection
        self._cycle = cycle
        self.body = bytes(cycle.body)
        self.respond = respond
        self.when_gone: Callable[[], None] | None = None

    def start(self, answer: Coroutine[Any, Any, None]) -> None:
        self._connection.start_task(self._cycle, answer)


class BoundedHttp(HttpToolsProtocol):
    """One connection. Costs a few assignments per request and one timer per connection."""

    _in_head = False
    _in_request = True
    _head_bytes = 0
    """Bytes of the newest head that are parsed; exact once it is complete."""
    _unfinished_bytes = 0
    """Bytes of the reads that contained nothing but this head."""
    _refused = False
    """The connection is being closed. Further input is ignored."""
    _last_read_at = 0.0
    _answered_at = 0.0
    _timer: asyncio.TimerHandle | None = None
    _answering: RequestResponseCycle | None = None
    """The request that is being answered. `cycle` is the newest one, which may wait behind it."""
    _unstarted: tuple[RequestResponseCycle, ASGI3Application] | None = None
    """A request whose head is complete. It starts with the end of its body, or of this read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = _RequestParser(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its parent
        super().connection_made(transport)
        self.transport = cast("asyncio.Transport", HeadJoiningTransport(transport, self.loop))
        self._last_read_at = self.loop.time()
        self._timer = self.loop.call_later(min(SILENCE_LIMIT_S, self.timeout_keep_alive), self._check_silence)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
            extensions: dict[str, Any] = self._answering.scope.pop("extensions", {})
            if (request := extensions.get(whole_request.EXTENSION)) is not None and request.when_gone is not None:
                request.when_gone()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Note a request that may start. uvicorn's task would begin after this read too."""
        self._unstarted = cycle, app

    def _start_noted(self) -> None:
        if self._unstarted is not None:
            (cycle, app), self._unstarted = self._unstarted, None
            self._start(cycle, app)

    def _start(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Let the application begin a request: without a task if it has its body and the application can."""
        self._answering, scope = cycle, cycle.scope
        if scope["method"] != "HEAD":
            respond = WholeResponse(cycle)
            extensions: dict[str, Any] = {whole_response.EXTENSION: respond}
            scope["extensions"] = extensions
            if scope["method"] == "POST" and not (cycle.more_body or cycle.waiting_for_100_continue):
                extensions[whole_request.EXTENSION] = ArrivedRequest(self, cycle, respond)
                answer = _called(app, cycle)
                if answer is not ANSWERED_LATER:
                    self.start_task(cycle, answer)
                return
        super()._start_asgi_task(cycle, app)

    def start_task(self, cycle: RequestResponseCycle, answer: Awaitable[None]) -> None:
        """Start the task of a request whose application was called."""
        super()._start_asgi_task(cycle, lambda *_: answer)

    def on_response_complete(self) -> None:
        """Begin the next request that has arrived. uvicorn would also set a timer for each response."""
        self.server_state.total_requests += 1
        self._answered_at = self.loop.time()
        if self._answering is not None:
            self._answering.scope.pop("extensions", None)  # it refers to the request, which refers to it
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start(*self.pipeline.pop())

    def data_received(self, data: bytes) -> None:
        unfinished = self.headers if self._in_head else None
        self._last_read_at = self.loop.time()
        super().data_received(data)
        if self._in_head and self.headers is unfinished:  # else another head began in this read
            self._unfinished_bytes += len(data)
            if self._unfinished_bytes > MOST_HEAD_BYTES:
                self._too_long()
        self._start_noted()

    def on_message_begin(self) -> None:
        self._in_head, self._in_request, self._head_bytes, self._unfinished_bytes = True, True, 0, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + SEPARATORS
        if self._head_bytes > MOST_HEAD_BYTES:
            self._too_long()
        elif self._in_head:  # uvicorn would add trailers to the headers
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head_bytes > MOST_HEAD_BYTES:
            self._too_long()
        if not self._refused and not (self.parser.should_upgrade() and self._upgrades()):
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_request = False
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle.response_complete:  # answered before the end of its body
            self._answered_at = self.loop.time()
        if not self._refused and not (self.parser.should_upgrade() and self._upgrades()):
            super().on_message_complete()
            self._start_noted()

    def _upgrades(self) -> bool:
        """Return whether the parser has stopped behind this head, because it asks for another protocol."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def ignore_upgrade(self, behind: memoryview | None) -> None:
        """Parse requests to change the protocol again, without their Upgrade headers. `behind`: bytes after the head.

        A loop, because a caller may send thousands of such requests in one packet.
        """
        while behind is not None and self._upgrades() and not self._refused:
            version = self.parser.get_http_version().encode()
            head = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
            head += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
            self.parser = parser = _RequestParser(self)
            parser.feed(b"\r\n".join([*head, b"", b""]))
            behind = parser.feed(behind)

    def _check_silence(self) -> None:
        """Close the connection if the caller is silent in the middle of a request, or after its last answer.

        The time does not count while we have stopped reading (the service has enough input, or an earlier call to
        answer).
        """
        now = self.loop.time()
        cycle: RequestResponseCycle | None = self.cycle
        if self._in_request or cycle is None:
            if self.flow.read_paused:
                self._last_read_at = now
            left_s = self._last_read_at + SILENCE_LIMIT_S - now
        elif cycle.response_complete:
            left_s = self._answered_at + self.timeout_keep_alive - now
        else:
            left_s = SILENCE_LIMIT_S
        if left_s <= 0:
            self.transport.close()
        else:
            self._timer = self.loop.call_later(min(left_s, self.timeout_keep_alive), self._check_silence)

    def _too_long(self) -> None:
        if not self._refused and not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request line and headers are too long")
        self._refused = True

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        body = f'{{"type":"about:blank","title":"{status.phrase}","status":{status.value},"detail":"{why}"}}'.encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        earlier: RequestResponseCycle | None = self.cycle
        if earlier is None or earlier.response_complete:  # else it would be in the middle of an earlier reply
            self.transport.write(head.encode() + body)
        self.transport.close()


def _called(app: ASGI3Application, cycle: RequestResponseCycle) -> Awaitable[None]:
    """Call an application outside a task. uvicorn's task answers 500 if it raises."""
    try:
        return app(cycle.scope, cycle.receive, cycle.send)
    except Exception as error:  # noqa: BLE001
        return _raised(error)


async def _raised(error: Exception) -> None:
    raise error


def _nothing() -> None:
    pass
