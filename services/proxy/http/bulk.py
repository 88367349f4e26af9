"""The bulk route: many reward requests in one call, in parts, so that calls of other tenants take turns with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from io import BytesIO
from itertools import islice
from typing import Any

import msgspec
from redis.exceptions import OutOfMemoryError

from services.proxy.http.call import Call
from services.proxy.http.replies import Reply
from services.proxy.records.batch_service import decode_reward
from services.proxy.records.intake import Accepted
from shared.api.requests import BulkReceipt, Rejection, RewardRequest
from shared.bus.connection import TRANSIENT
from shared.messages.actions import ActionSubmitted
from shared.runtime import log
from shared.runtime.errors import BadRequest, NotFound, TreadleError, from_problem

_log = log.get(__name__)
_encoder = msgspec.json.Encoder()

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some editors put it at the beginning of every file."""
LINES_AT_ONCE, LINES_SHARED = 512, 16
"""Lines of a part, and of a part while several tenants submit. A part is resolved before the event loop runs other
tasks; the next one begins when it is journaled."""


async def post_bulk(call: Call) -> Reply:
    """POST /v1/rewards/bulk: NDJSON, one reward request per line. A bad line does not affect the others."""
    query = call.query("batch")
    batch, tenant = query.get("batch"), call.tenant()
    body = (await call.body(call.proxy.settings.max_bulk_bytes)).removeprefix(BYTE_ORDER_MARK)
    accepted = repeated = 0
    rejected: list[Rejection] = []
    lines, intake = _numbered(body), call.proxy.intake
    while part := list(islice(lines, LINES_SHARED if intake.shared else LINES_AT_ONCE)):
        for end in await _submit(call, tenant, batch, part):
            if isinstance(end, Rejection):
                rejected.append(end)
            elif end.repeated:
                repeated += 1
            else:
                accepted += 1
    if not accepted and not repeated:
        if not rejected:
            raise BadRequest(what="the body is empty: send one reward request (JSON) per line")
        if (nowhere := _same_not_found(rejected)) is not None:
            raise nowhere
    rejected.sort(key=lambda each: each.line)
    return Reply(200, _encoder.encode(BulkReceipt(accepted=accepted, repeated=repeated, rejected=rejected)))


def _numbered(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank with their numbers, from 1. Lazily, because a body may have millions."""
    for number, line in enumerate(BytesIO(body), 1):
        if line.strip():
            yield number, line.removesuffix(b"\n")


def _same_not_found(rejected: list[Rejection]) -> TreadleError | None:
    """Return one error if all lines name the same missing thing (usually their batch); None otherwise."""
    problem = rejected[0].problem
    same = problem["status"] == NotFound.status and all(each.problem == problem for each in rejected)
    return from_problem(problem) if same else None


async def _submit(
    call: Call, tenant: str, batch: str | None, part: list[tuple[int, bytes]]
) -> list[Accepted | Rejection]:
    """Resolve and journal a part of the lines; return an end for each. The order of the ends is not that of the lines.

    Raises:
        OutOfMemoryError: Valkey is full.
        Exception: one of `TRANSIENT`: Valkey is away.
    """
    batches = call.proxy.batches
    ends: list[Accepted | Rejection] = []
    requests: list[tuple[int, RewardRequest]] = []
    for number, line in part:
        try:
            requests.append((number, decode_reward(line, "the line")))
        except Exception as error:  # noqa: BLE001  # a crash on one line must not affect the others
            ends.append(_rejection(number, None, error))
    calls = [batches.reward(tenant, request, batch) for _, request in requests]
    resolved: Sequence[ActionSubmitted | BaseException]
    if all(batches.is_known(request, batch) for _, request in requests):
        resolved = [await _outcome(one) for one in calls]  # none of them waits, so no tasks are needed
    else:
        resolved = await asyncio.gather(*calls, return_exceptions=True)
    sent = [one for one in resolved if isinstance(one, ActionSubmitted)]
    journaled = iter(await call.proxy.intake.submit_all(sent))
    for (number, request), one in zip(requests, resolved, strict=True):
        end = next(journaled) if isinstance(one, ActionSubmitted) else one
        ends.append(end if isinstance(end, Accepted) else _rejection(number, request.request_id, end))
    return ends


async def _outcome(call: Coroutine[Any, Any, ActionSubmitted]) -> ActionSubmitted | Exception:
    try:
        return await call
    except Exception as error:  # noqa: BLE001  # as `asyncio.gather` returns it
        return error


def _rejection(number: int, request_id: str | None, error: BaseException) -> Rejection:
    """Return a line's rejection.

    Raises:
        Exception: `error` concerns all lines.
    """
    if isinstance(error, (OutOfMemoryError, *TRANSIENT)) or not isinstance(error, Exception):
        raise error
    if not isinstance(error, TreadleError):
        _log.error("line_crashed", line=number, exc_info=error)
        error = TreadleError()
    return Rejection(line=number, request_id=request_id, problem=error.problem())
