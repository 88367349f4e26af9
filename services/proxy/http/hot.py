"""The hot routes: submit an action or rewards, read or cancel an action."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Literal

import msgspec

from services.proxy.http.asgi import HotRoute
from services.proxy.http.bulk import post_bulk
from services.proxy.http.call import Call
from services.proxy.http.deadline import read_deadline
from services.proxy.http.replies import Reply
from services.proxy.http.restores import reply_of
from services.proxy.records.batch_service import decode_reward
from services.proxy.records.intake import Accepted, of_action
from services.proxy.records.store import Stored
from services.proxy.records.waiting import reason_of
from shared.api.requests import ActionRequest, Answer
from shared.bus import functions
from shared.bus.connection import with_retries
from shared.messages.actions import ActionSubmitted
from shared.runtime import log
from shared.runtime.errors import NotFound, Overloaded
from shared.runtime.validation import decoded

_log = log.get(__name__)
_encoder = msgspec.json.Encoder()
_action = msgspec.json.Decoder(ActionRequest)
ACTION_NAME = re.compile(r"[a-z0-9]{8,32}")


async def post_action(call: Call) -> Reply:
    """POST /v1/actions: one action outside any batch."""
    wait_s = call.wait_s(call.query("wait"))
    request = decoded(_action, await call.body(call.proxy.settings.max_body_bytes))
    tenant = call.tenant()
    action = await call.proxy.ids.of(tenant, "", "", request.request_id)
    return await submit_and_wait(call, of_action(action, tenant, request), wait_s)


async def post_reward(call: Call) -> Reply:
    """POST /v1/rewards: one reward request."""
    query = call.query("wait", "batch")
    wait_s = call.wait_s(query)
    request = decode_reward(await call.body(call.proxy.settings.max_body_bytes))
    submitted = await call.proxy.batches.reward(call.tenant(), request, query.get("batch"))
    return await submit_and_wait(call, submitted, wait_s)


async def submit_and_wait(call: Call, submitted: ActionSubmitted, wait_s: float) -> Reply:
    """Journal an action. Return 200 with its answer if that comes within `wait_s`, else 202 with its state.

    Raises:
        NotResident: its deadline came while its model service was restored.
    """
    proxy = call.proxy
    if not wait_s:
        accepted = await proxy.intake.submit(submitted)
        return await _accepted(call, accepted, submitted.trajectory or submitted.for_trajectory)
    future = _expect(call, submitted.action, "submit without `wait` and read the action later")
    try:
        accepted = await proxy.intake.submit(submitted)
        if accepted.repeated:
            stored = await proxy.store.action(submitted.action)
            if stored is not None and stored.answer is not None:
                return reply_of(stored.answer)
        reply = await _wait(call, accepted.action, future, wait_s)
        return reply_of(reply.body) if reply.status == 200 else reply
    finally:
        proxy.waiters.discard(submitted.action, future)


def _expect(call: Call, action: str, otherwise: str) -> asyncio.Future[bytes]:
    """Return a future of the action's answer, within the bound of this replica's long polls."""
    proxy = call.proxy
    if len(proxy.waiters) >= proxy.settings.max_waiting:
        raise Overloaded(what=f"this replica has too many long polls; {otherwise}")
    return proxy.waiters.expect(action)


async def _wait(call: Call, action: str, future: asyncio.Future[bytes], wait_s: float) -> Reply:
    expiry = call.proxy.timers.after(wait_s, partial(_expire, future))
    try:
        answer = await future
    finally:
        expiry.cancel()
    if answer:
        return Reply(200, answer)
    async with read_deadline(call.proxy):
        return await state_of(call, action)


def _expire(future: asyncio.Future[bytes]) -> None:
    """End the wait of one caller without an answer."""
    if not future.done():
        future.set_result(b"")


async def _accepted(call: Call, accepted: Accepted, trajectory: str) -> Reply:
    if accepted.repeated:
        return await state_of(call, accepted.action)
    return Reply(202, _encoder.encode(Answer(id=accepted.action, state="queued", trajectory=trajectory or None)))


async def state_of(call: Call, action: str) -> Reply:
    """Return 200 with the answer of an action, else 202 with its state."""
    stored = await _stored(call, action)
    if stored.answer is not None:
        return Reply(200, stored.answer)
    batch, trajectory = stored.batch or None, stored.trajectory or None
    if stored.state == "parked":
        parked = Answer(
            id=action, state="parked", trajectory=trajectory, reason=stored.parked_because, parked_at=stored.parked_s
        )
        return Reply(202, _encoder.encode(parked))
    wait, reason = await reason_of(call.proxy.store, action, stored)
    granted = stored.state == "granted" and wait in ("", "parked", "resuming")
    state: Literal["queued", "granted"] = "granted" if granted else "queued"
    answer = Answer(id=action, state=state, batch=batch, trajectory=trajectory, reason=reason)
    return Reply(202, _encoder.encode(answer))


async def _stored(call: Call, action: str) -> Stored:
    stored = await call.proxy.store.action(action)
    if stored is None:
        raise NotFound(kind="action", name=action, hint="it was never accepted, or its answer has expired")
    return stored


async def get_action(call: Call) -> Reply:
    """GET /v1/actions/{id}: its state, or its answer once it is finished."""
    action = named(call)
    wait_s = call.wait_s(call.query("wait"))
    if not wait_s:
        return await state_of(call, action)
    future = _expect(call, action, "read the action without `wait`")
    try:
        stored = await _stored(call, action)
        return Reply(200, stored.answer) if stored.answer is not None else await _wait(call, action, future, wait_s)
    finally:
        call.proxy.waiters.discard(action, future)


async def delete_action(call: Call) -> Reply:
    """DELETE /v1/actions/{id}: cancel it. A finished action does not change."""
    call.query()
    action = named(call)

    async def attempt() -> str:
        return await functions.cancel(call.proxy.redis, action, "requested by a caller")

    asked = await with_retries(attempt, what="cancelling", limit_s=call.proxy.settings.submit_retry_s)
    if asked == "unknown":
        _log.debug("cancel_of_unknown_action", action=action)  # its answer may be archived
    return await state_of(call, action)


def named(call: Call) -> str:
    """Return the action that the path names."""
    (action,) = call.path_args
    if not ACTION_NAME.fullmatch(action):
        raise NotFound(kind="action", name=action[:64])
    return action


HOT_ROUTES = [
    HotRoute("POST", "/v1/actions", post_action),
    HotRoute("GET", "/v1/actions/{id}", get_action),
    HotRoute("DELETE", "/v1/actions/{id}", delete_action),
    HotRoute("POST", "/v1/rewards", post_reward),
    HotRoute("POST", "/v1/rewards/bulk", post_bulk),
]
