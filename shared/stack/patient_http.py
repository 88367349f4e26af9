"""uvicorn's HTTP protocol with an end to its patience: heads of bounded size, and nobody may stop in the middle.

With httptools uvicorn bounds neither: a head of a hundred megabytes is taken in (and stalls the loop meanwhile), and a
caller who sends half a request keeps its connection for ever.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES: Final = 1 << 16
"""Of the request line and headers, beyond the read in which they begin."""
PATIENCE_S: Final = 60.0
"""Silence allowed in the middle of a request, and before the first one."""


class PatientHttp(HttpToolsProtocol):
    """One connection. Costs a few assignments a request and one timer a connection."""

    _in_head = False
    _in_request = True
    _head_bytes = 0
    _heard_at = 0.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its parent
        super().connection_made(transport)
        self._heard_at = self.loop.time()
        self._timer = self.loop.call_later(PATIENCE_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        went_on = self._in_head
        self._heard_at = self.loop.time()
        super().data_received(data)
        if self._in_head and went_on:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request line and headers are too long")

    def on_message_begin(self) -> None:
        self._in_head, self._in_request, self._head_bytes = True, True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_request = False
        super().on_message_complete()

    def _look(self) -> None:
        """Is the caller stuck in the middle of what it says? uvicorn looks after those who have said it all.

        Where we have stopped listening (the service has enough to read, or an earlier call to answer) the silence is
        ours.
        """
        if not self._in_request or self.flow.read_paused:
            self._heard_at = self.loop.time()
        left_s = self._heard_at + PATIENCE_S - self.loop.time()
        if left_s <= 0:
            self.transport.close()
        else:
            self._timer = self.loop.call_later(left_s, self._look)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        body = f'{{"type":"about:blank","title":"{status.phrase}","status":{status.value},"detail":"{why}"}}'.encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
