"""Leases of callers as actions, as the journal stores them."""

from __future__ import annotations

import msgspec

from shared.api.leases import AcquireRequest
from shared.kinds.formulation import amounts_of
from shared.messages import leases
from shared.messages.actions import ActionSubmitted, StageWork
from shared.runtime.errors import BadRequest

_json = msgspec.json.Encoder().encode


def submission_of_lease(tenant: str, request: AcquireRequest, action: str, replica: str) -> ActionSubmitted:
    """Return the action of a lease. `replica`: of the caller.

    Raises:
        BadRequest: an amount is out of bounds.
    """
    stage = StageWork(
        name=leases.KIND,
        kind=leases.KIND,
        pool=leases.POOL,
        cost={leases.RESOURCE: (1, 1)},
        timeout_s=request.ttl_s,
        params=_json({"ttl_s": request.ttl_s, "quotas": request.quotas}),
        repeatable=False,
        quotas=_amounts(request),
    )
    given = request.request_id
    return ActionSubmitted(
        action=action,
        tenant=tenant,
        request=given or "",
        stages=(stage,),
        budget_s=request.wait_s,
        priority=request.priority,
        held_by="" if given else replica,  # a repeat may come through another replica
    )


def _amounts(request: AcquireRequest) -> dict[str, float]:
    """Return the amounts to acquire.

    Raises:
        BadRequest: an amount is out of bounds.
    """
    try:
        return amounts_of(request.quotas)
    except ValueError as error:
        raise BadRequest(what=str(error)) from error
