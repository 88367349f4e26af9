"""Execution of grants: one task on exclusive units and exactly one outcome for each grant.

A grant waits if units of a prefetched resource are taken: the leader prefetches short work (see
`shared.policy.dispatch.prefetch`). Actions in environments are never prefetched. They start before waiting grants if
enough units are free, and no parked attempt waits for its units.

States of a grant: waiting (`_queue`, holds nothing) -> running (`_running`, holds its units from `_start` on) -> ended.
Units are taken and given back by `_start` and `_ended`, and while an attempt runs by `parking`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec

from shared.messages.grants import AttemptParkRequested, AttemptResumed, Granted
from shared.messages.outcomes import RECALLED, EnvironmentHeld, Finished, GrantHeld, Parked, Started
from shared.node.executor import Environments, Executor, Parking
from shared.node.identity import NodeIdentity
from shared.node.parking import ParkedAttempts, ParkMessage, order_of
from shared.node.resource_usage import ResourceUsage
from shared.node.running import RunningAttempt
from shared.policy.model.results import AttemptResult, lost
from shared.runtime import log
from shared.runtime.clock import Clock
from shared.runtime.units import Seconds

_log = log.get(__name__)

Report = Callable[[Started | Finished | Parked], None]

REMEMBERED = 65_536
"""Grants that are recognised if they are repeated. A leader repeats a grant if the reply to the first one was lost."""
CLOSING_S = 10.0
"""Longest wait of a stopping node for its environments, in seconds. A stack's services have 15 s in all."""
_STOPPING = "the node is stopping"
_CANCELLED = AttemptResult("cancelled")
_MISSING = ResourceUsage(0)
"""Units of a resource that the node does not have."""


class _Waiting(NamedTuple):
    grant: Granted
    read_at: Seconds
    asked: ParkMessage | None = None
    """The newest message that parks or resumes it."""


@dataclass(slots=True)
class Attempts:
    """Executions on this node. Each grant gets one outcome; its units are free before the outcome is reported."""

    identity: NodeIdentity
    executor: Executor
    report: Report
    clock: Clock
    environments: Environments | None = None
    parking: Parking | None = None
    _resources: Mapping[str, ResourceUsage] = field(init=False)
    _prefetched: dict[str, ResourceUsage] = field(init=False)
    _parked: ParkedAttempts = field(init=False)
    _running: dict[tuple[str, int], RunningAttempt] = field(default_factory=dict)
    """(action, attempt) -> its execution."""
    _queue: dict[tuple[str, int], _Waiting] = field(default_factory=dict)
    """(action, attempt) -> a grant that waits for units; in order of arrival."""
    _seen: dict[tuple[str, int, int, int], None] = field(default_factory=dict)
    _stopping: bool = False

    def __post_init__(self) -> None:
        self._resources = self.executor.resources
        self._prefetched = {name: usage for name, usage in self._resources.items() if usage.prefetches}
        self._parked = ParkedAttempts(
            self.identity.node, self.parking, self._resources, self.clock, self.report, self._start_next
        )

    def __len__(self) -> int:
        return len(self._running) + len(self._queue)

    def busy(self) -> bool:
        """True if more grants wait than prefetched units are in use: no unit becomes idle while outcomes gather."""
        return len(self._queue) > sum(usage.used for usage in self._prefetched.values())

    def accept(self, grant: Granted) -> None:
        """Start the grant, or queue it if its units are not free. A repeated grant changes nothing.

        Grants received during shutdown are ignored. The leader grants interrupted work again and may pick this node
        until it has read our Bye. Starting it would delay the shutdown; reporting it lost would cause another grant
        at once.
        """
        if self._stopping:
            return
        identity = (grant.action, grant.stage, grant.attempt, grant.epoch)
        if identity in self._seen:
            return
        self._seen[identity] = None
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        now, waits = self.clock.monotonic(), False
        for name, units in grant.units.items():
            usage = self._resources.get(name, _MISSING)
            if units > usage.exist:
                self._reject(grant, f"{units} {name} granted, the node has {usage.exist}", now)
                return
            if usage.prefetches and units:
                passes = self._parked.any_waits or (bool(self._queue) and not grant.trajectory)
                waits = waits or units > usage.free or passes
        if waits:
            self._queue[grant.action, grant.attempt] = _Waiting(grant, now)
        else:
            self._start(_Waiting(grant, now), now)

    def _reject(self, grant: Granted, reason: str, now: Seconds) -> None:
        """Report a grant that the node could never execute."""
        _log.error("grant_does_not_fit", action=grant.action, reason=reason)
        self._report_finished(grant, lost(reason), now, now)

    def _start(self, waiting: _Waiting, now: Seconds) -> None:
        grant = waiting.grant
        for name, units in grant.units.items():
            if units:
                self._resources[name].use(units, now)
        task = self.executor.start(grant)
        self._running[grant.action, grant.attempt] = RunningAttempt(grant, task, waiting.read_at, now)
        task.add_done_callback(partial(self._ended, grant))
        if isinstance(waiting.asked, AttemptParkRequested):
            self.park(waiting.asked)

    def _start_next(self, now: Seconds) -> None:
        """Assign free units to waiting attempts: first to those that continue, then to grants, strictly in order."""
        if not self._parked.resume_next(now):
            return
        while self._queue and not self._stopping:
            key, waiting = next(iter(self._queue.items()))
            if any(waiting.grant.units.get(name, 0) > usage.free for name, usage in self._prefetched.items()):
                return
            del self._queue[key]
            self._start(waiting, now)

    def revoke(self, action: str, attempt: int, *, recall: bool = False) -> None:
        """Stop the attempt if it runs or waits. Its outcome is `cancelled`, or its own result if it has just ended.

        A recall removes only a waiting grant; its outcome is `lost`.
        """
        waiting = self._queue.pop((action, attempt), None)
        if waiting is not None:
            now = self.clock.monotonic()
            self._report_finished(waiting.grant, lost(RECALLED) if recall else _CANCELLED, waiting.read_at, now)
            self._start_next(now)
            return
        running = self._running.get((action, attempt))
        if running is not None and not recall:
            cancel_once(running.task)

    def park(self, asked: AttemptParkRequested) -> None:
        """Park an attempt. One that waits is parked when it has started."""
        running = self._running.get((asked.action, asked.attempt))
        if running is not None:
            self._parked.park(running, asked)
        else:
            self._defer(asked)

    def resume(self, asked: AttemptResumed) -> None:
        """Continue an attempt if it is parked."""
        running = self._running.get((asked.action, asked.attempt))
        if running is not None:
            self._parked.resume(running, asked)
        else:
            self._defer(asked)

    def _defer(self, asked: ParkMessage) -> None:
        """Keep the newest message about a waiting attempt until it starts."""
        key = asked.action, asked.attempt
        waiting = self._queue.get(key)
        if waiting is not None and (waiting.asked is None or order_of(asked) > order_of(waiting.asked)):
            self._queue[key] = waiting._replace(asked=asked)

    def close_environment(self, trajectory: str) -> None:
        """Stop this trajectory's waiting attempts, and close its environment, which stops the running ones."""
        for action, attempt in [key for key, one in self._queue.items() if one.grant.trajectory == trajectory]:
            self.revoke(action, attempt)
        if self.environments is not None:
            self.environments.close(trajectory)

    def report_started(self) -> None:
        """Report `Started` for every running attempt that has not been reported yet."""
        for running in self._running.values():
            if not running.reported:
                running.reported = True
                grant, node = running.grant, self.identity.node
                self.report(Started(action=grant.action, node=node, epoch=grant.epoch, attempt=grant.attempt))

    def held_grants(self) -> list[GrantHeld]:
        """Return all grants that run or wait now."""
        now = self.clock.monotonic()
        running = [_held_attempt(running, now) for running in self._running.values()]
        return running + [_held_grant(waiting.grant, 0.0, queued=True) for waiting in self._queue.values()]

    def held_environments(self) -> list[EnvironmentHeld]:
        """Return all environments of this node, and those that waiting grants will create."""
        if self.environments is None:
            return []
        return self.environments.held(waiting.grant for waiting in self._queue.values())

    async def stop(self) -> None:
        """Kill everything, in bounded time. Interrupted work is reported lost, so that another node executes it.

        Environments of this node end.
        """
        self._stopping = True
        now = self.clock.monotonic()
        for waiting in self._queue.values():
            self._report_finished(waiting.grant, lost(_STOPPING), waiting.read_at, now)
        self._queue.clear()
        if self.environments is not None:
            self.environments.end_all(_STOPPING)
        for running in list(self._running.values()):
            cancel_once(running.task)
        while self._running:
            await asyncio.wait([running.task for running in self._running.values()], timeout=1.0)
        if self.environments is not None:
            await self.environments.closed(CLOSING_S)

    def _ended(self, grant: Granted, task: asyncio.Task[AttemptResult]) -> None:
        """Runs once for every task, also for a task that was cancelled before its first step."""
        running = self._running.pop((grant.action, grant.attempt))
        now = self.clock.monotonic()
        self._parked.ended(running)
        if running.holds_units:
            for name, units in running.units.items():
                self._resources[name].use(-units, now)
        self.executor.release(grant, task)
        self._start_next(now)
        result = self._result(grant, task)
        executed_s = max(0.0, running.executed_s(now) - result.restore_s)
        self._report_finished(grant, result, running.read_at, running.since, executed_s)

    def _result(self, grant: Granted, task: asyncio.Task[AttemptResult]) -> AttemptResult:
        if task.cancelled():
            return lost(_STOPPING) if self._stopping else _CANCELLED
        if (error := task.exception()) is not None:
            _log.error("executor_failed", action=grant.action, work=grant.work, exc_info=error)
            return lost(f"the executor failed: {type(error).__name__}")
        result = task.result()
        if self._stopping and result.status == "cancelled":  # the stop has cut it, and no caller has cancelled it
            return msgspec.structs.replace(lost(_STOPPING), usage=result.usage, restore_s=result.restore_s)
        return result

    def _report_finished(
        self, grant: Granted, result: AttemptResult, read_at: Seconds, started: Seconds, executed_s: Seconds = 0.0
    ) -> None:
        if self.environments is not None and not self.environments.exists(grant):
            result = msgspec.structs.replace(result, environment_exists=False)
        self.report(
            Finished(
                action=grant.action,
                node=self.identity.node,
                incarnation=self.identity.incarnation,
                epoch=grant.epoch,
                attempt=grant.attempt,
                stage=grant.stage,
                result=result,
                queue_s=started - read_at,
                execution_s=executed_s,
                units=grant.units,
            )
        )


def cancel_once(task: asyncio.Task[AttemptResult]) -> None:
    """Cancel the task, once: a second cancellation would disturb the cleanup after the first."""
    if not task.cancelling():
        task.cancel()


def _held_attempt(running: RunningAttempt, now: Seconds) -> GrantHeld:
    return msgspec.structs.replace(
        _held_grant(running.grant, running.executed_s(now), queued=False),
        parked=not running.holds_units,
        resuming=running.state == "resuming",
        paused_s=running.without_units_s(now),
    )


def _held_grant(grant: Granted, running_s: Seconds, *, queued: bool) -> GrantHeld:
    return GrantHeld(
        action=grant.action,
        epoch=grant.epoch,
        attempt=grant.attempt,
        stage=grant.stage,
        units=grant.units,
        running_s=running_s,
        queued=queued,
        service=grant.service,
        numbers=grant.numbers,
    )
