"""Translation of a verb into actions of the trajectory, and of their answers into the client's results and errors."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from services.proxy.http.call import Call
from services.proxy.http.hot import submit_and_wait
from services.proxy.http.swerex.forms import swerex_error
from shared.api.trajectories import TrajectoryAction
from shared.kinds.spec import PLACE
from shared.runtime.errors import BadRequest, Unavailable
from shared.runtime.units import Seconds
from shared.runtime.validation import Decoder, decoded

T = TypeVar("T")

MOST_TIMEOUT_S: Seconds = 3600.0
MOST_REQUEST_ID = 128
MARGIN_S: Seconds = 10.0
"""An answer comes at most this time after its budget."""
OUTPUT_BYTES = 4 << 20
"""Bytes kept of a command's output, because the client cannot read the rest later."""

_encoder = msgspec.json.Encoder()


class ActionEnd(msgspec.Struct, frozen=True):
    """The fields of an answer that this route needs."""

    ended: str
    passed: bool | None = None
    reason: str = ""
    output: dict[str, Any] = {}


_answer = msgspec.json.Decoder(ActionEnd)


async def body(call: Call, decoder: Decoder[T]) -> T:
    """Read and decode the body.

    Raises:
        BadRequest: it is invalid.
    """
    return decoded(decoder, await call.body(call.proxy.settings.max_body_bytes))


def request_id(call: Call) -> str | None:
    """Return the caller's id of this call.

    Raises:
        BadRequest: its length is not allowed.
    """
    asked = call.header(b"x-request-id")
    if asked is not None and not 1 <= len(asked) <= MOST_REQUEST_ID:
        raise BadRequest(what=f"header x-request-id: must have 1 to {MOST_REQUEST_ID} characters")
    return asked


async def act(
    call: Call, trajectory: str, kind: str, params: dict[str, Any], timeout_s: Seconds = 60.0, step: str = ""
) -> ActionEnd:
    """Run one action and return its verdict. `step` distinguishes several actions of one verb.

    Raises:
        Raised: it has no verdict. The message has the reason.
        Conflict, NotFound: the trajectory has ended or does not exist.
    """
    asked = request_id(call)
    budget_s = timeout_s + call.proxy.settings.max_wait_s
    request = TrajectoryAction(
        kind=kind,
        params=msgspec.Raw(_encoder.encode(params)),
        request_id=f"swerex:{step}:{asked}" if asked else None,
        timeout_s=timeout_s,
        budget_s=budget_s,
    )
    submitted = await call.proxy.trajectories.action(trajectory, request)
    reply = await submit_and_wait(call, submitted, budget_s + MARGIN_S)
    if reply.status != 200:
        raise Unavailable(what=f"{kind} has no answer yet; read GET /v1/actions/{submitted.action}")
    answered = _answer.decode(reply.body)
    if answered.ended not in ("ok", "timeout"):
        raise swerex_error("SwerexException", f"{kind} ended as {answered.ended}: {answered.reason}")
    return answered


def as_text(*words: str) -> dict[str, bool]:
    """Return the parameter that turns off filling in, if a word has a place that the node would fill in."""
    return {"literal": True} if any(PLACE in word for word in words) else {}


def within(timeout: float | None) -> Seconds:
    """Bound a timeout. None (no limit) becomes `MOST_TIMEOUT_S`."""
    return MOST_TIMEOUT_S if timeout is None else min(max(timeout, 0.001), MOST_TIMEOUT_S)
