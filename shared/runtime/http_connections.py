"""Kept connections of HTTP clients: one on which bytes arrive between two requests is closed, not used again.

aiohttp keeps such bytes, and reads them as the answer to the next request on the connection. A server that sends an
answer twice would answer a request with what another one has asked.

Limits: bytes that arrive after the next request has been sent cannot be told from its answer. HTTP/1.1 has no numbers
of requests. Only `connection: close`, a connection for each request, excludes that. A part of a head that comes with
the end of a body is not noticed: if the rest comes after the next request, that request fails.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader


class CheckedConnector(aiohttp.TCPConnector):
    """A pool of connections that are closed if bytes arrive on them after a whole answer, before the next request.

    It replaces private parts of aiohttp. tests/shared/runtime/test_http_connections.py fails if these change.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = partial(_protocol, self._loop)


def _protocol(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return _CheckedProtocol(loop)


class _CheckedProtocol(ResponseHandler):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._is_answered = False
        """The head of the present request's answer has been read."""

    def set_response_params(self, **params: Any) -> None:
        """Begin a request."""
        self._is_answered = False
        super().set_response_params(**params)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Read a head. A second one may follow a body in the same bytes, when the connection is already kept."""
        if self._is_answered:
            self._drop()
            return
        self._is_answered = data[0].code >= 200
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Read bytes; none if paused reading continues."""
        if data and self._is_answered and (self._payload is None or self._payload.is_eof()):
            self._drop()
            return
        super().data_received(data)

    def _drop(self) -> None:
        self.force_close()
        self.close()
