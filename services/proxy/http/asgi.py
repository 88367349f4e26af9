"""Bare ASGI for the hot routes, at a third of FastAPI's cost per request.

A hot handler gets a `Call` and returns a `Reply`. Errors are sent as problem+json, as everywhere else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import NamedTuple
from urllib.parse import parse_qsl

import msgspec
from fastapi import FastAPI
from redis.exceptions import OutOfMemoryError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.proxy.http.deadline import answer_in_time, read_deadline
from services.proxy.http.replies import Reply, Streamed, not_allowed, problem_reply, send_reply
from services.proxy.state import DEFAULT_TENANT, ProxyState, state_of
from shared.bus.connection import MEMORY_FULL, TRANSIENT
from shared.runtime import log
from shared.runtime.app import unknown_query
from shared.runtime.errors import BadRequest, Overloaded, TooLarge, TreadleError, Unavailable
from shared.runtime.patterns import NAME, WORDS, is_name

_log = log.get(__name__)
_encoder = msgspec.json.Encoder()


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
        self._count(chunk)
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
            self._count(chunks[-1])
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

    def _count(self, chunk: bytes) -> None:
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


Handler = Callable[[Call], Awaitable[Reply | Streamed]]


class HotRoute(NamedTuple):
    """A bare route. `path` is a template; a `{}` part matches anything but a slash."""

    method: str
    path: str
    handler: Handler


class HotPath:
    """ASGI middleware that answers the hot routes itself. The app answers all others."""

    def __init__(self, app: ASGIApp, routes: list[HotRoute]) -> None:
        self._app = app
        self._fixed: dict[str, dict[str, Handler]] = {}
        self._patterns: list[tuple[re.Pattern[str], dict[str, Handler]]] = []
        for path in dict.fromkeys(route.path for route in routes):
            methods = {route.method: route.handler for route in routes if route.path == path}
            if "{" in path:
                self._patterns.append((re.compile(re.sub(r"\{\w+\}", "([^/]+)", path)), methods))
            else:
                self._fixed[path] = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        methods, args = self._match(scope["path"])
        call = Call(scope, receive, args)
        try:
            if methods is None:
                refusal, receive = await _bounded(call, scope, receive)
                if refusal is None:
                    refusal = await self._pass_on(scope, receive, send)
                if refusal is not None:
                    await send_reply(refusal, scope, send)
            elif (handler := methods.get(scope["method"])) is None:
                await send_reply(not_allowed(methods), scope, send)
            else:
                await send_reply(await _answer(handler, call), scope, send)
        finally:
            call.close()

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> Reply | None:
        """Let the app answer. Return an error reply if it does not begin to answer in time."""
        if scope["method"] != "GET" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return None
        try:
            await answer_in_time(state_of(scope["state"]), self._app, scope, receive, send)
        except Unavailable as error:
            return problem_reply(error)
        return None

    def _match(self, path: str) -> tuple[dict[str, Handler] | None, tuple[str, ...]]:
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed, ()
        for pattern, methods in self._patterns:
            if (match := pattern.fullmatch(path)) is not None:
                return methods, match.groups()
        return None, ()


def put_in_front(app: FastAPI, routes: list[HotRoute]) -> None:
    """Answer the hot routes before the app's middleware, which they do not need."""
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: HotPath(build(), routes)  # type: ignore[method-assign]  # outside of all others


async def _bounded(call: Call, scope: Scope, receive: Receive) -> tuple[Reply | None, Receive]:
    """Read the body of a request that is not hot, because FastAPI has no bound. Return (error reply, replay).

    Every body is read as JSON, whatever its content type, as on the hot routes. `curl -d` sends a form's content type.
    """
    if scope["method"] not in ("PUT", "POST", "PATCH"):
        return None, receive
    try:
        waiting = [await call.body(call.proxy.settings.max_body_bytes)]
    except TreadleError as error:
        return problem_reply(error), receive

    others = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    scope["headers"] = [*others, (b"content-type", b"application/json")]

    async def replay() -> Message:
        return {"type": "http.request", "body": waiting.pop()} if waiting else await receive()

    return None, replay


async def _answer(handler: Handler, call: Call) -> Reply | Streamed:
    try:
        if call.method != "GET":
            return await handler(call)
        async with read_deadline(call.proxy, wait_s=call.asked_wait_s()):
            return await handler(call)
    except TreadleError as error:
        return problem_reply(error)
    except OutOfMemoryError:
        return problem_reply(Overloaded(what=MEMORY_FULL, retry_after_s=2.0))
    except asyncio.CancelledError:  # the server stops, and its grace period is over; without a reply it would send 500
        return problem_reply(Unavailable(what="this proxy is stopping; a repeat with the same request_id is harmless"))
    except TRANSIENT as error:
        _log.warning("valkey_unavailable", what="serving", error=str(error))
        return problem_reply(Unavailable(what="Valkey does not answer"))
    except Exception as error:  # noqa: BLE001  # the last handler before the server's own
        _log.error("request_crashed", handler=getattr(handler, "__name__", "?"), exc_info=error)
        return problem_reply(TreadleError())
