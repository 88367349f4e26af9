"""HTTP calls to servers outside of the mesh: each is one request, bounded in time and size, to a judged address.

Laws:
  - an exchange sends at most one request: nothing is repeated and no redirect is followed here;
  - nothing lasts from one exchange to the next but open connections: no cookies, no credentials;
  - the environment has no influence: proxies and netrc are not read;
  - a failure is a value whose text is ours. Errors of the library can contain headers, and headers can contain secrets.

aiohttp, because httpx's pool collapses under concurrency (CONTRIBUTING.md, Dependencies). Services import it only here.
"""

from __future__ import annotations

import asyncio
import io
import os
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, Literal

import aiohttp
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from shared.runtime import http_addresses
from shared.runtime.byte_budget import ByteShare
from shared.runtime.http_addresses import AddressRefused, Judge, JudgedResolver, Resolve, SystemResolver, judged_socket
from shared.runtime.http_bodies import ACCEPTED, UnreadableBody, read_body
from shared.runtime.http_connections import CheckedConnector

CONNECT_S: Final = 10.0
"""Limit of a connection: its turn, DNS, TCP and TLS."""
KEEP_S: Final = 4.0
"""Time that an unused connection is kept. Less than the 5 s after which common servers close theirs: a request on a
connection that is being closed gets no answer, and is not repeated here."""
DNS_KEEP_S: Final = 10
"""Time that the addresses of a name are kept."""
SWITCHING_PROTOCOLS: Final = 101

MOST_INFORMATIONAL: Final = 32
"""Informational answers (1xx) before the answer. A server that sends them without end would keep a core busy."""

Stage = Literal["address", "connect", "first-byte", "answer", "memory"]
"""Stage in which an exchange failed. `address`: the address is refused. `connect`: nothing was sent. `first-byte`:
something was sent, and no head of an answer has come. `answer`: the answer is cut, invalid or too large. `memory`: a
large answer has begun, and there was no memory for it: no fault of the server."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request, sent as it is."""

    method: str
    url: str = field(repr=False)
    """Absolute, percent-encoded, without userinfo and fragment."""
    headers: Sequence[tuple[str, str]] = field(default=(), repr=False)
    body: bytes | None = field(default=None, repr=False)
    owner: str = ""
    """Whose call it is. Slow names of one owner do not delay the calls of others."""
    partition: str = ""
    """Owner of the connection. Connections are not shared between partitions: a server that misreads where a request
    ends would take the rest of it for the next request, and answer one owner with what another has asked."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of one exchange."""

    total_s: float
    """Seconds from the beginning to the last byte."""
    first_byte_s: float
    """Seconds from the beginning to the head of the answer."""
    most_bytes: int
    """Most bytes of the body, decompressed."""
    unread: frozenset[int] = frozenset()
    """Statuses whose body is not read."""
    memory: ByteShare | None = None
    """Memory of the body: a share without bytes. It keeps what the body needs. None: memory is not bounded."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer."""

    status: int
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    """Valid text; bytes that are no UTF-8 are replaced."""
    body: bytes = field(repr=False)
    head_at_s: float
    """Time of its head, on the event loop's clock."""


@dataclass(frozen=True, slots=True)
class HttpFailure:
    """No answer."""

    stage: Stage
    reason: str
    """For people: without anything that was sent or received."""


class HttpClient:
    """A pool of connections to judged addresses."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def exchange(self, request: HttpRequest, limits: HttpLimits) -> HttpReply | HttpFailure:
        """Send one request and return its answer or failure within `limits.total_s` seconds."""
        progress = _Progress()
        _partition.set(request.partition)
        http_addresses.owner.set(request.owner)
        try:
            async with asyncio.timeout(limits.total_s):
                return await self._exchange(request, limits, progress)
        except TimeoutError:
            return HttpFailure(progress.stage, progress.out_of_time(limits))
        except UnreadableBody as error:
            return HttpFailure("answer", str(error))
        except aiohttp.ClientConnectorError as error:
            return _not_connected(error)
        except (aiohttp.ClientResponseError, HttpProcessingError):
            return HttpFailure("answer", "the answer is not valid HTTP, or its head is too large")
        except aiohttp.ClientPayloadError:
            return HttpFailure("answer", "the answer is cut off or not valid HTTP")
        except (aiohttp.ClientError, OSError) as error:
            if progress.stage == "connect":
                return HttpFailure("connect", f"it cannot be reached ({type(error).__name__})")
            return HttpFailure(progress.stage, "the connection was closed before the answer was complete")

    async def _exchange(self, request: HttpRequest, limits: HttpLimits, progress: _Progress) -> HttpReply:
        async with asyncio.timeout(limits.first_byte_s):
            response = await self._session.request(
                request.method,
                URL(request.url, encoded=True),
                headers=[*request.headers, ("accept-encoding", ACCEPTED)],
                data=None if request.body is None else io.BytesIO(request.body),
                skip_auto_headers=("content-type",),
                allow_redirects=False,
                trace_request_ctx=progress,
            )
        try:
            progress.stage = "answer"
            head_at_s = asyncio.get_running_loop().time()
            if response.status == SWITCHING_PROTOCOLS:
                raise UnreadableBody("the server switches to another protocol")
            body = b""
            if response.status not in limits.unread:
                encoding = ",".join(response.headers.getall("content-encoding", []))
                room = None if limits.memory is None else partial(_room, limits, response, progress)
                body = await read_body(response.content.iter_any(), encoding, limits.most_bytes, room)
                if limits.memory is not None:
                    limits.memory.keep(len(body))
            headers = tuple((_valid(name), _valid(value)) for name, value in response.headers.items())
            return HttpReply(response.status, headers, body, head_at_s)
        finally:
            response.close()  # a connection whose answer was read to its end is back in the pool already


class _Progress:
    """Stage that one exchange has reached."""

    def __init__(self) -> None:
        self.stage: Stage = "connect"

    def out_of_time(self, limits: HttpLimits) -> str:
        if self.stage == "connect":
            return "no connection was made in time"
        if self.stage == "first-byte":
            return f"no answer began within {round(min(limits.first_byte_s, limits.total_s), 2):g} s"
        if self.stage == "memory":
            return f"the answer is large, and the memory for answers was in use for {round(limits.total_s, 2):g} s"
        return f"the answer did not end within {round(limits.total_s, 2):g} s"


async def _room(limits: HttpLimits, response: aiohttp.ClientResponse, progress: _Progress) -> None:
    """Wait for the memory of a body. Meanwhile nothing of it is read, so that its server waits too."""
    assert limits.memory is not None
    amount = limits.most_bytes
    if response.content_length is not None and "content-encoding" not in response.headers:
        amount = min(amount, response.content_length)
    progress.stage = "memory"
    await limits.memory.take(amount)
    progress.stage = "answer"


@asynccontextmanager
async def open_http(
    judge: Judge, *, resolve: Resolve | None = None, tls: ssl.SSLContext | None = None, connections: int = 1024
) -> AsyncIterator[HttpClient]:
    """Open a client for as long as the context lasts.

    Args:
        judge: of every address that is connected to.
        resolve: from a name to its addresses; None: the operating system's resolver.
        tls: certificates to trust; None: those of the operating system (`SSL_CERT_FILE`).
        connections: most at once. Further exchanges wait for one.
    """
    system = SystemResolver()
    connector = CheckedConnector(
        resolver=JudgedResolver(resolve or system, judge),
        socket_factory=partial(judged_socket, judge),
        ttl_dns_cache=DNS_KEEP_S,
        limit=connections,
        keepalive_timeout=KEEP_S,
        ssl=tls or True,
    )
    tracing = aiohttp.TraceConfig()
    tracing.on_connection_create_end.append(_connected)
    tracing.on_connection_reuseconn.append(_connected)
    try:
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_connect=CONNECT_S),
            auto_decompress=False,
            trust_env=False,
            request_class=_PartitionedRequest,
            response_class=_BoundedResponse,
            trace_configs=[tracing],
            middlewares=(_send_once,),
        ) as session:
            yield HttpClient(session)
    finally:
        system.close()


_partition: ContextVar[str] = ContextVar("partition", default="")
"""Partition of the request that the current task makes."""


class _PartitionedRequest(aiohttp.ClientRequest):
    """A request whose connection is shared with requests of the same partition only."""

    @property
    def connection_key(self) -> ConnectionKey:
        # The field is None without a proxy, and there is none.
        return super().connection_key._replace(proxy_headers_hash=hash(_partition.get()))


class _BoundedResponse(aiohttp.ClientResponse):
    """An answer after at most `MOST_INFORMATIONAL` informational ones."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Read the head.

        Raises:
            aiohttp.ClientResponseError: it is invalid, or too many informational ones come before it.
        """
        protocol = connection.protocol
        assert protocol is not None
        read, heads = protocol.read, 0

        async def counted() -> Any:
            nonlocal heads
            heads += 1
            if heads > MOST_INFORMATIONAL + 1:
                raise HttpProcessingError(message="too many informational answers")
            return await read()

        protocol.__dict__["read"] = counted
        try:
            return await super().start(connection)
        finally:
            del protocol.__dict__["read"]


class _Unanswered(aiohttp.ClientError):
    """The server has closed the connection instead of answering."""


async def _send_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request once. aiohttp would repeat it on a new connection if the server has closed a reused one."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
        raise _Unanswered from None


async def _connected(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: Any) -> None:
    """Note that from here on something may have been sent."""
    context.trace_request_ctx.stage = "first-byte"


def _not_connected(error: aiohttp.ClientConnectorError) -> HttpFailure:
    cause = error.os_error
    if isinstance(cause, AddressRefused):
        return HttpFailure("address", cause.reason)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return HttpFailure("connect", "its name has no address now")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return HttpFailure("connect", "its certificate is not valid for its name, or no authority of ours signed it")
    if isinstance(error, aiohttp.ClientSSLError):
        return HttpFailure("connect", "TLS failed")
    what = os.strerror(cause.errno) if cause.errno else type(cause).__name__  # its own text shows the address
    return HttpFailure("connect", f"no connection was made ({what})")


def _valid(text: str) -> str:
    """Return a received text as one that can be encoded: the parser keeps unknown bytes as surrogates."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
