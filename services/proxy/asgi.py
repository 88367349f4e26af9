"""Bare ASGI for the hot routes: a third of FastAPI's cost per request (design/facts-performance).

A hot handler gets a `Call` and returns a `Reply`; errors leave as problem+json like everywhere else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import parse_qsl

import msgspec
from fastapi import FastAPI
from redis.exceptions import OutOfMemoryError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.proxy.world import DEFAULT_TENANT, World, world_of
from shared import log
from shared.app import PROBLEM_JSON
from shared.bus.connection import MEMORY_FULL, TRANSIENT
from shared.errors import PROBLEM_TYPE, BadRequest, Overloaded, TooLarge, TreadleError, Unavailable

_log = log.get(__name__)
_encoder = msgspec.json.Encoder()

JSON_TYPE = b"application/json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Reply(NamedTuple):
    """What goes back."""

    status: int
    body: bytes
    content_type: bytes = JSON_TYPE
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Call:
    """One request on a hot route."""

    __slots__ = ("_receive", "_scope", "path_args", "world")

    def __init__(self, scope: Scope, receive: Receive, path_args: tuple[str, ...]) -> None:
        self._scope = scope
        self._receive = receive
        self.path_args = path_args
        """What the path's placeholders matched."""
        self.world: World = world_of(scope["state"])

    async def body(self, limit: int) -> bytes:
        """The whole body.

        Raises:
            TooLarge: it is longer than `limit` bytes; reading stops there.
            BadRequest: the caller has gone before it was whole, so nobody reads this; what came means nothing.
        """
        message = await self._next()
        chunk: bytes = message.get("body", b"")
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
        if size > limit:
            raise TooLarge(limit_bytes=limit)
        return b"".join(chunks)

    async def _next(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise BadRequest(what="the connection ended before the body was whole")
        return message

    def query(self, *names: str) -> dict[str, str]:
        """The query's parameters; of repeated ones the last.

        Raises:
            BadRequest: one that is not among `names`: a misspelt one would be a silence.
        """
        raw = self._scope["query_string"]
        query = dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True)) if raw else {}
        for name in query:
            if name not in names:
                raise BadRequest(what=f"unknown query parameter {name[:64]!r}; there is {', '.join(names) or 'none'}")
        return query

    def wait_s(self, query: dict[str, str]) -> float:
        """Seconds to wait for the answer, from `?wait=`; 0 without it.

        Raises:
            BadRequest: not a number of seconds within the limit.
        """
        raw = query.get("wait")
        if raw is None:
            return 0.0
        most = self.world.settings.max_wait_s
        try:
            wait = float(raw)
        except ValueError:
            wait = -1.0
        if not 0 <= wait <= most:
            raise BadRequest(what=f"`wait` is seconds from 0 to {most:g}, not {raw!r}")
        return wait

    def tenant(self) -> str:
        """Who calls.

        Raises:
            BadRequest: the header is no name.
        """
        tenant = self.header(b"treadle-tenant")
        if tenant is None:
            return DEFAULT_TENANT
        if not NAME.fullmatch(tenant):
            raise BadRequest(what="Treadle-Tenant: letters, digits, '.', '_', '-', at most 64")
        return tenant

    def header(self, name: bytes) -> str | None:
        """The first header of this name (in lower case), if there is one."""
        for each, value in self._scope["headers"]:
            if each == name:
                text: str = value.decode("latin-1")
                return text
        return None


Handler = Callable[[Call], Awaitable[Reply]]


class HotRoute(NamedTuple):
    """A bare route. `path` is a template; `{}` parts match anything but a slash."""

    method: str
    path: str
    handler: Handler


class HotPath:
    """ASGI middleware that answers the hot routes itself and passes everything else on."""

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
        if methods is None:
            refusal, receive = await _bounded(scope, receive)
            if refusal is None:
                await self._app(scope, receive, send)
                return
            reply = refusal
        elif (handler := methods.get(scope["method"])) is None:
            reply = _not_allowed(methods)
        else:
            reply = await _answer(handler, Call(scope, receive, args))
        headers = [
            (b"content-type", reply.content_type),
            (b"content-length", str(len(reply.body)).encode()),
            *reply.headers,
        ]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})

    def _match(self, path: str) -> tuple[dict[str, Handler] | None, tuple[str, ...]]:
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed, ()
        for pattern, methods in self._patterns:
            if (match := pattern.fullmatch(path)) is not None:
                return methods, match.groups()
        return None, ()


def put_in_front(app: FastAPI, routes: list[HotRoute]) -> None:
    """Answer the hot routes before any middleware of the app: they need none of it."""
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: HotPath(build(), routes)  # type: ignore[method-assign]  # outside of all others


async def _bounded(scope: Scope, receive: Receive) -> tuple[Reply | None, Receive]:
    """Read the body of a request that is not hot: FastAPI would without any bound. Returns (refusal, replay)."""
    if scope["method"] not in ("PUT", "POST", "PATCH"):
        return None, receive
    call = Call(scope, receive, ())
    try:
        waiting = [await call.body(call.world.settings.max_body_bytes)]
    except TreadleError as error:
        return problem_reply(error), receive

    async def replay() -> Message:
        return {"type": "http.request", "body": waiting.pop()} if waiting else await receive()

    return None, replay


async def _answer(handler: Handler, call: Call) -> Reply:
    try:
        return await handler(call)
    except TreadleError as error:
        return problem_reply(error)
    except OutOfMemoryError:
        return problem_reply(Overloaded(what=MEMORY_FULL, retry_after_s=2.0))
    except asyncio.CancelledError:  # the server stops, and has waited long enough: say so, or it would say 500
        return problem_reply(Unavailable(what="this proxy is stopping; a repeat with the same request_id is harmless"))
    except TRANSIENT as error:
        _log.warning("valkey_away", what="serving", error=str(error))
        return problem_reply(Unavailable(what="Valkey does not answer"))
    except Exception as error:  # noqa: BLE001  # the last door before the server's own
        _log.error("request_crashed", handler=getattr(handler, "__name__", "?"), exc_info=error)
        return problem_reply(TreadleError())


def problem_reply(error: TreadleError) -> Reply:
    """An error as problem+json."""
    headers = tuple((name.encode(), value.encode()) for name, value in error.headers().items())
    return Reply(error.status, _encoder.encode(error.problem()), PROBLEM_JSON.encode(), headers)


def _not_allowed(methods: dict[str, Handler]) -> Reply:
    allowed = ", ".join(sorted(methods))
    document = {
        "type": f"{PROBLEM_TYPE}http-405",
        "title": "Method Not Allowed",
        "status": 405,
        "detail": f"use {allowed}",
    }
    return Reply(405, _encoder.encode(document), PROBLEM_JSON.encode(), ((b"allow", allowed.encode()),))
