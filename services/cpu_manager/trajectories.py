"""The book of environments: who has one on this node, and how each of them ends.

Laws:
  - an environment holds its memory from the start of the attempt that makes it until it is closed;
  - it ends once, for one reason, and is told as ended after the outcome of what acted in it;
  - one that never stood is not told as ended: the outcome of the attempt that was to make it says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from services.cpu_manager import metrics
from services.cpu_manager.acting import Acting
from services.cpu_manager.environments.protocol import Environment
from services.cpu_manager.holding import Holding
from services.cpu_manager.results import Done, lost, refused
from services.cpu_manager.stands import CLOSED, DIED, ENDED, NONE_HERE, Ending, Stand, age_s
from shared.messages.grants import Granted
from shared.messages.outcomes import EnvironmentEnded, EnvironmentMade, Stays
from shared.runtime import log
from shared.runtime.clock import Clock
from shared.runtime.units import Seconds

_log = log.get(__name__)

REMEMBERED = 4096
"""Ended environments whose reason is still known to actions that come too late."""
CLOSING_S = 60.0
"""Patience with closing one."""


@dataclass(slots=True)
class Trajectories:
    """Environments on one node. `start` and `leave` frame each attempt in one."""

    node: str
    incarnation: str
    acting: Acting
    memory: Holding
    tell: Callable[[EnvironmentEnded | EnvironmentMade], None]
    clock: Clock
    starts: Holding = field(default_factory=lambda: Holding(0, owned=0))
    """Environments that are being made. The leader keeps to the limit; here it is counted."""
    _stands: dict[str, Stand] = field(default_factory=dict)
    _at_work: dict[asyncio.Task[Done], Stand] = field(default_factory=dict)
    _closing: set[asyncio.Task[None]] = field(default_factory=set)
    _ended: dict[str, Ending] = field(default_factory=dict)
    """Trajectory -> why its environment has ended; the newest."""
    _timer: asyncio.TimerHandle | None = None
    """Rings when the first lifetime may be over; one for all."""
    _rings_at: Seconds = 0.0

    def __len__(self) -> int:
        return len(self._stands)

    def stays(self) -> list[Stays]:
        """Every environment that stands, is being made or is being closed."""
        return [stand.stays() for stand in self._stands.values()]

    def take_up(self, environments: Iterable[Environment]) -> None:
        """These outlived an earlier life of this manager. Their idle time begins anew, their lifetime goes on."""
        now = self.clock.monotonic()
        for environment in environments:
            stand = self._enter(Stand(environment.trajectory, environment.spec), now)
            self._stood(stand, environment, now - age_s(environment))
            _log.info("environment_taken_up", trajectory=stand.trajectory, image=stand.spec.image)

    def start(self, grant: Granted, cores: frozenset[int]) -> asyncio.Task[Done]:
        """Act in the trajectory's environment; it is made first where the grant says what it is and there is none."""
        stand = self._stands.get(grant.trajectory)
        if stand is None and grant.environment is not None:
            stand = self._enter(Stand(grant.trajectory, grant.environment), self.clock.monotonic())
        task = asyncio.create_task(self._act(grant, cores, stand), name=f"attempt {grant.action}")
        if stand is not None:
            stand.acting.add(task)
            self._at_work[task] = stand
        return task

    def leave(self, task: asyncio.Task[Done]) -> None:
        """The attempt is over; its outcome is told before anything else happens."""
        stand = self._at_work.pop(task, None)
        if stand is not None:
            stand.acting.discard(task)
            if not stand.acting:
                self._rest(stand)

    def stands(self, grant: Granted) -> bool:
        """False where this grant was to make an environment that is not there."""
        stand = self._stands.get(grant.trajectory)
        return grant.environment is None or (stand is not None and stand.environment is not None)

    def close(self, trajectory: str) -> None:
        """Its trainer has closed it: what acts there is cut. That it has ended is told in any case."""
        stand = self._stands.get(trajectory)
        if stand is None:
            self._say(trajectory, CLOSED)
        else:
            self._end(stand, CLOSED)

    def want(self, image: str) -> None:
        """Environments of this image will be asked for."""
        self.acting.runtimes.want(image)

    def images(self) -> frozenset[str]:
        """What environments can be made of here without a pull."""
        return self.acting.runtimes.images()

    def look(self) -> None:
        """End those that have died by themselves since they acted; tell which stand whose first action goes on."""
        for stand in list(self._stands.values()):
            if stand.environment is not None and not stand.told:
                stand.told = True
                if stand.acting:
                    self.tell(
                        EnvironmentMade(node=self.node, incarnation=self.incarnation, trajectory=stand.trajectory)
                    )
            if stand.environment is not None and not stand.environment.alive and not stand.acting:
                self._end(stand, DIED)

    def expire(self) -> None:
        """End those whose time is over, and ring again when the next one's may be."""
        now = self.clock.monotonic()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for stand in list(self._stands.values()):
            if stand.environment is not None and stand.ending is None:
                at, ending = stand.ends_at()
                if at <= now:
                    self._end(stand, ending)
                else:
                    self._ring(at, now)

    def end_all(self, reason: str) -> None:
        """The node stops: cut what acts, begin to close all there is. `closed` waits for it."""
        for stand in list(self._stands.values()):
            self._end(stand, Ending("stopped", reason))

    async def closed(self, within_s: Seconds) -> None:
        """Wait until what is being closed is closed and told; so long at most."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closing:
            _, left = await asyncio.wait(self._closing, timeout=within_s)
            if left:
                _log.warning("environments_left_behind", count=len(left))

    # ---- an attempt -------------------------------------------------------------------------------------------------

    async def _act(self, grant: Granted, cores: frozenset[int], stand: Stand | None) -> Done:
        if stand is None:
            return self._ended.get(grant.trajectory, NONE_HERE).done()
        try:
            async with stand.turn:
                return await self._in_turn(grant, cores, stand)
        except asyncio.CancelledError:
            ending = stand.ending
            if ending is None or ending.word == "closed" or stand.environment is None:
                raise
            return ending.done()  # its time was over, not its trainer's patience

    async def _in_turn(self, grant: Granted, cores: frozenset[int], stand: Stand) -> Done:
        if stand.ending is not None:
            return stand.ending.done()
        try:
            params = self.acting.params(grant)
        except ValueError as error:  # msgspec's are of this kind
            return refused(str(error))
        environment = stand.environment
        if environment is None:
            if self.memory.used > self.memory.exist:
                return lost(f"of the {self.memory.exist} MB for environments {stand.spec.memory_mb} are not free")
            made = await self.acting.make(stand.trajectory, stand.spec, cores)
            if isinstance(made, Done):
                return made
            environment = made
            self._stood(stand, made, self.clock.monotonic())
        done = await self.acting.act(grant, params, environment, cores)
        if not environment.alive:
            stand.die(done.reason if done.status == "lost" else "")
        return done

    # ---- from its beginning to its end ------------------------------------------------------------------------------

    def _enter(self, stand: Stand, now: Seconds) -> Stand:
        self._stands[stand.trajectory] = stand
        self.memory.use(stand.spec.memory_mb, now)
        self.starts.use(1, now)
        return stand

    def _stood(self, stand: Stand, environment: Environment, since: Seconds) -> None:
        now = self.clock.monotonic()
        stand.environment, stand.since, stand.rests_since = environment, since, now
        self.starts.use(-1, now)
        metrics.STANDING.inc()
        self._ring(stand.ends_at()[0], now)

    def _rest(self, stand: Stand) -> None:
        """Nothing acts in it any more."""
        now = self.clock.monotonic()
        stand.rests_since = now
        if stand.environment is not None and not stand.environment.alive:
            stand.die()
        if stand.ending is not None:
            self._begin_closing(stand)
        elif stand.environment is None:
            self._drop(stand)
        else:
            self._ring(stand.ends_at()[0], now)

    def _end(self, stand: Stand, ending: Ending) -> None:
        if stand.ending is None:
            stand.end(ending)
            if not stand.acting:
                self._begin_closing(stand)

    def _begin_closing(self, stand: Stand) -> None:
        if not stand.closing:  # what came too late leaves it as well
            stand.closing = True
            task = asyncio.create_task(self._close(stand), name=f"close {stand.trajectory}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _close(self, stand: Stand) -> None:
        ending = stand.ending
        assert ending is not None, "closed without a reason"
        if stand.environment is not None:
            try:
                async with asyncio.timeout(CLOSING_S):
                    await stand.environment.close()
            except Exception:  # noqa: BLE001  # it is no use to anybody any more, whatever is left of it
                _log.exception("environment_not_closed", trajectory=stand.trajectory, image=stand.spec.image)
            metrics.STANDING.dec()
            metrics.ENVIRONMENTS_ENDED.labels(ending.word).inc()
        self._drop(stand)
        self._remember(stand.trajectory, ending)
        if stand.environment is not None or ending.word == "closed":
            self._say(stand.trajectory, ending)

    def _drop(self, stand: Stand) -> None:
        del self._stands[stand.trajectory]
        now = self.clock.monotonic()
        self.memory.use(-stand.spec.memory_mb, now)
        if stand.environment is None:
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
        """Look for what has expired at this time, unless one looks before."""
        if self._timer is not None:
            if self._rings_at <= at:
                return
            self._timer.cancel()
        self._rings_at = at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self.expire)
