"""/v1/trajectories/{trajectory}/trace: what a trajectory's time was spent on."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from services.proxy.state import CurrentState, Tenant
from shared.runtime import patterns
from shared.runtime.app import problem_responses

router = APIRouter(prefix="/v1/trajectories", tags=["trajectories"])

_OTLP = {
    "type": "object",
    "title": "OTLP/JSON",
    "description": "`ExportTraceServiceRequest` of OpenTelemetry: the body of a collector's `POST /v1/traces`.",
    "externalDocs": {"url": "https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding"},
    "required": ["resourceSpans"],
    "properties": {"resourceSpans": {"type": "array", "items": {"type": "object"}}},
}


@router.get(
    "/{trajectory}/trace",
    summary="Trace of a trajectory: its actions, their queueing and execution, its model calls and its grading",
    response_class=Response,
    responses={
        200: {"description": "One trace in OpenTelemetry's format", "content": {"application/json": {"schema": _OTLP}}},
        **problem_responses(404, 422, 503),
    },
)
async def get_trace(
    trajectory: Annotated[str, Path(pattern=patterns.TRAJECTORY, description="Id of the trajectory.")],
    proxy: CurrentState,
    tenant: Tenant,
) -> Response:
    """The trace's id has the digits of the trajectory's. The spans are those of the first 1,024 answered actions.
    Export it after the end of the trajectory, because until then its root ends now.

    Model calls are shown if the trajectory was opened with `record`. A reward request or an action is shown too if its
    field `trajectory` names the trajectory. The trace is kept as long as the trajectory's record, an hour after its end
    (`PROXY_KEEP_TRAJECTORY_S`).
    """
    return Response(await proxy.traces.trace(trajectory, tenant), media_type="application/json")
