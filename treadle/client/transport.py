"""HTTP calls of one proxy: retried while it is away, decoded into a type.

aiohttp, because httpx's pool collapses under concurrency (CONTRIBUTING.md, Dependencies).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from treadle.client.errors import UNREADABLE, BadRequest, InvalidUrl, Unexpected, error_of
from treadle.client.retry import CONNECTION_ERRORS, RetryPolicy, retry

S = TypeVar("S")

JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
CONNECT_S = 5.0
"""Limit of opening a connection."""
MAX_CONNECTIONS = 512
"""Connections at once. Further requests wait for one. Most systems allow a process 1,024 open files."""
MAX_ACQUIRING = 256
"""Connections at once that wait for leases, besides: a holder must be able to release what others wait for."""


class Transport:
    """Calls of one proxy for one tenant. The first call opens the session in its event loop."""

    def __init__(
        self,
        url: str,
        tenant: str | None,
        retry_policy: RetryPolicy,
        read_timeout_s: float,
        rng: random.Random | None = None,
    ) -> None:
        self.url = checked_url(url)
        self.retry_policy = retry_policy
        self.rng = rng or random.Random()
        self.read_timeout_s = read_timeout_s
        self._headers = {"treadle-tenant": tenant} if tenant else None
        self._sessions: dict[int, aiohttp.ClientSession] = {}
        """Most connections -> session."""

    async def close(self) -> None:
        """Close the connections."""
        while self._sessions:
            await self._sessions.popitem()[1].close()

    async def call(
        self,
        answer: type[S],
        method: str,
        path: str,
        body: object = None,
        *,
        query: dict[str, str] | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> S:
        """Make a call and return its answer, decoded.

        Raises:
            BadRequest: `body` cannot be encoded as JSON.
            TreadleError: the mesh answered an error, or did not answer before the retry policy gave up.
            Unexpected: the answer is not an `answer`.
        """
        content = None if body is None else encoded(body, f"the body of {method} {path}")
        reply = await self.send(method, path, content, JSON, query, retry_policy)
        return self.decoded(answer, reply, path)

    def decoded(self, answer: type[S], reply: bytes, path: str) -> S:
        """Return the body of an answer as an `answer`.

        Raises:
            Unexpected: it is none.
        """
        try:
            return msgspec.json.decode(reply, type=answer)
        except UNREADABLE as error:
            what = f"{self.url}{path} answered what is no {answer.__name__}: is it the address of Treadle's proxy?"
            raise Unexpected(f"{what} ({error})") from error

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        query: dict[str, str] | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> bytes:
        """Make a call and return the body of its answer. The call must be idempotent, because it is retried."""

        async def attempt() -> bytes:
            with self.http_errors(path):
                async with self.request(
                    method, path, query, data=body, headers=headers if body is not None else None
                ) as reply:
                    answer = await reply.read()
            if reply.status >= 400:
                raise error_of(reply.status, answer, str(reply.url), reply.headers.get("retry-after"))
            return answer

        return await retry(attempt, retry_policy or self.retry_policy, f"{method} {self.url}{path}", self.rng)

    def request(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        *,
        most: int = MAX_CONNECTIONS,
        **options: Any,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Return the context of one HTTP request. The session is opened if it is not.

        `most`: connections of all requests with the same bound.
        """
        if (session := self._sessions.get(most)) is None:
            session = self._sessions[most] = open_session(self._headers, self.read_timeout_s, most)
        return session.request(method, f"{self.url}{path}", params=query, **options)

    @contextmanager
    def http_errors(self, path: str) -> Iterator[None]:
        """Raise `Unexpected` for a reply that is not HTTP or a redirect without end. A retry would not change it."""
        try:
            yield
        except CONNECTION_ERRORS:
            raise
        except aiohttp.ClientError as error:
            what = f"{self.url}{path} does not answer as an HTTP server does: is it the address of Treadle's proxy?"
            raise Unexpected(f"{what} ({type(error).__name__}: {error})") from error


def quoted(name: str) -> str:
    """Return a name as one segment of a path, so that the mesh receives and checks the whole name.

    Raises:
        BadRequest: it is not text, or no segment: `.` and `..` would be resolved, also if quoted, to another resource.
    """
    if name in ("", ".", ".."):
        raise BadRequest(f"{name!r} is not a name: a path has no such segment")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as error:
        raise BadRequest(f"{name!r} is not a name: {error}") from error


def checked_url(url: str) -> str:
    """Return the address of a proxy without a final slash. It may have a path: the prefix of a reverse proxy.

    Raises:
        InvalidUrl: it is not the address of a server.
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port, or the brackets of an IPv6 address
        valid = False
    if not valid:
        raise InvalidUrl(f"{url!r} is no address: write it as http://127.0.0.1:8700")
    if parts.query or parts.fragment:
        raise InvalidUrl(f"{url!r} has a query or a fragment: write the address alone, as http://127.0.0.1:8700")
    return url.rstrip("/")


def open_session(headers: dict[str, str] | None, read_timeout_s: float, most: int) -> aiohttp.ClientSession:
    """Return a session. Call it in a running event loop, and close the session in the same loop.

    Args:
        headers: sent with every request.
        read_timeout_s: seconds without a byte after which a connection is closed (`TimeoutError`).
        most: connections at once.
    """
    timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=CONNECT_S, sock_read=read_timeout_s)
    connector = aiohttp.TCPConnector(limit=most)
    return aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout)


def encoded(body: object, what: str) -> bytes:
    """Return a body as JSON.

    Args:
        what: for the error's text.
    Raises:
        BadRequest: JSON has no such value.
    """
    try:
        return msgspec.json.encode(body)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadRequest(f"{what} cannot be encoded as JSON: {error}") from error
