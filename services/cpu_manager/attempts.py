"""Executing grants: each becomes a task on cores of its own, and exactly one outcome.

A grant that finds its cores taken waits for them (the leader grants short work ahead, see
`shared.policy.dispatch.prefetch`). What acts in an environment is never granted ahead, so it passes those that wait
wherever cores are free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from services.cpu_manager.cores import Cores
from services.cpu_manager.grading import Grading
from services.cpu_manager.managed_environments import cut, stays
from services.cpu_manager.resource_usage import ResourceUsage
from services.cpu_manager.results import Done, lost
from services.cpu_manager.trajectories import Trajectories
from shared.messages.grants import Granted
from shared.messages.outcomes import RECALLED, Finished, Held, Started, Stays
from shared.runtime import log
from shared.runtime.clock import Clock
from shared.runtime.units import Seconds

_log = log.get(__name__)

Report = Callable[[Started | Finished], None]

REMEMBERED = 65_536
"""Grants whose repeat is recognised (a leader sends again when it did not hear that a send had worked)."""
CLOSING_S = 10.0
"""Patience of a stopping node with its environments; a stack's services have 15 s in all."""
_STOPPING = "the node is stopping"
_CANCELLED = Done("cancelled")


@dataclass(slots=True)
class _Running:
    grant: Granted
    task: asyncio.Task[Done]
    cores: frozenset[int]
    read_at: Seconds
    """When the grant was read; it may have waited for cores."""
    since: Seconds
    told: bool = False
    """A Started has been sent."""


class _Waiting(NamedTuple):
    grant: Granted
    read_at: Seconds


@dataclass(slots=True)
class Attempts:
    """What this node executes now. One outcome a grant, whatever happens; its cores are free before it is told."""

    node: str
    incarnation: str
    cores: Cores
    slots: ResourceUsage
    grading: Grading
    trajectories: Trajectories
    report: Report
    clock: Clock
    _running: dict[tuple[str, int], _Running] = field(default_factory=dict)
    """(action, attempt) -> its execution."""
    _line: dict[tuple[str, int], _Waiting] = field(default_factory=dict)
    """(action, attempt) -> a grant that waits for cores, in order."""
    _seen: dict[tuple[str, int, int, int], None] = field(default_factory=dict)
    _stopping: bool = False

    def __len__(self) -> int:
        return len(self._running) + len(self._line)

    def busy(self) -> bool:
        """More waits for cores than works on them: no core will be idle while outcomes gather."""
        return len(self._line) > self.cores.used

    def begin(self, grant: Granted) -> None:
        """Start executing, or wait for cores where none are free; a repeated grant changes nothing.

        One that comes while the node stops is left: what was cut is granted anew, also to us until our goodbye is
        heard. Begun, it would hold the stop up; told as lost, it would be granted a third time at once.
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
            self._tell(grant, lost(f"{needed} cores granted, the node has {len(self.cores.all)}"), now, now)
        elif needed > self.cores.free or (needed and self._line and not grant.trajectory):
            self._line[grant.action, grant.attempt] = _Waiting(grant, now)
        else:
            self._start(grant, now, now)

    def _start(self, grant: Granted, read_at: Seconds, now: Seconds) -> None:
        cores = self.cores.take(grant.units.get("cores", 0), now)
        if slots := grant.units.get("slots", 0):
            self.slots.use(slots, now)
        if grant.trajectory:
            task = self.trajectories.start(grant, cores)
        else:
            task = asyncio.create_task(self.grading.grade(grant, cores), name=f"attempt {grant.action}")
        self._running[grant.action, grant.attempt] = _Running(grant, task, cores, read_at, now)
        task.add_done_callback(partial(self._ended, grant))

    def _start_next(self, now: Seconds) -> None:
        """Give free cores to the line, strictly in order."""
        while self._line and not self._stopping:
            key, (grant, read_at) = next(iter(self._line.items()))
            if grant.units["cores"] > self.cores.free:
                return
            del self._line[key]
            self._start(grant, read_at, now)

    def revoke(self, action: str, attempt: int, *, recall: bool = False) -> None:
        """Stop it if it runs or waits; its outcome is `cancelled` (or what it has just become).

        A recall takes back only what waits; its outcome is `lost`.
        """
        waiting = self._line.pop((action, attempt), None)
        if waiting is not None:
            now = self.clock.monotonic()
            self._tell(waiting.grant, lost(RECALLED) if recall else _CANCELLED, waiting.read_at, now)
            self._start_next(now)
            return
        running = self._running.get((action, attempt))
        if running is not None and not recall:
            cut(running.task)

    def close_environment(self, trajectory: str) -> None:
        """Stop what this trajectory has here, then end its environment, and tell that it has ended."""
        for action, attempt in [key for key, one in self._line.items() if one.grant.trajectory == trajectory]:
            self.revoke(action, attempt)
        self.trajectories.close(trajectory)

    def tell_started(self) -> None:
        """Report as started what is still executing and was not yet reported."""
        for running in self._running.values():
            if not running.told:
                running.told = True
                grant = running.grant
                self.report(Started(action=grant.action, node=self.node, epoch=grant.epoch, attempt=grant.attempt))

    def held(self) -> list[Held]:
        """Everything that executes or waits now."""
        now = self.clock.monotonic()
        running = [_held(running.grant, now - running.since, waits=False) for running in self._running.values()]
        return running + [_held(waiting.grant, 0.0, waits=True) for waiting in self._line.values()]

    def environments(self) -> list[Stays]:
        """Every environment that stands, and those that a grant here is to make."""
        specs = {one.grant.trajectory: one.grant.environment for one in self._line.values()}
        to_come = [stays(trajectory, spec, making=True) for trajectory, spec in specs.items() if spec is not None]
        return list({one.trajectory: one for one in (*to_come, *self.trajectories.stays())}.values())

    async def stop(self) -> None:
        """Kill everything, bounded. What ran is reported as lost, so that it runs elsewhere; environments end here."""
        self._stopping = True
        now = self.clock.monotonic()
        for waiting in self._line.values():
            self._tell(waiting.grant, lost(_STOPPING), waiting.read_at, now)
        self._line.clear()
        self.trajectories.end_all(_STOPPING)
        for running in list(self._running.values()):
            cut(running.task)
        while self._running:
            await asyncio.wait([running.task for running in self._running.values()], timeout=1.0)
        await self.trajectories.closed(CLOSING_S)

    def _ended(self, grant: Granted, task: asyncio.Task[Done]) -> None:
        """Called once for every task, also for one that was cancelled before its first step."""
        running = self._running.pop((grant.action, grant.attempt))
        now = self.clock.monotonic()
        self.cores.give_back(running.cores, now)
        if slots := grant.units.get("slots", 0):
            self.slots.use(-slots, now)
        self.trajectories.leave(task)
        self._start_next(now)
        cut_short = lost(_STOPPING) if self._stopping else _CANCELLED
        self._tell(grant, cut_short if task.cancelled() else task.result(), running.read_at, running.since)

    def _tell(self, grant: Granted, done: Done, read_at: Seconds, started: Seconds) -> None:
        self.report(
            Finished(
                action=grant.action,
                node=self.node,
                incarnation=self.incarnation,
                epoch=grant.epoch,
                attempt=grant.attempt,
                stage=grant.stage,
                status=done.status,
                passed=done.passed,
                score=done.score,
                output=done.output,
                reason=done.reason,
                queue_s=started - read_at,
                execution_s=self.clock.monotonic() - started,
                cpu_s=done.cpu_s,
                peak_memory_bytes=done.peak_memory_bytes,
                evidence=done.evidence,
                environment_stands=self.trajectories.stands(grant),
                units=grant.units,
                retry_in_s=done.retry_in_s,
                environment_ended=done.environment_ended,
            )
        )


def _held(grant: Granted, running_s: Seconds, *, waits: bool) -> Held:
    return Held(
        action=grant.action,
        epoch=grant.epoch,
        attempt=grant.attempt,
        stage=grant.stage,
        units=grant.units,
        running_s=running_s,
        waits=waits,
    )
