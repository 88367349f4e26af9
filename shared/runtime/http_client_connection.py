"""One HTTP/1.1 connection of a client: one request at a time, whose answer is read as it arrives.

Laws (tests/shared/runtime/test_http_client_connection.py):
  - bytes that arrive when no request waits for them close the connection, and answer nothing;
  - heads, and other bytes that are no part of a body, are bounded; a body is read as fast as its reader takes it;
  - a connection is used again only after a whole answer to a request that was sent whole.

Limit: bytes that arrive after the next request has been sent cannot be distinguished from its answer. HTTP/1.1 has no
numbers of requests. Only `connection: close`, a connection for each request, excludes that. Over TLS, a body without a
length ends with the connection, also if its server has not announced the end.

llhttp parses (`httptools`): it rejects what two readers could interpret differently, such as two lengths.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable
from typing import Final, cast

import httptools

from shared.runtime.streamed_answer import HOP_BY_HOP, Header, StreamedAnswer

MOST_HEAD: Final = 256 << 10
"""Bytes of an answer that come one after another without any of its body: heads, and what surrounds chunks."""
NO_BODY: Final = frozenset({204, 304})
"""Statuses of answers without a body (RFC 9110, 6.4.1)."""
_ENDED: Final = "the connection has ended"


class ClientConnection(asyncio.Protocol):
    """One connection to one server."""

    def __init__(self, reusable: Callable[[ClientConnection], None], lost: Callable[[ClientConnection], None]) -> None:
        """Args:
        reusable: called when it may be used for another request.
        lost: called when it has ended.
        """
        self._reusable = reusable
        self._lost = lost
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: StreamedAnswer | None = None
        self._sender: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        """Done when further parts of a request may be sent; None: they may."""
        self._keeps = self._is_head = self._is_paused = False
        self._has_head = self._is_whole = self._until_end = self._is_stray = False
        self._headers: list[Header] = []
        self._refusal = ""
        """Reason why the answer's head is rejected."""
        self._spare = 0
        """Bytes since the last ones of a body."""
        self.has_received = False
        """Bytes of an answer to the present request have arrived."""
        self.idle_since = 0.0

    @property
    def is_open(self) -> bool:
        """True if it can send a request."""
        return self._transport is not None and not self._transport.is_closing()

    def request(
        self, head: bytes, body: bytes | AsyncIterable[bytes | memoryview], *, keeps: bool, is_head: bool
    ) -> StreamedAnswer:
        """Send a request on an open connection that has none, and return its answer, of which nothing has arrived.

        Args:
            head: with the empty line at its end.
            body: whole, or in parts as they are sent: chunks have their frames.
            keeps: the connection may be used again.
            is_head: the request's method is HEAD, whose answer has no body.
        """
        if self._transport is None or self._answer is not None:
            raise RuntimeError("the connection is closed, or has a request")
        self._answer = answer = StreamedAnswer(self)
        self._keeps, self._is_head = keeps, is_head
        self._has_head = self._is_whole = self._until_end = self.has_received = False
        self._headers, self._spare, self._refusal = [], 0, ""
        if isinstance(body, bytes):
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._sender = asyncio.create_task(self._send(body), name="request body")
        return answer

    async def _send(self, parts: AsyncIterable[bytes | memoryview]) -> None:
        try:
            async for part in parts:
                if self._writable is not None:
                    await self._writable
                if self._transport is None or self._transport.is_closing():
                    return
                self._transport.write(part)
        except asyncio.CancelledError:
            self._fail("its body was cancelled")  # no effect if the request has ended
            raise
        except Exception as error:  # noqa: BLE001  # of the body's source: its request fails
            self._fail(f"its body could not be sent: {type(error).__name__}")
        else:
            self._sender = None

    def abort(self) -> None:
        """Close the connection. What was not sent is lost, and a body without a length is broken off."""
        self._until_end = False
        if self._transport is not None:
            self._transport.abort()
        if self._sender is not None:
            self._sender.cancel()

    def read_on(self) -> None:
        """Read further, if reading was paused."""
        if self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def _fail(self, reason: str) -> None:
        answer, self._answer = self._answer, None
        self.abort()
        if answer is not None:
            answer.fail(reason)

    # ---- asyncio.Protocol --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not derive from asyncio's

    def pause_writing(self) -> None:
        """Send no further parts for now."""
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """Send further parts."""
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of an answer."""
        answer = self._answer
        if answer is None:
            self.abort()
            return
        self.has_received = True
        self._spare += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("it changes the protocol, which was not requested")
            return
        except httptools.HttpParserError as error:
            if not self._is_whole:
                found = "its body is not of its form" if self._has_head else f"it is no HTTP: {error}"
                self._fail(self._refusal or found)
                return
            self._is_stray = True  # what follows an answer is no part of it, in whatever segments it comes
        if self._is_whole:
            self._complete(answer)
        elif self._spare > MOST_HEAD:
            self._fail(f"{MOST_HEAD} bytes of it are no part of its body")

    def _complete(self, answer: StreamedAnswer) -> None:
        self._answer = None
        if not self._keeps or self._is_stray or not self._is_sent():
            self.abort()
        else:
            self.read_on()
            self._reusable(self)
        answer.end()

    def _is_sent(self) -> bool:
        """Return whether the connection is open, and all of the request was given to the kernel."""
        transport = self._transport
        if self._sender is not None or transport is None or transport.is_closing():
            return False
        return not transport.get_write_buffer_size()

    def eof_received(self) -> None:
        """Handle the end of what the server sends: a body without a length ends with it.

        A transport whose data was not sent yet would wait for that, so another answer is broken off here.
        """
        if self._answer is not None and self._until_end:
            self._keeps = False
            self._complete(self._answer)
        else:
            self._fail(_ENDED)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._transport = None
        if self._answer is not None and self._until_end and exc is None:
            self.eof_received()
        self.resume_writing()
        self._fail(type(exc).__name__ if exc is not None else _ENDED)
        self._lost(self)

    # ---- httptools ---------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin an answer. A second one, after a whole answer, is none."""
        self._is_stray = self._is_stray or self._is_whole

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers are left out."""
        if not self._has_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Take the head. Informational answers (1xx) come before the answer."""
        answer, status = self._answer, self._parser.get_status_code()
        if answer is None or self._is_whole:
            return
        if 100 <= status < 200:
            return
        if not 200 <= status < 600:
            self._refuse(f"its status {status} is none of HTTP")
        answer.status = status
        codings, names, dropped = list[bytes](), set[bytes](), HOP_BY_HOP
        for name, value in self._headers:
            names.add(name)
            if name == b"transfer-encoding":
                codings.append(value.strip().lower())
            elif name == b"connection":
                dropped |= {token.strip().lower() for token in value.split(b",")}
        if codings not in ([], [b"chunked"]):
            self._refuse("it has another transfer-encoding than chunked, which was not requested")
        answer.headers = [header for header in self._headers if header[0] not in dropped]
        self._has_head = True
        if self._is_head:
            self._is_whole, self._keeps = True, False  # llhttp would wait for a body
        elif status not in NO_BODY and not codings:
            self._until_end = b"content-length" not in names

    def _refuse(self, reason: str) -> None:
        """Reject the head. The parser stops."""
        self._refusal = reason
        raise ValueError(reason)

    def on_body(self, body: bytes) -> None:
        """Take bytes of a body."""
        self._spare = 0
        if self._answer is None or self._is_whole:
            return
        if self._answer.feed(body) and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """End an answer."""
        if not self._has_head:  # an informational one
            self._headers = []
            return
        self._keeps = self._keeps and self._parser.should_keep_alive()
        self._is_whole = True
