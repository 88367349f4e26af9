"""Translation of a trajectory's action, as the trainer sends it, into the one stage that the journal stores."""

from __future__ import annotations

import msgspec

from shared.api.elasticity import formulated
from shared.api.trajectories import TrajectoryAction
from shared.messages.actions import StageWork
from shared.messages.kinds import ENVIRONMENT_KINDS, ONLY_LOOKS, default_units, pool_of
from shared.runtime.errors import SHOWN_CHARS, BadRequest
from shared.runtime.validation import decoded

_decoders = {kind: msgspec.json.Decoder(params) for kind, params in ENVIRONMENT_KINDS.items()}


def stage_of(request: TrajectoryAction, node_class: str) -> StageWork:
    """Return the stage that the node executes.

    Raises:
        BadRequest: unknown kind, or its parameters or units are invalid, or it has no core.
    """
    decoder = _decoders.get(request.kind)
    if decoder is None:
        shown = request.kind[:SHOWN_CHARS]
        raise BadRequest(what=f"unknown kind {shown!r}; in a trajectory there are {', '.join(_decoders)}")
    decoded(decoder, request.params, f"params of {request.kind}")
    units = request.units if request.units is not None else default_units(request.kind)
    pool = pool_of(units, node_class)
    try:
        formulation = formulated(units, request.elasticity, pool)
    except ValueError as error:
        raise BadRequest(what=str(error)) from error
    if formulation.cost.get("cores", (0, 0))[0] < 1:
        raise BadRequest(what=f"{request.kind} needs a core; its `units` are {dict(formulation.cost)}")
    return StageWork(
        name="run",
        kind=request.kind,
        pool=pool,
        cost=formulation.cost,
        timeout_s=request.timeout_s,
        params=bytes(request.params),
        repeatable=request.kind in ONLY_LOOKS,
        amounts=formulation.amounts,
        elasticity=formulation.elasticity,
        duration_s=request.duration_s,
    )
