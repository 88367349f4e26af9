"""/v1/trajectories/{trajectory}/tokens: training rows of what its model has sampled."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import StreamingResponse

from services.proxy.http.openapi.parts import lines
from services.proxy.state import CurrentState, Tenant
from shared.runtime import patterns
from shared.runtime.app import problem_responses

router = APIRouter(prefix="/v1/trajectories", tags=["trajectories"])

TrajectoryName = Annotated[str, Path(pattern=patterns.TRAJECTORY, description="Id of the trajectory.")]


@router.get(
    "/{trajectory}/tokens",
    summary="Training rows of a trajectory that was opened with `record` (NDJSON)",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "One training row per line, in the order of their last calls.",
            "content": lines("TrainingRow"),
        },
        **problem_responses(404, 409, 422, 503),
    },
)
async def get_tokens(trajectory: TrajectoryName, proxy: CurrentState, tenant: Tenant) -> StreamingResponse:
    """Each row is one chain of model calls: every prompt extends the prompt and output before it, token by token.

    A prompt that extends none begins another row. Nothing is padded, and nothing is tokenised again. Each sampled token
    has loss mask 1 in exactly one row. A call that is not complete has 0, with the reason in `masked`. A call without
    ids is in no row; `GET .../tokens/calls` lists all calls.
    """
    rows = await proxy.tokens.rows(trajectory, tenant)
    return StreamingResponse(rows, media_type="application/x-ndjson")


@router.get(
    "/{trajectory}/tokens/calls",
    summary="Recorded model calls of a trajectory, without their ids (NDJSON)",
    response_class=StreamingResponse,
    responses={
        200: {"description": "One call per line, in the order of their records.", "content": lines("RecordedCall")},
        **problem_responses(404, 409, 422, 503),
    },
)
async def get_recorded_calls(trajectory: TrajectoryName, proxy: CurrentState, tenant: Tenant) -> StreamingResponse:
    """Status and reason of each call, also of those without ids, and what it extends."""
    calls = await proxy.tokens.calls(trajectory, tenant)
    return StreamingResponse(calls, media_type="application/x-ndjson")


@router.delete(
    "/{trajectory}/tokens",
    summary="Delete the token record of a trajectory",
    status_code=204,
    responses=problem_responses(404, 409, 422, 503),
)
async def delete_tokens(trajectory: TrajectoryName, proxy: CurrentState, tenant: Tenant) -> None:
    """Later calls of an open trajectory begin a new record. A repeat changes nothing.

    Without this call a record is deleted a day after its last call (`TRAJECTORY_ROUTER_KEEP_TOKENS_S`).
    """
    await proxy.tokens.delete(trajectory, tenant)
