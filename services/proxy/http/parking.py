"""The routes that park an action in an environment and resume it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from services.proxy.http.asgi import HotRoute
from services.proxy.http.call import Call
from services.proxy.http.hot import named, state_of
from services.proxy.http.replies import Reply
from shared.api.requests import ParkRequest
from shared.bus import parking
from shared.bus.connection import with_retries
from shared.bus.parking import ParkingReceipt
from shared.runtime.errors import Conflict, NotFound
from shared.runtime.validation import decoded

_park = msgspec.json.Decoder(ParkRequest)
_REJECTED: dict[ParkingReceipt, str] = {
    "answered": "it has been answered: read its answer",
    "no-trajectory": "only an action of a trajectory can be parked, because its environment is frozen meanwhile",
}


async def post_park(call: Call) -> Reply:
    """POST /v1/actions/{id}/park: the action waits for something outside and returns its cores."""
    call.query()
    raw = await call.body(call.proxy.settings.max_body_bytes)
    reason = decoded(_park, raw or b"{}").reason
    action = named(call)
    not_yet = "it is not running: park it after it has been granted (state `granted`)"
    return await _asked(call, action, lambda: parking.park(call.proxy.redis, action, reason), not_yet)


async def post_resume(call: Call) -> Reply:
    """POST /v1/actions/{id}/resume: the action continues as soon as its cores are free."""
    call.query()
    action = named(call)
    return await _asked(
        call, action, lambda: parking.resume(call.proxy.redis, action), "it was not parked: park it first"
    )


async def _asked(call: Call, action: str, ask: Callable[[], Awaitable[ParkingReceipt]], not_running: str) -> Reply:
    receipt = await with_retries(ask, what="parking", limit_s=call.proxy.settings.submit_retry_s)
    if receipt == "requested":
        return await state_of(call, action)
    if receipt == "unknown" and await call.proxy.store.action(action) is None:
        raise NotFound(kind="action", name=action, hint="it was never accepted, or its answer has expired")
    raise Conflict(
        what=f"action {action}: {_REJECTED.get(receipt, not_running)}"
        if receipt != "unknown"
        else f"action {action}: {_REJECTED['answered']}"
    )


PARKING_ROUTES = [
    HotRoute("POST", "/v1/actions/{id}/park", post_park),
    HotRoute("POST", "/v1/actions/{id}/resume", post_resume),
]
