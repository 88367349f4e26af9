"""Executing grants: each becomes a task on cores of its own, and exactly one outcome.

A grant that finds its cores taken waits for them (the leader grants short work ahead, see `shared.policy.ahead`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgspec

from services.cpu_manager.cores import Cores
from services.cpu_manager.graders.protocol import Bench, Grader, Verdict
from services.cpu_manager.holding import Holding
from services.cpu_manager.results import EMPTY, encode_output
from services.cpu_manager.sandbox.protocol import Sandbox
from services.cpu_manager.tenancy import TenantSandbox
from shared import log
from shared.clock import Clock
from shared.messages.grants import Granted
from shared.messages.outcomes import RECALLED, Finished, Held, Started

_log = log.get(__name__)

Report = Callable[[Started | Finished], None]

REMEMBERED = 65_536
"""Grants whose repeat is recognised (a leader sends again when it did not hear that a send had worked)."""
_STOPPING = "the node is stopping"


class _Graded(NamedTuple):
    """A verdict whose output is known to be JSON."""

    verdict: Verdict
    output: bytes = EMPTY


@dataclass(slots=True)
class _Running:
    grant: Granted
    task: asyncio.Task[_Graded]
    cores: frozenset[int]
    read_at: float
    """When the grant was read; it may have waited for cores."""
    since: float
    told: bool = False
    """A Started has been sent."""


class _Waiting(NamedTuple):
    grant: Granted
    read_at: float


@dataclass(slots=True)
class Attempts:
    """What this node executes now. One outcome a grant, whatever happens; its cores are free before it is told."""

    node: str
    incarnation: str
    cores: Cores
    slots: Holding
    sandbox: Sandbox
    graders: Mapping[str, Grader[Any]]
    report: Report
    clock: Clock
    output_bytes: int
    guard_s: float
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
            self._tell(grant, _lost(f"{needed} cores granted, the node has {len(self.cores.all)}"), now, now)
        elif needed and (self._line or needed > self.cores.free):
            self._line[grant.action, grant.attempt] = _Waiting(grant, now)
        else:
            self._start(grant, now, now)

    def _start(self, grant: Granted, read_at: float, now: float) -> None:
        cores = self.cores.take(grant.units.get("cores", 0), now)
        if slots := grant.units.get("slots", 0):
            self.slots.use(slots, now)
        task = asyncio.create_task(self._grade(grant, cores), name=f"attempt {grant.action}")
        self._running[grant.action, grant.attempt] = _Running(grant, task, cores, read_at, now)
        task.add_done_callback(partial(self._ended, grant))

    def _start_next(self, now: float) -> None:
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
            self._tell(waiting.grant, _lost(RECALLED) if recall else None, waiting.read_at, now)
            self._start_next(now)
            return
        running = self._running.get((action, attempt))
        if running is not None and not recall:
            running.task.cancel()

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

    async def stop(self) -> None:
        """Kill everything; what ran is reported as lost, so that it runs elsewhere."""
        self._stopping = True
        now = self.clock.monotonic()
        for waiting in self._line.values():
            self._tell(waiting.grant, _lost(_STOPPING), waiting.read_at, now)
        self._line.clear()
        for running in list(self._running.values()):
            running.task.cancel()
        while self._running:
            await asyncio.wait([running.task for running in self._running.values()], timeout=1.0)

    def _ended(self, grant: Granted, task: asyncio.Task[_Graded]) -> None:
        """Called once for every task, also for one that was cancelled before its first step."""
        running = self._running.pop((grant.action, grant.attempt))
        now = self.clock.monotonic()
        self.cores.give_back(running.cores, now)
        if slots := grant.units.get("slots", 0):
            self.slots.use(-slots, now)
        self._start_next(now)
        if not task.cancelled():
            graded: _Graded | None = task.result()
        elif self._stopping:
            graded = _lost(_STOPPING)
        else:
            graded = None
        self._tell(grant, graded, running.read_at, running.since)

    async def _grade(self, grant: Granted, cores: frozenset[int]) -> _Graded:
        grader = self.graders.get(grant.work)
        if grader is None:
            return _Graded(Verdict(status="refused", reason=f"this node does not execute {grant.work}"))
        try:
            params = msgspec.json.decode(grant.params, type=grader.params)
            sandbox = TenantSandbox(self.sandbox, grant.tenant)
            bench = Bench(sandbox=sandbox, cores=cores, timeout_s=grant.timeout_s, tenant=grant.tenant)
            async with asyncio.timeout(grant.timeout_s + self.guard_s):
                verdict = await grader.grade(params, bench)
            return _Graded(verdict, encode_output(verdict.output, self.output_bytes))
        except TimeoutError:
            return _lost(f"no end {self.guard_s:g} s after its limit of {grant.timeout_s:g} s")
        except (ValueError, msgspec.MsgspecError) as error:
            return _Graded(Verdict(status="refused", reason=str(error)))
        except Exception as error:  # noqa: BLE001  # a grader's bug is our failure, never a verdict
            _log.exception("grader_crashed", action=grant.action, work=grant.work)
            return _lost(f"grader crashed: {type(error).__name__}")

    def _tell(self, grant: Granted, graded: _Graded | None, read_at: float, started: float) -> None:
        """`graded` None: cancelled."""
        shown, output = graded or _lost("")
        self.report(
            Finished(
                action=grant.action,
                node=self.node,
                incarnation=self.incarnation,
                epoch=grant.epoch,
                attempt=grant.attempt,
                stage=grant.stage,
                status="cancelled" if graded is None else shown.status,
                passed=shown.passed,
                score=shown.score,
                output=output,
                reason=shown.reason,
                queue_s=started - read_at,
                execution_s=self.clock.monotonic() - started,
                cpu_s=shown.cpu_s,
                peak_memory_bytes=shown.peak_memory_bytes,
            )
        )


def _held(grant: Granted, running_s: float, *, waits: bool) -> Held:
    return Held(
        action=grant.action,
        epoch=grant.epoch,
        attempt=grant.attempt,
        stage=grant.stage,
        units=grant.units,
        running_s=running_s,
        waits=waits,
    )


def _lost(reason: str) -> _Graded:
    return _Graded(Verdict(status="lost", reason=reason))
