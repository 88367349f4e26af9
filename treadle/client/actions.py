"""One action: submitted once, waited for until it has an answer."""

from __future__ import annotations

import uuid

import msgspec

from treadle.client.answers import Answer
from treadle.client.calls import Calls
from treadle.client.requests import ActionRequest, TrajectoryAction

POLL_S = 20.0
"""One long poll, unless half of the silence after which a connection is given up is shorter."""


async def run_action(calls: Calls, path: str, action: ActionRequest | TrajectoryAction) -> Answer:
    """Submit an action to `path` and wait for its answer. Without a `request_id` it gets one, so that it may be sent
    again.
    """
    if action.request_id is None:
        action = msgspec.structs.replace(action, request_id=uuid.uuid4().hex)
    wait = {"wait": f"{min(POLL_S, calls.silence_s / 2):g}"}
    answer = await calls.read(Answer, "POST", path, action, query=wait)
    while answer.state != "finished":
        answer = await calls.read(Answer, "GET", f"/v1/actions/{answer.id}", query=wait)
    return answer
