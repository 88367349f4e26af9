"""Bare ASGI for the hot routes, at a third of FastAPI's cost per request.

A hot handler gets a `Call` and returns a `Reply`. Errors are sent as problem+json, as everywhere else. A route that has
a `begin` answers without a task where it can (`services.proxy.http.begun`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import msgspec
from fastapi import FastAPI
from redis.exceptions import OutOfMemoryError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.proxy.http.begun import Begin, BegunCall, CallWithoutTask
from services.proxy.http.call import Call
from services.proxy.http.deadline import answer_in_time, read_deadline
from services.proxy.http.replies import Reply, Streamed, not_allowed, problem_reply, send_reply
from services.proxy.state import state_of
from shared.bus.connection import MEMORY_FULL, TRANSIENT
from shared.runtime import log
from shared.runtime.errors import Overloaded, TreadleError, Unavailable
from shared.runtime.whole_request import ANSWERED_LATER, whole_request_of

_log = log.get(__name__)
_encoder = msgspec.json.Encoder()


Handler = Callable[[Call], Awaitable[Reply | Streamed]]


class HotRoute(NamedTuple):
    """A bare route. `path` is a template; a `{}` part matches anything but a slash."""

    method: str
    path: str
    handler: Handler
    begin: Begin | None = None
    """Tried first with a request that has arrived with its body."""


Routes = dict[str, HotRoute]
"""Routes of one path by method."""


class HotPath:
    """ASGI middleware that answers the hot routes itself. The app answers all others."""

    def __init__(self, app: ASGIApp, routes: list[HotRoute]) -> None:
        self._app = app
        self._fixed: dict[str, Routes] = {}
        self._patterns: list[tuple[re.Pattern[str], Routes]] = []
        for path in dict.fromkeys(route.path for route in routes):
            methods = {route.method: route for route in routes if route.path == path}
            if "{" in path:
                self._patterns.append((re.compile(re.sub(r"\{\w+\}", "([^/]+)", path)), methods))
            else:
                self._fixed[path] = methods

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        routes, args = self._match(scope["path"])
        call = Call(scope, receive, args)
        if routes is None:
            return self._answer_other(call, scope, receive, send)
        route = routes.get(scope["method"])
        if route is None:
            return send_reply(not_allowed(routes), scope, send)
        request = None if route.begin is None else whole_request_of(scope)
        if request is not None and route.begin is not None and (begun := _begun(route.begin, call, request.body)):
            CallWithoutTask(call, begun, request, partial(_answer, scope, send))
            return ANSWERED_LATER
        return _answer(scope, send, call, route.handler)

    async def _answer_other(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            refusal, receive = await _bounded(call, scope, receive)
            if refusal is None:
                refusal = await self._pass_on(scope, receive, send)
            if refusal is not None:
                await send_reply(refusal, scope, send)
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

    def _match(self, path: str) -> tuple[Routes | None, tuple[str, ...]]:
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


def _begun(begin: Begin, call: Call, body: bytes) -> BegunCall | None:
    """Begin a call. None: its handler is needed."""
    if len(body) > call.proxy.settings.max_body_bytes:
        return None
    try:
        call.count(body)
        begun = begin(call, body)
    except Exception:  # noqa: BLE001  # nothing has begun: the handler raises it again, for the reply
        begun = None
    if begun is None:
        call.close()  # the handler counts the body again
    return begun


async def _answer(scope: Scope, send: Send, call: Call, handler: Handler) -> None:
    try:
        await send_reply(await _reply_of(handler, call), scope, send)
    finally:
        call.close()


async def _reply_of(handler: Handler, call: Call) -> Reply | Streamed:
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
