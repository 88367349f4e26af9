"""The front: routes of models, and of each trajectory's own address (`/r/{trajectory}/...`). Bare ASGI.

All other paths are the app's (`/workers`, `/metrics`, `/healthz`).
"""

from __future__ import annotations

from itertools import count
from typing import Final

import msgspec
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from services.trajectory_router.assembly import ASSEMBLED
from services.trajectory_router.exchange import BodyMemory, ClientGone, Exchange
from services.trajectory_router.identity import CallIdentity, ModelBody, identify, read_model_body
from services.trajectory_router.own_trajectories import NO_HEADERS, ModelCaller, OwnTrajectories, split_own
from services.trajectory_router.recording.recorder import TokenRecorder
from services.trajectory_router.relay import EngineRequest, Relay
from services.trajectory_router.workers import Workers
from shared.api.engine_errors import engine_error
from shared.api.model_routes import KEY_HEADERS, MODEL_ROUTES, MODELS, OWN, ErrorStyle
from shared.bus.connection import ValkeyClock
from shared.messages.routing import routed_name
from shared.policy.routing.model import ModelCall
from shared.runtime import log
from shared.runtime.coarse_timers import CoarseTimers
from shared.runtime.errors import BadRequest, NotFound, TreadleError
from shared.runtime.http_streams import passed_headers
from shared.runtime.patterns import is_name
from shared.runtime.units import Seconds

_log = log.get(__name__)
_json = msgspec.json.Encoder().encode

BYTES_A_TOKEN: Final = 4
"""Estimate for the length of a prompt that is not known in tokens."""
ENGINES: Final = "/v1/"
"""Begins the paths of engines."""
DEADLINE_HEADER: Final = b"x-request-deadline-s"
"""Seconds for which the caller waits; without it, for `wait_s` until a worker is free, and then without limit."""
PRIORITY_HEADERS: Final = (b"x-trajectory-priority",)
JSON: Final = (b"content-type", b"application/json")


class Front:
    """ASGI middleware that answers model routes."""

    def __init__(
        self,
        replica: str,
        relay: Relay,
        workers: Workers,
        clock: ValkeyClock,
        trajectories: OwnTrajectories,
        recorder: TokenRecorder,
        *,
        max_body_bytes: int,
        max_bodies_bytes: int,
        wait_s: Seconds,
    ) -> None:
        self._replica = replica
        self._relay = relay
        self._workers = workers
        self._clock = clock
        self._trajectories = trajectories
        self._recorder = recorder
        self._max_body_bytes = max_body_bytes
        self._wait_s = wait_s
        self._memory = BodyMemory(max_bodies_bytes)
        self._timers = CoarseTimers()
        self._serials = count()

    def serves(self, path: str) -> bool:
        """Return whether a path is a route of models, or would be one of an engine."""
        return path in MODEL_ROUTES or path.startswith((ENGINES, OWN))

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of a route of models."""
        exchange = Exchange(scope, receive, send, self._memory, self._timers)
        own, path = split_own(exchange.path)
        route = MODEL_ROUTES.get(path)
        style: ErrorStyle = route.error_style if route is not None else "openai"
        try:
            opened = await self._trajectories.admitted(own, exchange) if own else None
            await self._answer(exchange, path, ModelCaller(own, opened))
        except TreadleError as error:
            if not exchange.started:
                await exchange.reply(*engine_error(error, style))
        except ClientGone:
            pass
        except Exception as error:  # noqa: BLE001  # the last handler before the server's own
            _log.error("request_crashed", path=exchange.path, exc_info=error)
            if not exchange.started:
                await exchange.reply(*engine_error(TreadleError(), style))
        finally:
            exchange.close()

    async def _answer(self, exchange: Exchange, path: str, caller: ModelCaller) -> None:
        route = MODEL_ROUTES.get(path)
        if path == MODELS:
            await self._models(exchange)
            return
        if route is None:
            if exchange.method == "HEAD" and caller.own:  # claude-code asks for its base address
                await exchange.reply(200, b"")
                return
            raise NotFound(kind="route", name=path, hint=f"there are {', '.join(MODEL_ROUTES)} and {MODELS}")
        if exchange.method != "POST":
            await exchange.reply(405, b"", [(b"allow", b"POST")])
            return
        raw = await exchange.body(self._max_body_bytes)
        try:
            body = read_model_body(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(what=f"the body is not a JSON object: {error}") from None
        identity, tenant = identify(exchange.headers, body, caller.own), _tenant(exchange)
        if not caller.own and identity.trajectory:
            caller = ModelCaller(opened=await self._trajectories.named(identity.trajectory, tenant))
        call = self._call(exchange, body, len(raw), caller, identity, tenant)
        recording = None
        if caller.opened is not None and caller.opened.records_tokens and route.recorded:
            recording = await self._recorder.begin(identity.trajectory, call.tenant, call.id, path)
        assembled = route.path if route.path in ASSEMBLED and body.stream is not True else ""
        target = path + exchange.query if caller.own else exchange.target
        headers = passed_headers(exchange.headers, KEY_HEADERS if caller.own else NO_HEADERS)
        request = EngineRequest("POST", target, headers, caller.with_sampling(raw), assembled)
        await self._relay.carry(exchange, call, request, recording)

    def _call(
        self, exchange: Exchange, body: ModelBody, size: int, caller: ModelCaller, identity: CallIdentity, tenant: str
    ) -> ModelCall:
        if caller.opened is not None:
            tenant, identity = caller.opened.tenant, identity._replace(group=caller.opened.group or identity.group)
        most_new = body.max_completion_tokens if isinstance(body.max_completion_tokens, int) else body.max_tokens
        context = size // BYTES_A_TOKEN
        return ModelCall(
            id=f"{self._replica}-{next(self._serials)}",
            replica=self._replica,
            trajectory=routed_name(tenant, identity.trajectory) if identity.trajectory else "",
            tenant=tenant,
            group=identity.group,
            model=body.model if isinstance(body.model, str) else "",
            priority=_number(exchange.header(PRIORITY_HEADERS[0]), 0.0),
            context_tokens=context,
            most_tokens=context + most_new if isinstance(most_new, int) and most_new > 0 else None,
            deadline_s=self._clock.unix() + _number(exchange.header(DEADLINE_HEADER), self._wait_s),
        )

    async def _models(self, exchange: Exchange) -> None:
        """GET /v1/models: the models of all workers."""
        if exchange.method not in ("GET", "HEAD"):
            await exchange.reply(405, b"", [(b"allow", b"GET, HEAD")])
            return
        names = sorted({name for worker in self._workers.by_id.values() for name in worker.models})
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "treadle"} for name in names]
        await exchange.reply(200, _json({"object": "list", "data": data}), [JSON])


def _tenant(exchange: Exchange) -> str:
    """Return the tenant of a call.

    Raises:
        BadRequest: its header is no name.
    """
    tenant = exchange.header(b"treadle-tenant") or "default"
    if not is_name(tenant):
        raise BadRequest(what="header treadle-tenant: must be a name")
    return tenant


def _number(text: str, default: float) -> float:
    """Return a number of a header.

    Raises:
        BadRequest: it is none.
    """
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not -1e9 <= value <= 1e9:
        raise BadRequest(what=f"a header should be a number, not {text[:64]!r}")
    return value


def put_in_front(app: FastAPI, front: str) -> None:
    """Answer the routes of models before the app's middleware. `front`: name of the `Front` in the app's state."""
    build = app.build_middleware_stack

    def built() -> ASGIApp:
        inner = build()

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            served: Front | None = getattr(app.state, front, None)
            if scope["type"] == "http" and served is not None and served.serves(scope["path"]):
                await served.answer(scope, receive, send)
            else:
                await inner(scope, receive, send)

        return answer

    app.build_middleware_stack = built  # type: ignore[method-assign]  # outside of all others
