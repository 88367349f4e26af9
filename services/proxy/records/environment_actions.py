"""Translation of a trajectory's action, as the trainer sends it, into the one stage that the journal stores."""

from __future__ import annotations

from shared.api.trajectories import TrajectoryAction
from shared.kinds.registry import UnknownKind, all_kinds
from shared.kinds.staging import single_stage
from shared.messages.actions import StageWork
from shared.runtime.errors import BadRequest


def stage_of(request: TrajectoryAction, node_class: str) -> StageWork:
    """Return the stage that the node executes.

    Raises:
        BadRequest: unknown kind, or its parameters or units are invalid, or it has no core.
    """
    try:
        spec = all_kinds().environment_kind(request.kind)
    except UnknownKind as error:
        raise BadRequest(what=str(error)) from error
    return single_stage(spec, request, node_class)
