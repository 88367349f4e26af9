"""Execution of grants: one task on exclusive cores and exactly one outcome for each grant.

A grant waits if its cores are taken: the leader prefetches short work (see `shared.policy.dispatch.prefetch`).
Actions in environments are never prefetched. They start before waiting grants if enough cores are free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec

from services.cpu_manager.cores import Cores
from services.cpu_manager.environment_registry import EnvironmentRegistry
from services.cpu_manager.grading import Grading
from services.cpu_manager.managed_environments import cancel_once, environment_units
from services.cpu_manager.resource_usage import ResourceUsage
from shared.messages.grants import Granted
from shared.messages.outcomes import RECALLED, EnvironmentHeld, Finished, GrantHeld, Started
from shared.policy.model.results import AttemptResult, lost
from shared.runtime import log
from shared.runtime.clock import Clock
from shared.runtime.units import Seconds

_log = log.get(__name__)

Report = Callable[[Started | Finished], None]

REMEMBERED = 65_536
"""Grants that are recognised if they are repeated. A leader repeats a grant if the reply to the first one was lost."""
CLOSING_S = 10.0
"""Longest wait of a stopping node for its environments, in seconds. A stack's services have 15 s in all."""
_STOPPING = "the node is stopping"
_CANCELLED = AttemptResult("cancelled")


@dataclass(slots=True)
class _Running:
    grant: Granted
    task: asyncio.Task[AttemptResult]
    cores: frozenset[int]
    read_at: Seconds
    """Time when the grant was read. It may have waited for cores since then."""
    since: Seconds
    reported: bool = False
    """True if `Started` has been reported."""


class _Waiting(NamedTuple):
    grant: Granted
    read_at: Seconds


@dataclass(slots=True)
class Attempts:
    """Executions on this node. Each grant gets one outcome; its cores are free before the outcome is reported."""

    node: str
    incarnation: str
    cores: Cores
    slots: ResourceUsage
    grading: Grading
    registry: EnvironmentRegistry
    report: Report
    clock: Clock
    _running: dict[tuple[str, int], _Running] = field(default_factory=dict)
    """(action, attempt) -> its execution."""
    _queue: dict[tuple[str, int], _Waiting] = field(default_factory=dict)
    """(action, attempt) -> a grant that waits for cores; in order of arrival."""
    _seen: dict[tuple[str, int, int, int], None] = field(default_factory=dict)
    _stopping: bool = False

    def __len__(self) -> int:
        return len(self._running) + len(self._queue)

    def busy(self) -> bool:
        """True if more grants wait than cores are in use: no core becomes idle while outcomes gather."""
        return len(self._queue) > self.cores.used

    def accept(self, grant: Granted) -> None:
        """Start the grant, or queue it if its cores are not free. A repeated grant changes nothing.

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
        now, needed = self.clock.monotonic(), grant.units.get("cores", 0)
        if needed > len(self.cores.all):
            _log.error("grant_does_not_fit", action=grant.action, cores=needed, all=len(self.cores.all))
            self._report_finished(grant, lost(f"{needed} cores granted, the node has {len(self.cores.all)}"), now, now)
        elif needed > self.cores.free or (needed and self._queue and not grant.trajectory):
            self._queue[grant.action, grant.attempt] = _Waiting(grant, now)
        else:
            self._start(grant, now, now)

    def _start(self, grant: Granted, read_at: Seconds, now: Seconds) -> None:
        cores = self.cores.take(grant.units.get("cores", 0), now)
        if slots := grant.units.get("slots", 0):
            self.slots.use(slots, now)
        if grant.trajectory:
            task = self.registry.start(grant, cores)
        else:
            task = asyncio.create_task(self.grading.grade(grant, cores), name=f"attempt {grant.action}")
        self._running[grant.action, grant.attempt] = _Running(grant, task, cores, read_at, now)
        task.add_done_callback(partial(self._ended, grant))

    def _start_next(self, now: Seconds) -> None:
        """Assign free cores to waiting grants, strictly in order."""
        while self._queue and not self._stopping:
            key, (grant, read_at) = next(iter(self._queue.items()))
            if grant.units["cores"] > self.cores.free:
                return
            del self._queue[key]
            self._start(grant, read_at, now)

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

    def close_environment(self, trajectory: str) -> None:
        """Stop this trajectory's attempts on this node, close its environment, then report the end."""
        for action, attempt in [key for key, one in self._queue.items() if one.grant.trajectory == trajectory]:
            self.revoke(action, attempt)
        self.registry.close(trajectory)

    def report_started(self) -> None:
        """Report `Started` for every running attempt that has not been reported yet."""
        for running in self._running.values():
            if not running.reported:
                running.reported = True
                grant = running.grant
                self.report(Started(action=grant.action, node=self.node, epoch=grant.epoch, attempt=grant.attempt))

    def held_grants(self) -> list[GrantHeld]:
        """Return all grants that run or wait now."""
        now = self.clock.monotonic()
        running = [_held_grant(running.grant, now - running.since, queued=False) for running in self._running.values()]
        return running + [_held_grant(waiting.grant, 0.0, queued=True) for waiting in self._queue.values()]

    def environments(self) -> list[EnvironmentHeld]:
        """Return all environments of this node, and those that waiting grants will create."""
        specs = {one.grant.trajectory: one.grant.environment for one in self._queue.values()}
        planned = {
            name: environment_units(name, spec, creating=True) for name, spec in specs.items() if spec is not None
        }
        return list((planned | {one.trajectory: one for one in self.registry.held()}).values())

    async def stop(self) -> None:
        """Kill everything, in bounded time. Interrupted work is reported lost, so that another node executes it.

        Environments of this node end.
        """
        self._stopping = True
        now = self.clock.monotonic()
        for waiting in self._queue.values():
            self._report_finished(waiting.grant, lost(_STOPPING), waiting.read_at, now)
        self._queue.clear()
        self.registry.end_all(_STOPPING)
        for running in list(self._running.values()):
            cancel_once(running.task)
        while self._running:
            await asyncio.wait([running.task for running in self._running.values()], timeout=1.0)
        await self.registry.closed(CLOSING_S)

    def _ended(self, grant: Granted, task: asyncio.Task[AttemptResult]) -> None:
        """Runs once for every task, also for a task that was cancelled before its first step."""
        running = self._running.pop((grant.action, grant.attempt))
        now = self.clock.monotonic()
        self.cores.give_back(running.cores, now)
        if slots := grant.units.get("slots", 0):
            self.slots.use(-slots, now)
        self.registry.detach(task)
        self._start_next(now)
        cut_short = lost(_STOPPING) if self._stopping else _CANCELLED
        self._report_finished(grant, cut_short if task.cancelled() else task.result(), running.read_at, running.since)

    def _report_finished(self, grant: Granted, result: AttemptResult, read_at: Seconds, started: Seconds) -> None:
        if not self.registry.exists(grant):
            result = msgspec.structs.replace(result, environment_exists=False)
        self.report(
            Finished(
                action=grant.action,
                node=self.node,
                incarnation=self.incarnation,
                epoch=grant.epoch,
                attempt=grant.attempt,
                stage=grant.stage,
                result=result,
                queue_s=started - read_at,
                execution_s=self.clock.monotonic() - started,
                units=grant.units,
            )
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
    )
