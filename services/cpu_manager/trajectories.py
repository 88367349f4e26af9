"""Registry of the environments on this node, with their attempts and their ends.

Laws:
  - an environment holds its memory from the start of the attempt that creates it until it is closed;
  - it ends once, for one reason; its end is reported after the outcomes of its attempts;
  - the end of an environment that was never created is not reported: the outcome of its attempt says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from services.cpu_manager import metrics
from services.cpu_manager.acting import Acting
from services.cpu_manager.environments.protocol import Environment
from services.cpu_manager.managed_environments import CLOSED, DIED, ENDED, NONE_HERE, Ending, ManagedEnvironment, age_s
from services.cpu_manager.resource_usage import ResourceUsage
from services.cpu_manager.results import Done, lost, refused
from shared.messages.grants import Granted
from shared.messages.outcomes import EnvironmentCreated, EnvironmentEnded, EnvironmentHeld
from shared.runtime import log
from shared.runtime.clock import Clock
from shared.runtime.units import Seconds

_log = log.get(__name__)

REMEMBERED = 4096
"""Ended environments whose reason is kept for actions that come too late."""
CLOSING_S = 60.0
"""Longest time for closing one environment, in seconds."""


@dataclass(slots=True)
class Trajectories:
    """Environments on one node. `start` and `leave` enclose each attempt."""

    node: str
    incarnation: str
    acting: Acting
    memory: ResourceUsage
    tell: Callable[[EnvironmentEnded | EnvironmentCreated], None]
    clock: Clock
    starts: ResourceUsage = field(default_factory=lambda: ResourceUsage(0, owned=0))
    """Environments that are being created. The leader enforces the limit; this node only counts them."""
    _managed: dict[str, ManagedEnvironment] = field(default_factory=dict)
    _at_work: dict[asyncio.Task[Done], ManagedEnvironment] = field(default_factory=dict)
    _closing: set[asyncio.Task[None]] = field(default_factory=set)
    _ended: dict[str, Ending] = field(default_factory=dict)
    """Trajectory -> why its environment ended; the newest `REMEMBERED`."""
    _timer: asyncio.TimerHandle | None = None
    """One timer for all environments, set to the earliest possible expiry."""
    _rings_at: Seconds = 0.0

    def __len__(self) -> int:
        return len(self._managed)

    def stays(self) -> list[EnvironmentHeld]:
        """Return what all environments hold: existing ones, and those that are being created or closed."""
        return [managed.stays() for managed in self._managed.values()]

    def adopt(self, environments: Iterable[Environment]) -> None:
        """Adopt environments of an earlier manager. Their idle time restarts; their lifetime continues."""
        now = self.clock.monotonic()
        for environment in environments:
            managed = self._enter(ManagedEnvironment(environment.trajectory, environment.spec), now)
            self._stood(managed, environment, now - age_s(environment))
            _log.info("environment_taken_up", trajectory=managed.trajectory, image=managed.spec.image)

    def start(self, grant: Granted, cores: frozenset[int]) -> asyncio.Task[Done]:
        """Act in the trajectory's environment. Create it first if there is none and the grant describes one."""
        managed = self._managed.get(grant.trajectory)
        if managed is None and grant.environment is not None:
            managed = self._enter(ManagedEnvironment(grant.trajectory, grant.environment), self.clock.monotonic())
        task = asyncio.create_task(self._act(grant, cores, managed), name=f"attempt {grant.action}")
        if managed is not None:
            managed.acting.add(task)
            self._at_work[task] = managed
        return task

    def leave(self, task: asyncio.Task[Done]) -> None:
        """Detach an ended attempt from its environment. Its outcome is reported before anything else happens."""
        managed = self._at_work.pop(task, None)
        if managed is not None:
            managed.acting.discard(task)
            if not managed.acting:
                self._rest(managed)

    def stands(self, grant: Granted) -> bool:
        """Return False if this grant was to create an environment and the environment does not exist."""
        managed = self._managed.get(grant.trajectory)
        return grant.environment is None or (managed is not None and managed.environment is not None)

    def close(self, trajectory: str) -> None:
        """Close the environment for its trainer: running attempts are cancelled. The end is reported in any case."""
        managed = self._managed.get(trajectory)
        if managed is None:
            self._say(trajectory, CLOSED)
        else:
            self._end(managed, CLOSED)

    def want(self, image: str) -> None:
        """Prepare for environments of this image."""
        self.acting.runtimes.want(image)

    def images(self) -> frozenset[str]:
        """Return the images of which environments can be created here without a pull."""
        return self.acting.runtimes.images()

    def look(self) -> None:
        """End idle environments that have died. Report new ones whose first action is still running."""
        for managed in list(self._managed.values()):
            if managed.environment is not None and not managed.told:
                managed.told = True
                if managed.acting:
                    self.tell(
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
        for managed in list(self._managed.values()):
            if managed.environment is not None and managed.ending is None:
                at, ending = managed.ends_at()
                if at <= now:
                    self._end(managed, ending)
                else:
                    self._ring(at, now)

    def end_all(self, reason: str) -> None:
        """End all environments because the node stops: cancel attempts, begin closing. `closed` waits for the end."""
        for managed in list(self._managed.values()):
            self._end(managed, Ending("stopped", reason))

    async def closed(self, within_s: Seconds) -> None:
        """Wait until closing environments are closed and reported; at most `within_s`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closing:
            _, left = await asyncio.wait(self._closing, timeout=within_s)
            if left:
                _log.warning("environments_left_behind", count=len(left))

    # ---- an attempt -------------------------------------------------------------------------------------------------

    async def _act(self, grant: Granted, cores: frozenset[int], managed: ManagedEnvironment | None) -> Done:
        if managed is None:
            return self._ended.get(grant.trajectory, NONE_HERE).done()
        try:
            async with managed.turn:
                return await self._in_turn(grant, cores, managed)
        except asyncio.CancelledError:
            ending = managed.ending
            if ending is None or ending.word == "closed" or managed.environment is None:
                raise
            return ending.done()  # its limits ended it, not its trainer

    async def _in_turn(self, grant: Granted, cores: frozenset[int], managed: ManagedEnvironment) -> Done:
        if managed.ending is not None:
            return managed.ending.done()
        try:
            params = self.acting.params(grant)
        except ValueError as error:  # msgspec's errors are ValueErrors
            return refused(str(error))
        environment = managed.environment
        if environment is None:
            if self.memory.used > self.memory.exist:
                return lost(f"of the {self.memory.exist} MB for environments {managed.spec.memory_mb} are not free")
            made = await self.acting.make(managed.trajectory, managed.spec, cores)
            if isinstance(made, Done):
                return made
            environment = made
            self._stood(managed, made, self.clock.monotonic())
        done = await self.acting.act(grant, params, environment, cores)
        if not environment.alive:
            managed.die(done.reason if done.status == "lost" else "")
        return done

    # ---- from its beginning to its end ------------------------------------------------------------------------------

    def _enter(self, managed: ManagedEnvironment, now: Seconds) -> ManagedEnvironment:
        self._managed[managed.trajectory] = managed
        self.memory.use(managed.spec.memory_mb, now)
        self.starts.use(1, now)
        return managed

    def _stood(self, managed: ManagedEnvironment, environment: Environment, since: Seconds) -> None:
        now = self.clock.monotonic()
        managed.environment, managed.since, managed.rests_since = environment, since, now
        self.starts.use(-1, now)
        metrics.STANDING.inc()
        self._ring(managed.ends_at()[0], now)

    def _rest(self, managed: ManagedEnvironment) -> None:
        """Update an environment without running attempts: close it if it has ended or died, else set its timer."""
        now = self.clock.monotonic()
        managed.rests_since = now
        if managed.environment is not None and not managed.environment.alive:
            managed.die()
        if managed.ending is not None:
            self._begin_closing(managed)
        elif managed.environment is None:
            self._drop(managed)
        else:
            self._ring(managed.ends_at()[0], now)

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
            except Exception:  # noqa: BLE001  # nobody needs it any more, whatever is left of it
                _log.exception("environment_not_closed", trajectory=managed.trajectory, image=managed.spec.image)
            metrics.STANDING.dec()
            metrics.ENVIRONMENTS_ENDED.labels(ending.word).inc()
        self._drop(managed)
        self._remember(managed.trajectory, ending)
        if managed.environment is not None or ending.word == "closed":
            self._say(managed.trajectory, ending)

    def _drop(self, managed: ManagedEnvironment) -> None:
        del self._managed[managed.trajectory]
        now = self.clock.monotonic()
        self.memory.use(-managed.spec.memory_mb, now)
        if managed.environment is None:
            self.starts.use(-1, now)

    def _remember(self, trajectory: str, ending: Ending) -> None:
        self._ended[trajectory] = ending
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def _say(self, trajectory: str, ending: Ending) -> None:
        self.tell(
            EnvironmentEnded(
                node=self.node,
                incarnation=self.incarnation,
                trajectory=trajectory,
                ended=ENDED[ending.word],
                reason=ending.reason,
            )
        )

    def _ring(self, at: Seconds, now: Seconds) -> None:
        """Set the timer to this time, unless it is already set to an earlier one."""
        if self._timer is not None:
            if self._rings_at <= at:
                return
            self._timer.cancel()
        self._rings_at = at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self.expire)
