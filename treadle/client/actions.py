"""One action: submitted, then polled until it has an answer."""

from __future__ import annotations

import uuid

import msgspec

from treadle.client.answers import Answer
from treadle.client.errors import NotResident
from treadle.client.requests import ActionRequest, TrajectoryAction
from treadle.client.transport import Transport, quoted

POLL_S = 20.0
"""Seconds of one long poll, unless half of the read timeout is shorter."""


async def run_action(transport: Transport, path: str, action: ActionRequest | TrajectoryAction) -> Answer:
    """Submit an action to `path` and return its answer. It gets a `request_id` if it has none, for retries."""
    if action.request_id is None:
        action = msgspec.structs.replace(action, request_id=uuid.uuid4().hex)
    wait = {"wait": f"{min(POLL_S, transport.read_timeout_s / 2):g}"}
    try:
        answer = await transport.call(Answer, "POST", path, action, query=wait)
    except NotResident as error:
        return _masked(error)
    while answer.state != "finished":
        answer = await transport.call(Answer, "GET", f"/v1/actions/{quoted(answer.id)}", query=wait)
    return answer


def _masked(error: NotResident) -> Answer:
    try:
        return msgspec.convert(error.problem.get("answer"), Answer)
    except msgspec.ValidationError:
        raise error from None
