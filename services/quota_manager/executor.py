"""Executor of calls: each grant is one call, limited in number by the units `calls`."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable

from services.quota_manager.kinds import CALLS, KINDS
from services.quota_manager.metrics import CALLS as CALLS_NOW
from shared.messages.grants import Granted
from shared.node.executor import Offer
from shared.node.resource_usage import ResourceUsage
from shared.policy.model.results import AttemptResult, lost, refused
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)

GUARD_S: Seconds = 10.0
"""Seconds past its limit after which a call that has not ended is our failure."""
_NAMES = frozenset(spec.name for spec in KINDS)

Attempt = Callable[[Granted], Awaitable[AttemptResult]]


class CallExecutor:
    """Makes the calls of one node.

    A revoked call is closed at once. While the node stops, a call that has begun may end in `grace_s` seconds: the
    upstream has counted it, and its answer is kept.
    """

    def __init__(self, attempt: Attempt, *, calls: int, grace_s: Seconds, guard_s: Seconds = GUARD_S) -> None:
        self.resources = {CALLS: ResourceUsage(calls)}
        self._attempt = attempt
        self._grace_s = grace_s
        self._guard_s = guard_s
        self._stopping = False

    def offer(self) -> Offer:
        """Return the kinds of calls."""
        return Offer(sorted(_NAMES))

    def start(self, grant: Granted) -> asyncio.Task[AttemptResult]:
        """Begin the call."""
        CALLS_NOW.inc()
        return asyncio.create_task(self._run(grant), name=f"attempt {grant.action}")

    def release(self, grant: Granted, task: asyncio.Task[AttemptResult]) -> None:
        """Count the end of the call."""
        del grant, task
        CALLS_NOW.dec()

    def stop(self) -> None:
        """Let calls that have begun end in `grace_s`, also if they are cancelled. Call it before the agent stops."""
        self._stopping = True

    async def _run(self, grant: Granted) -> AttemptResult:
        if grant.work not in _NAMES:
            return refused(f"this node does not execute {grant.work}")
        call = asyncio.create_task(self._called(grant), name=f"call {grant.action}")
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if self._stopping and not call.cancelled():
                await asyncio.wait([call], timeout=self._grace_s)
                if call.done() and not call.cancelled():
                    return call.result()
            call.cancel()
            await asyncio.wait([call])
            raise

    async def _called(self, grant: Granted) -> AttemptResult:
        try:
            async with asyncio.timeout(grant.timeout_s + self._guard_s):
                return await self._attempt(grant)
        except TimeoutError:
            return lost(f"no end {self._guard_s:g} s after its limit of {grant.timeout_s:g} s")
        except Exception as error:  # noqa: BLE001  # our bug, which is no statement about the upstream
            place = traceback.extract_tb(error.__traceback__)[-1]  # without texts: they may have parts of a call
            where = f"{place.filename}:{place.lineno}"
            _log.error("call_crashed", action=grant.action, work=grant.work, error=type(error).__name__, where=where)
            return lost(f"the call failed: {type(error).__name__}")
