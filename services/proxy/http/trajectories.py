"""/v1/trajectories: open, read, change, act, close. Bare ASGI: a rollout opens thousands, each with dozens of acts."""

from __future__ import annotations

import re
from typing import get_args

import msgspec

from services.proxy.http.asgi import HotRoute
from services.proxy.http.call import Call
from services.proxy.http.hot import submit_and_wait
from services.proxy.http.replies import Reply
from services.proxy.records.trajectory_service import unknown
from shared.api.trajectories import (
    TrajectoryAction,
    TrajectoryChange,
    TrajectoryList,
    TrajectoryRequest,
    TrajectoryState,
)
from shared.runtime.errors import BadRequest
from shared.runtime.validation import decoded

_encoder = msgspec.json.Encoder()
_request = msgspec.json.Decoder(TrajectoryRequest)
_change = msgspec.json.Decoder(TrajectoryChange)
_action = msgspec.json.Decoder(TrajectoryAction)
_name = re.compile(r"t(?:[0-9a-f]{16}|[0-9a-f]{24})")  # 16: ids of older versions

STATES: tuple[TrajectoryState, ...] = get_args(TrajectoryState)
MOST_LISTED = 1000


async def post_trajectory(call: Call) -> Reply:
    """POST /v1/trajectories: open a trajectory."""
    call.query()
    request = decoded(_request, await call.body(call.proxy.settings.max_body_bytes))
    view, is_new = await call.proxy.trajectories.open(call.tenant(), request)
    return Reply(201 if is_new else 200, _encoder.encode(view))


async def list_trajectories(call: Call) -> Reply:
    """GET /v1/trajectories: the newest trajectories in one state."""
    query = call.query("state", "limit")
    state, limit = query.get("state", "open"), query.get("limit", "100")
    if state not in STATES:
        raise BadRequest(what=f"query parameter state: must be one of {', '.join(STATES)}, not {state[:64]!r}")
    if not re.fullmatch("[0-9]{1,4}", limit) or not 1 <= int(limit) <= MOST_LISTED:
        raise BadRequest(
            what=f"query parameter limit: must be a whole number from 1 to {MOST_LISTED}, not {limit[:64]!r}"
        )
    views = await call.proxy.trajectories.all(state, int(limit))
    return Reply(200, _encoder.encode(TrajectoryList(trajectories=views)))


async def get_trajectory(call: Call) -> Reply:
    """GET /v1/trajectories/{trajectory}: its current state."""
    call.query()
    return Reply(200, _encoder.encode(await call.proxy.trajectories.view(named(call))))


async def patch_trajectory(call: Call) -> Reply:
    """PATCH /v1/trajectories/{trajectory}: change its priority. A repeat changes nothing."""
    call.query()
    trajectory = named(call)
    change = decoded(_change, await call.body(call.proxy.settings.max_body_bytes))
    return Reply(200, _encoder.encode(await call.proxy.trajectories.change(trajectory, change)))


async def delete_trajectory(call: Call) -> Reply:
    """DELETE /v1/trajectories/{trajectory}: end it. A repeat changes nothing."""
    call.query()
    return Reply(200, _encoder.encode(await call.proxy.trajectories.close(named(call))))


async def post_trajectory_action(call: Call) -> Reply:
    """POST /v1/trajectories/{trajectory}/actions: act in its environment."""
    trajectory = named(call)
    wait_s = call.wait_s(call.query("wait"))
    request = decoded(_action, await call.body(call.proxy.settings.max_body_bytes))
    return await submit_and_wait(call, await call.proxy.trajectories.action(trajectory, request), wait_s)


def named(call: Call) -> str:
    """Return the trajectory's name from the path.

    Raises:
        NotFound: it cannot be the name of a trajectory.
    """
    (trajectory,) = call.path_args
    if not _name.fullmatch(trajectory):
        raise unknown(trajectory)
    return trajectory


TRAJECTORY_ROUTES = [
    HotRoute("POST", "/v1/trajectories/{trajectory}/actions", post_trajectory_action),
    HotRoute("POST", "/v1/trajectories", post_trajectory),
    HotRoute("GET", "/v1/trajectories", list_trajectories),
    HotRoute("GET", "/v1/trajectories/{trajectory}", get_trajectory),
    HotRoute("PATCH", "/v1/trajectories/{trajectory}", patch_trajectory),
    HotRoute("DELETE", "/v1/trajectories/{trajectory}", delete_trajectory),
]
