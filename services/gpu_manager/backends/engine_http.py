"""Control calls to one engine: each is one request, bounded in time and size, and each failure is one of our errors."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from services.gpu_manager.backends.protocol import EngineError, EngineGone, OutOfMemory, means_out_of_memory
from shared.runtime.http import HttpClient, HttpFailure, HttpLimits, HttpReply, HttpRequest, open_http
from shared.runtime.units import Seconds

MOST_BYTES: Final = 4 << 20
"""Most bytes of an answer. vLLM's `/metrics` has about 100 KiB."""
SHOWN_CHARS: Final = 300
"""Characters of an answer in an error message."""
_SPARE_S: Final = 1.0
"""Time by which the HTTP client's own limit is later than ours, so that ours shows a timeout."""


@asynccontextmanager
async def open_engines() -> AsyncIterator[HttpClient]:
    """Open the HTTP client for engines. All addresses are allowed, because the operator has given them."""
    async with open_http(lambda _address: "") as client:
        yield client


class EngineHttp:
    """Calls to the engine at one address."""

    def __init__(self, client: HttpClient, url: str, key: str = "") -> None:
        """`key`: sent as `Authorization: Bearer`; empty: none."""
        self.url = url.rstrip("/")
        self._client = client
        # Each call has its own connection: on a kept one, its closing by the engine would look like the engine's end.
        self._headers = [("connection", "close")]
        if key:
            self._headers.append(("authorization", f"Bearer {key}"))

    async def send(self, method: str, target: str, body: object = None, *, within_s: Seconds) -> HttpReply:
        """Send a request. Return the answer, whatever its status.

        Args:
            target: path, and query where there is one.
            body: sent as JSON; None: no body.

        Raises:
            EngineGone: nothing listens, or the connection broke off before the answer was complete.
            EngineError: no complete answer came within `within_s`, or the request cannot be sent.
        """
        headers, call = list(self._headers), f"{method} {target}"
        if body is not None:
            headers.append(("content-type", "application/json"))
        request = HttpRequest(
            method,
            self.url + target,
            headers,
            None if body is None else _encoded(body, call),
            owner=self.url,
            partition=uuid.uuid4().hex,  # on a connection of its own
        )
        limits = HttpLimits(within_s + _SPARE_S, within_s + _SPARE_S, MOST_BYTES)
        try:
            async with asyncio.timeout(within_s):
                reply = await self._client.exchange(request, limits)
        except TimeoutError:
            raise EngineError(f"{call} had no complete answer within {within_s:g} s") from None
        except ValueError as error:  # of the parser of addresses, or of a name's encoding
            raise EngineError(f"{call} cannot be sent to {self.url}: its address is invalid") from error
        if isinstance(reply, HttpFailure):
            raise EngineGone(f"{call} failed: {reply.reason}")
        return reply

    async def call(self, method: str, target: str, body: object = None, *, within_s: Seconds) -> Any:
        """Send a request that must be answered with 200. Return the answer's JSON; None: it is empty or not JSON.

        Raises:
            OutOfMemory: the answer reports it.
            EngineGone, EngineError: see `send`; also for another status.
        """
        reply = await self.send(method, target, body, within_s=within_s)
        if reply.status != 200:
            raise refused(f"{method} {target}", reply)
        return json_of(reply)


def _encoded(body: object, call: str) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (ValueError, OverflowError, RecursionError) as error:
        raise EngineError(f"{call} cannot be sent: its body cannot be written as JSON") from error


def refused(call: str, reply: HttpReply) -> EngineError:
    """Return the error for an answer whose status is not the expected one."""
    text = reply.body.decode(errors="replace")
    shown = " ".join(text.split())[:SHOWN_CHARS] or "an empty body"
    kind = OutOfMemory if means_out_of_memory(text) else EngineError
    return kind(f"{call} was answered with {reply.status}: {shown}")


def json_of(reply: HttpReply) -> Any:
    """Return an answer's JSON; None: it is empty or not JSON."""
    try:
        return msgspec.json.decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
