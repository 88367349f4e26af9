"""Executor of permits: an action of kind `permit.hold` holds some of them for some seconds."""

from __future__ import annotations

import asyncio

import msgspec

from shared.messages.grants import Granted
from shared.node.executor import Offer
from shared.node.resource_usage import ResourceUsage
from shared.policy.model.results import AttemptResult, refused

PERMITS = "permits"
KIND = "permit.hold"


class HoldPermit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `permit.hold`."""

    seconds: float


class PermitExecutor:
    """Permits of one node. Grants beyond them wait in the node's queue."""

    def __init__(self, permits: int) -> None:
        self.resources = {PERMITS: ResourceUsage(permits, prefetches=True)}

    def offer(self) -> Offer:
        """Return the only kind."""
        return Offer([KIND])

    def start(self, grant: Granted) -> asyncio.Task[AttemptResult]:
        """Hold the permits of this grant."""
        return asyncio.create_task(self._hold(grant))

    def release(self, grant: Granted, task: asyncio.Task[AttemptResult]) -> None:
        """Nothing to release: permits are only counted."""

    async def _hold(self, grant: Granted) -> AttemptResult:
        if grant.work != KIND:
            return refused(f"this node does not execute {grant.work}")
        try:
            params = msgspec.json.decode(grant.params, type=HoldPermit)
        except msgspec.MsgspecError as error:
            return refused(str(error))
        await asyncio.sleep(params.seconds)
        return AttemptResult("ok", passed=True, usage={"permit_s": params.seconds * grant.units[PERMITS]})
