"""A request on a hot route, as its handler reads it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope

from services.proxy.state import DEFAULT_TENANT, ProxyState, state_of
from shared.runtime.app import unknown_query
from shared.runtime.errors import BadRequest, TooLarge
from shared.runtime.patterns import NAME, WORDS, is_name


class Call:
    """One request on a hot route."""

    __slots__ = ("_at_end", "_bytes", "_receive", "_scope", "path_args", "proxy")

    def __init__(self, scope: Scope, receive: Receive, path_args: tuple[str, ...]) -> None:
        self._scope = scope
        self._receive = receive
        self.path_args = path_args
        """Values of the path's placeholders."""
        self.proxy: ProxyState = state_of(scope["state"])
        self._bytes = 0
        """Bytes of its body that this replica holds for it."""
        self._at_end: list[Callable[[], object]] = []

    @property
    def http_version(self) -> str:
        """`1.1` or `1.0`."""
        version: str = self._scope["http_version"]
        return version

    async def gone(self) -> None:
        """Return when the caller's connection has ended. Call it after `body`, because it reads on."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def body(self, limit: int) -> bytes:
        """Return the whole body.

        Raises:
            TooLarge: it is longer than `limit` bytes. Reading stops there.
            Overloaded: this replica holds too many bytes of bodies.
            BadRequest: the caller has gone before the body was complete. Nobody reads this reply.
        """
        message = await self._next()
        chunk: bytes = message.get("body", b"")
        self.count(chunk)
        if not message.get("more_body"):
            if len(chunk) > limit:
                raise TooLarge(limit_bytes=limit)
            return chunk
        chunks, size = [chunk], len(chunk)
        while message.get("more_body"):
            if size > limit:
                raise TooLarge(limit_bytes=limit)
            message = await self._next()
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            self.count(chunks[-1])
        if size > limit:
            raise TooLarge(limit_bytes=limit)
        return b"".join(chunks)

    def at_end(self, callback: Callable[[], object]) -> None:
        """Call this when the reply was sent or cannot be sent; the last one first."""
        self._at_end.append(callback)

    def close(self) -> None:
        """End the request. Every callback is called, also if one fails.

        Raises:
            Exception: that of a callback.
        """
        if self._bytes:
            self.proxy.bodies.give_back(self._bytes)
            self._bytes = 0
        if self._at_end:
            callbacks, self._at_end = self._at_end, []
            with ExitStack() as stack:
                for callback in callbacks:
                    stack.callback(callback)

    def count(self, chunk: bytes) -> None:
        """Count bytes of the body until the call is closed.

        Raises:
            Overloaded: this replica holds too many.
        """
        if chunk:
            self.proxy.bodies.take(len(chunk))
            self._bytes += len(chunk)

    async def _next(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise BadRequest(what="the connection ended before the body was complete")
        return message

    def query(self, *names: str) -> dict[str, str]:
        """Return the query's parameters. Of a repeated one the last counts.

        Raises:
            BadRequest: a parameter is not among `names`. Otherwise a misspelt one would be ignored silently.
        """
        raw = self._scope["query_string"]
        query = dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True)) if raw else {}
        for name in query:
            if name not in names:
                raise BadRequest(what=unknown_query(name, names))
        return query

    def wait_s(self, query: dict[str, str]) -> float:
        """Return the seconds to wait for the answer, from `?wait=`; 0 without it.

        Raises:
            BadRequest: not a number of seconds within the limit.
        """
        raw = query.get("wait")
        if raw is None:
            return 0.0
        most = self.proxy.settings.max_wait_s
        try:
            wait = float(raw)
        except ValueError:
            wait = -1.0
        if not 0 <= wait <= most:
            raise BadRequest(what=f"query parameter wait: must be seconds from 0 to {most:g}, not {raw[:64]!r}")
        return wait

    @property
    def method(self) -> str:
        """`GET`, `POST` or another."""
        method: str = self._scope["method"]
        return method

    def asked_wait_s(self) -> float:
        """Return a valid `?wait=`, else 0. The handler rejects an invalid one."""
        try:
            return self.wait_s(dict(parse_qsl(self._scope["query_string"].decode("latin-1"))))
        except BadRequest:
            return 0.0

    def tenant(self) -> str:
        """Return the caller's tenant.

        Raises:
            BadRequest: the header's value is not a valid name.
        """
        tenant = self.header(b"treadle-tenant")
        if tenant is None:
            return DEFAULT_TENANT
        if not is_name(tenant):
            raise BadRequest(what=f"header treadle-tenant: must be {WORDS[NAME]}")
        return tenant

    def header(self, name: bytes) -> str | None:
        """Return the first header of this name (in lower case); None if there is none."""
        for each, value in self._scope["headers"]:
            if each == name:
                text: str = value.decode("latin-1")
                return text
        return None
