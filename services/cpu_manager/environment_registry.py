"""Registry of the environments on this node, with their attempts and their ends.

Laws:
  - an environment holds its memory from the start of the attempt that creates it until it is closed;
  - it ends once, for one reason; its end is reported after the outcomes of its attempts;
  - the end of an environment that was never created is not reported: the outcome of its attempt reports that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from services.cpu_manager import metrics
from services.cpu_manager.acting import Acting
from services.cpu_manager.environments.protocol import Environment
from services.cpu_manager.managed_environments import (
    CLOSED,
    DIED,
    ENDED,
    NONE_HERE,
    Ending,
    ManagedEnvironment,
    UnparkedAction,
    age_s,
    environment_units,
)
from shared.messages.grants import Granted
from shared.messages.outcomes import EnvironmentCreated, EnvironmentEnded, EnvironmentHeld
from shared.node.resource_usage import ResourceUsage
from shared.policy.model.results import AttemptResult, lost, refused
from shared.runtime import log
from shared.runtime.clock import Clock
from shared.runtime.units import Seconds

_log = log.get(__name__)

REMEMBERED = 4096
"""Ended environments whose reason is kept for actions that come too late."""
CLOSING_S = 60.0
"""Longest time for closing one environment, in seconds."""


@dataclass(slots=True)
class EnvironmentRegistry:
    """Environments on one node (`shared.node.executor.Environments`). `start` and `detach` enclose each attempt."""

    node: str
    incarnation: str
    acting: Acting
    memory: ResourceUsage
    report: Callable[[EnvironmentEnded | EnvironmentCreated], None]
    clock: Clock
    starts: ResourceUsage = field(default_factory=lambda: ResourceUsage(0))
    """Environments that are being created. The leader enforces the limit; this node only counts them."""
    _environments: dict[str, ManagedEnvironment] = field(default_factory=dict)
    _attempts: dict[asyncio.Task[AttemptResult], ManagedEnvironment] = field(default_factory=dict)
    _closing: set[asyncio.Task[None]] = field(default_factory=set)
    _ended: dict[str, Ending] = field(default_factory=dict)
    """Trajectory -> why its environment ended; the newest `REMEMBERED`."""
    _timer: asyncio.TimerHandle | None = None
    """One timer for all environments, set to the earliest possible expiry."""
    _timer_at: Seconds = 0.0

    def __len__(self) -> int:
        return len(self._environments)

    def held(self, waiting: Iterable[Granted] = ()) -> list[EnvironmentHeld]:
        """Return what all environments hold: existing ones, and those that are being created or closed; also those that
        waiting grants will create.
        """
        planned = {
            grant.trajectory: environment_units(grant.trajectory, grant.environment, creating=True)
            for grant in waiting
            if grant.environment is not None
        }
        existing = {name: managed.held() for name, managed in self._environments.items()}
        return list((planned | existing).values())

    def adopt(self, environments: Iterable[Environment]) -> None:
        """Adopt environments of an earlier manager. Their idle time restarts; their lifetime continues."""
        now = self.clock.monotonic()
        for environment in environments:
            managed = self._add(ManagedEnvironment(environment.trajectory, environment.spec), now)
            self._created(managed, environment, now - age_s(environment))
            _log.info("environment_adopted", trajectory=managed.trajectory, image=managed.spec.image)

    def start(self, grant: Granted, cores: frozenset[int]) -> asyncio.Task[AttemptResult]:
        """Act in the trajectory's environment. Create it first if there is none and the grant describes one."""
        managed = self._environments.get(grant.trajectory)
        if managed is None and grant.environment is not None:
            managed = self._add(ManagedEnvironment(grant.trajectory, grant.environment), self.clock.monotonic())
        task = asyncio.create_task(self._act(grant, cores, managed), name=f"attempt {grant.action}")
        if managed is not None:
            managed.acting.add(task)
            self._attempts[task] = managed
        return task

    async def park(self, task: asyncio.Task[AttemptResult]) -> bool:
        """Freeze the attempt's environment when it acts. False: it ends, or its agent cannot do that."""
        managed = self._attempts.get(task)
        return managed is not None and await managed.park(task)

    async def resume(self, task: asyncio.Task[AttemptResult], cores: frozenset[int]) -> None:
        """Continue a parked attempt on these cores."""
        managed = self._attempts.get(task)
        if managed is not None:
            await managed.resume(task, cores)

    def acting_in(self, trajectory: str) -> UnparkedAction | None:
        """Return the action that runs in this environment now; None: there is none, or it is parked."""
        managed = self._environments.get(trajectory)
        if managed is None or managed.grant is None or managed.environment is None or managed.parked:
            return None
        return UnparkedAction(managed.grant, managed.environment, managed.thaws)

    def detach(self, task: asyncio.Task[AttemptResult]) -> None:
        """Detach an ended attempt from its environment. Its outcome is reported before anything else happens."""
        managed = self._attempts.pop(task, None)
        if managed is not None:
            managed.acting.discard(task)
            if not managed.acting:
                self._on_idle(managed)

    def exists(self, grant: Granted) -> bool:
        """Return False if this grant was to create an environment and the environment does not exist."""
        managed = self._environments.get(grant.trajectory)
        return grant.environment is None or (managed is not None and managed.environment is not None)

    def close(self, trajectory: str) -> None:
        """Close the environment for its trainer: running attempts are cancelled. The end is reported in any case."""
        managed = self._environments.get(trajectory)
        if managed is None:
            self._report_end(trajectory, CLOSED)
        else:
            self._end(managed, CLOSED)

    def prepare(self, image: str) -> None:
        """Prepare for environments of this image."""
        self.acting.runtimes.prepare(image)

    def images(self) -> frozenset[str]:
        """Return the images of which environments can be created here without a pull."""
        return self.acting.runtimes.images()

    def check(self) -> None:
        """End idle environments that have died. Report new ones whose first action is still running."""
        for managed in list(self._environments.values()):
            if managed.environment is not None and not managed.reported:
                managed.reported = True
                if managed.acting:
                    self.report(
                        EnvironmentCreated(node=self.node, incarnation=self.incarnation, trajectory=managed.trajectory)
                    )
            if managed.environment is not None and not managed.environment.alive and not managed.acting:
                self._end(managed, DIED)

    def expire(self) -> None:
        """End expired environments, and set the timer for the next expiry."""
        now = self.clock.monotonic()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for managed in list(self._environments.values()):
            if managed.environment is not None and managed.ending is None:
                at, ending = managed.ends_at()
                if at <= now:
                    self._end(managed, ending)
                else:
                    self._set_timer(at, now)

    def end_all(self, reason: str) -> None:
        """End all environments because the node stops: cancel attempts, begin closing. `closed` waits for the end."""
        for managed in list(self._environments.values()):
            self._end(managed, Ending("stopped", reason))

    async def closed(self, within_s: Seconds) -> None:
        """Wait until closing environments are closed and reported; at most `within_s`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closing:
            _, left = await asyncio.wait(self._closing, timeout=within_s)
            if left:
                _log.warning("environments_not_closed", count=len(left))

    # ---- an attempt -------------------------------------------------------------------------------------------------

    async def _act(self, grant: Granted, cores: frozenset[int], managed: ManagedEnvironment | None) -> AttemptResult:
        if managed is None:
            return self._ended.get(grant.trajectory, NONE_HERE).result()
        try:
            async with managed.lock:
                return await self._in_turn(grant, cores, managed)
        except asyncio.CancelledError:
            ending = managed.ending
            if ending is None or ending.reason_code == "closed" or managed.environment is None:
                raise
            return ending.result()  # its limits ended it, not its trainer

    async def _in_turn(self, grant: Granted, cores: frozenset[int], managed: ManagedEnvironment) -> AttemptResult:
        if managed.ending is not None:
            return managed.ending.result()
        try:
            params = self.acting.params(grant)
        except ValueError as error:  # msgspec's errors are ValueErrors
            return refused(str(error))
        environment = managed.environment
        if environment is None:
            if self.memory.used > self.memory.exist:
                return lost(f"{managed.spec.memory_mb} of the {self.memory.exist} MB for environments are not free")
            created = await self.acting.create(managed.trajectory, managed.spec, cores)
            if isinstance(created, AttemptResult):
                return created
            environment = created
            self._created(managed, created, self.clock.monotonic())
        with managed.turn(grant, self.acting.limit(grant)) as limit:
            result = await self.acting.act(grant, params, environment, cores, limit)
        if not environment.alive:
            managed.die(result.reason if result.status == "lost" else "")
        return result

    # ---- lifecycle --------------------------------------------------------------------------------------------------

    def _add(self, managed: ManagedEnvironment, now: Seconds) -> ManagedEnvironment:
        self._environments[managed.trajectory] = managed
        self.memory.use(managed.spec.memory_mb, now)
        self.starts.use(1, now)
        return managed

    def _created(self, managed: ManagedEnvironment, environment: Environment, since: Seconds) -> None:
        now = self.clock.monotonic()
        managed.environment, managed.since, managed.idle_since = environment, since, now
        self.starts.use(-1, now)
        metrics.ENVIRONMENTS.inc()
        self._set_timer(managed.ends_at()[0], now)

    def _on_idle(self, managed: ManagedEnvironment) -> None:
        """Update an environment without running attempts: close it if it has ended or died, else set its timer."""
        now = self.clock.monotonic()
        managed.idle_since = now
        if managed.environment is not None and not managed.environment.alive:
            managed.die()
        if managed.ending is not None:
            self._begin_closing(managed)
        elif managed.environment is None:
            self._remove(managed)
        else:
            self._set_timer(managed.ends_at()[0], now)

    def _end(self, managed: ManagedEnvironment, ending: Ending) -> None:
        if managed.ending is None:
            managed.end(ending)
            if not managed.acting:
                self._begin_closing(managed)

    def _begin_closing(self, managed: ManagedEnvironment) -> None:
        if not managed.closing:  # an attempt that came too late passes here as well
            managed.closing = True
            task = asyncio.create_task(self._close(managed), name=f"close {managed.trajectory}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _close(self, managed: ManagedEnvironment) -> None:
        ending = managed.ending
        assert ending is not None, "closed without a reason"
        if managed.environment is not None:
            try:
                async with asyncio.timeout(CLOSING_S):
                    await managed.environment.close()
            except Exception:  # noqa: BLE001  # its trajectory has ended in any case
                _log.exception("environment_not_closed", trajectory=managed.trajectory, image=managed.spec.image)
            metrics.ENVIRONMENTS.dec()
            metrics.ENVIRONMENTS_ENDED.labels(ending.reason_code).inc()
        self._remove(managed)
        self._remember(managed.trajectory, ending)
        if managed.environment is not None or ending.reason_code == "closed":
            self._report_end(managed.trajectory, ending)

    def _remove(self, managed: ManagedEnvironment) -> None:
        del self._environments[managed.trajectory]
        now = self.clock.monotonic()
        self.memory.use(-managed.spec.memory_mb, now)
        if managed.environment is None:
            self.starts.use(-1, now)

    def _remember(self, trajectory: str, ending: Ending) -> None:
        self._ended[trajectory] = ending
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def _report_end(self, trajectory: str, ending: Ending) -> None:
        self.report(
            EnvironmentEnded(
                node=self.node,
                incarnation=self.incarnation,
                trajectory=trajectory,
                ended=ENDED[ending.reason_code],
                reason=ending.reason,
            )
        )

    def _set_timer(self, at: Seconds, now: Seconds) -> None:
        """Set the timer to this time, unless it is already set to an earlier one."""
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self.expire)
