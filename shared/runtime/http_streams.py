"""Requests to inference engines: one HTTP request each, whose answer is read in parts as they arrive.

Nothing is retried here, no redirect is followed, and nothing is decompressed. There is no limit on the time of an
answer: only its caller's deadline ends it.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from shared.runtime.http_connections import CheckedConnector

Header = tuple[bytes, bytes]
"""Name in lower case, and value."""
HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers of one connection (RFC 9110, 7.6.1), which are not passed on."""
OURS: Final = frozenset({b"host", b"content-length", b"expect", b"treadle-tenant"})
"""Headers of a request that are written anew or are not for engines."""
LARGE_BYTES: Final = 1 << 18
MOST_LINE: Final = 64 << 10
"""Bytes of one header of an answer."""
KEPT_S: Final = 4.0
"""Time after which a connection without a call is not used again. uvicorn closes it after 5 s."""
_MOST_PARTS: Final = 16
"""Parts of an answer that nobody uses. The connection of a longer one is closed."""
_ENDED: Final = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


class Unreachable(Exception):
    """No byte of an answer's body came: the engine did not take the call, or has ended."""

    def __init__(self, reason: str, *, kept_ended: bool = False) -> None:
        super().__init__(reason)
        self.kept_ended = kept_ended
        """A connection that was kept from an earlier request has ended before any byte of the answer. Only a client of
        `open_streams(notes_reuse=True)` knows this.
        """


class AnswerBroken(Exception):
    """The engine broke its answer off after it had begun."""


class StreamedAnswer:
    """An answer whose first bytes have arrived, or which has none."""

    __slots__ = ("_content", "_response", "first", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse, first: bytes) -> None:
        self._response = response
        self._content = response.content
        self.status = response.status
        self.headers: list[Header] = [
            (name.lower(), value) for name, value in response.raw_headers if name.lower() not in HOP_BY_HOP
        ]
        self.first = first
        """First bytes of the body; empty: it has none."""

    @property
    def is_whole(self) -> bool:
        """Whether the first bytes are all of the body."""
        return self._content.at_eof()

    async def next(self) -> bytes:
        """Return further bytes of the body as they arrive; empty at its end.

        Raises:
            AnswerBroken: the engine has broken off.
        """
        try:
            return await self._content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise AnswerBroken(type(error).__name__) from error

    def close(self) -> None:
        """End the request. If its answer is not complete, the connection is closed, so that the engine aborts it."""
        self._response.close()


class _Connection:
    """What is known of one request's connection."""

    __slots__ = ("is_reused",)

    def __init__(self) -> None:
        self.is_reused = False


async def _reused(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: Any) -> None:
    context.trace_request_ctx.is_reused = True


class StreamClient:
    """Connections to inference engines."""

    def __init__(self, session: aiohttp.ClientSession, unkept: aiohttp.ClientSession) -> None:
        """`unkept`: has a connection for each request."""
        self._session = session
        self._unkept = unkept

    async def request(
        self,
        method: str,
        url: str,
        headers: Sequence[Header],
        body: bytes | AsyncIterator[bytes] | None,
        *,
        new_connection: bool = False,
    ) -> StreamedAnswer:
        """Send a request, and return its answer when the first bytes of its body have arrived.

        A body in parts is sent as they arrive. `new_connection`: it gets a connection of its own, not a kept one.

        Raises:
            Unreachable: no byte of a body came.
        """
        fields = CIMultiDict((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
        session, connection = self._unkept if new_connection else self._session, _Connection()
        try:
            address = URL(url, encoded=True)
            _ = address.host, address.port  # parsed only now
        except ValueError as error:
            raise Unreachable("its address is invalid") from error
        try:
            response = await session.request(
                method,
                address,
                headers=fields,
                data=_sent(body),
                allow_redirects=False,
                trace_request_ctx=connection,
            )
        except (aiohttp.ClientError, OSError, TimeoutError, UnicodeError) as error:  # a name that cannot be encoded
            ended = isinstance(error, _ENDED) and not isinstance(error, aiohttp.ClientConnectorError)
            raise Unreachable(type(error).__name__, kept_ended=ended and connection.is_reused) from error
        try:
            first = await response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            response.close()
            raise Unreachable(type(error).__name__) from error
        except asyncio.CancelledError:
            response.close()
            raise
        return StreamedAnswer(response, first)

    async def preconnect(self, url: str) -> None:
        """Make a kept connection to a server by a GET, whatever it answers."""
        with suppress(Unreachable, AnswerBroken):
            answer = await self.request("GET", url, (), None)
            try:
                for _ in range(_MOST_PARTS):
                    if answer.is_whole or not await answer.next():
                        break
            finally:
                answer.close()


def _sent(body: bytes | AsyncIterator[bytes] | None) -> bytes | AsyncIterator[bytes] | io.BytesIO | None:
    """Return a body as aiohttp takes it: a large one in parts, so that it does not block the event loop."""
    return io.BytesIO(body) if isinstance(body, bytes) and len(body) > LARGE_BYTES else body


def passed_headers(headers: Sequence[Header], drop: frozenset[bytes] = frozenset()) -> list[Header]:
    """Return the headers of a client's request that an engine gets."""
    return [
        (name, value) for name, value in headers if name not in HOP_BY_HOP and name not in OURS and name not in drop
    ]


@asynccontextmanager
async def open_streams(*, connect_s: float, key: str = "", notes_reuse: bool = False) -> AsyncIterator[StreamClient]:
    """Open connections to engines for as long as the context lasts.

    Args:
        connect_s: limit of one connection.
        key: sent as `Authorization: Bearer` where a call has none; empty: none.
        notes_reuse: `Unreachable.kept_ended` is known. Costs some microseconds for each request.
    """
    kept = CheckedConnector(limit=0, keepalive_timeout=KEPT_S, use_dns_cache=True, ttl_dns_cache=10)
    unkept = aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=True, ttl_dns_cache=10)
    tracing = aiohttp.TraceConfig()
    tracing.on_connection_reuseconn.append(_reused)
    traces = [tracing] if notes_reuse else []
    async with _session(kept, connect_s, key, traces) as session, _session(unkept, connect_s, key, []) as others:
        yield StreamClient(session, others)


def _session(
    connector: aiohttp.TCPConnector, connect_s: float, key: str, traces: list[aiohttp.TraceConfig]
) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=connect_s),
        auto_decompress=False,
        trust_env=False,
        raise_for_status=False,
        max_line_size=MOST_LINE,
        max_field_size=MOST_LINE,
        skip_auto_headers=("user-agent", "accept", "accept-encoding", "content-type"),
        headers={"authorization": f"Bearer {key}"} if key else None,
        trace_configs=traces,
    )
