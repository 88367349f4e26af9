"""RouterLeadership of the routers: one replica admits the calls of all, the others report theirs to it.

A new leader reads workers and pins, announces itself, and waits until every replica that is alive has reported its
calls in flight. Until then it admits nothing, so that no worker gets more than its cap. A leader's end breaks no
answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from redis.asyncio import Redis

from services.trajectory_router.admission import Admission
from services.trajectory_router.following import FollowerTerm
from services.trajectory_router.leading import LeaderTerm
from services.trajectory_router.metrics import LEADING
from services.trajectory_router.settings import TrajectoryRouterSettings
from services.trajectory_router.workers import Workers, changes_of
from shared.bus import routers, streams
from shared.bus import workers as stored
from shared.bus.connection import TRANSIENT, ValkeyClock
from shared.bus.keys import Role
from shared.bus.lease import Lease, read_epoch
from shared.bus.tail import Tail
from shared.messages.routing import (
    ROUTING,
    CallsDecided,
    CallsReported,
    ModelTrajectoryClosed,
    RouterLeads,
    WorkersChanged,
    routed_name,
)
from shared.policy.routing.model import (
    CallArrived,
    CallRestored,
    CanaryAnswered,
    PinRestored,
    ReplicaLost,
    Stimulus,
    TrajectoryEnded,
)
from shared.policy.routing.router import Router
from shared.runtime import log
from shared.runtime.units import Epoch, Seconds

_log = log.get(__name__)

PRESENCE_S: Final[Seconds] = 6.0
"""Lifetime of a replica's presence."""
RENEW_S: Final[Seconds] = 2.0
"""Interval of renewals. A replica that the leader finds absent twice in a row has ended."""
GATHER_S: Final[Seconds] = 2.0
"""Longest time that a new leader waits for the reports of other replicas."""
VIEWS_S: Final[Seconds] = 1.0

MakeRouter = Callable[[], Router]
Canaries = Callable[[str, Callable[[CanaryAnswered], None]], None]
"""Calls a worker for one token in the background: (worker, receiver of the result)."""


class RouterLeadership:
    """Leads or follows, for as long as the service runs."""

    def __init__(
        self,
        redis: Redis,
        reader: Redis,
        admission: Admission,
        workers: Workers,
        make_router: MakeRouter,
        canaries: Canaries,
        settings: TrajectoryRouterSettings,
    ) -> None:
        self._redis = redis
        self._url = settings.address()
        self._reader = reader
        self._admission = admission
        self._workers = workers
        self._make_router = make_router
        self._canaries = canaries
        self._lease = Lease(redis, Role.ROUTER, settings.lease_s)
        self._lease_s = settings.lease_s
        self._leading: LeaderTerm | None = None
        self._gathering: set[str] = set()
        """Replicas whose report a new leader still needs."""
        self._following: FollowerTerm | None = None
        self._task: asyncio.Task[None] | None = None
        """Loop of the present term."""
        self._epoch: Epoch = 0
        """Newest term that is known."""
        self._stopping = False

    @property
    def ready(self) -> bool:
        """Calls are admitted."""
        return self._admission.term is not None

    @property
    def leading(self) -> LeaderTerm | None:
        """The term of the leader, if this replica is it."""
        return self._leading

    async def run(self) -> None:
        """Loop: renew the lease, or take it when it is free."""
        while not self._stopping:
            try:
                epoch = await self._lease.hold()
                if epoch and (self._leading is None or self._leading.epoch != epoch):
                    await self._take_over(epoch)
                elif not epoch:
                    await self._follow()
            except TRANSIENT as error:
                _log.warning("valkey_unavailable", what="holding the lease", error=str(error))
            await asyncio.sleep(self._lease_s / 3 if self._leading is not None else min(0.25, self._lease_s / 3))

    async def listen(self) -> None:
        """Loop: read the messages of the other replicas."""
        last = await streams.last_id(self._redis, ROUTING)
        tail = Tail(self._reader, {ROUTING: last}, block_s=1.0)
        async for entries in tail.batches():
            for entry in entries:
                await self._read(entry.message)

    async def refresh_workers(self) -> None:
        """Read the workers. As the leader, apply what has changed."""
        changes = await self._workers.refresh(self._redis)
        if self._leading is not None:
            self._leading.put(*changes)

    async def watch_replicas(self) -> None:
        """Loop: renew this replica's presence. As the leader, end the calls of replicas that are gone."""
        missed: set[str] = set()
        while True:
            try:
                await routers.renew(self._redis, self._admission.replica, self._url, PRESENCE_S)
                await self.refresh_workers()  # a message may be lost when the stream is trimmed
                leading = self._leading
                if leading is not None:
                    absent = leading.router.replicas() - (await routers.present(self._redis)).keys()
                    for name in absent & missed:
                        _log.warning("replica_lost", replica=name)
                        leading.put(ReplicaLost(name))
                    missed = absent
            except TRANSIENT as error:
                _log.warning("valkey_unavailable", what="presence of replicas", error=str(error))
            await asyncio.sleep(RENEW_S)

    async def publish_views(self) -> None:
        """Loop: as the leader, store what the workers do."""
        while True:
            await asyncio.sleep(VIEWS_S)
            if self._leading is not None:
                try:
                    await self._leading.publish_views()
                except TRANSIENT as error:
                    _log.warning("valkey_unavailable", what="views of workers", error=str(error))

    async def stop(self) -> None:
        """Release the lease, so that another replica leads at once."""
        self._stopping = True
        if self._leading is not None:
            try:
                async with asyncio.timeout(1.0):
                    await self._lease.release()
            except (*TRANSIENT, TimeoutError) as error:
                _log.warning("lease_release_failed", error=str(error))
        self._end_term()

    # ---- terms -------------------------------------------------------------------------------------------------

    async def _take_over(self, epoch: Epoch) -> None:
        self._end_term()
        self._epoch = epoch
        clock = await ValkeyClock.measure(self._redis)
        self._gathering = await self._others()
        pins = await stored.read_pins(self._redis)
        await self._workers.refresh(self._redis)
        # No await from here to `self._leading`: a change of workers that is read meanwhile would reach no term.
        now = clock.unix()
        known: list[Stimulus] = [
            change for worker in self._workers.by_id.values() for change in changes_of(None, worker)
        ]
        known += [PinRestored(trajectory, worker, now) for trajectory, worker in pins.items()]
        term = LeaderTerm(epoch, self._make_router(), self._admission, self._redis, clock, self._canary)
        term.put(*known, *(CallRestored(call, worker) for call, worker in self._admission.in_flight()))
        self._leading = term
        try:
            await stored.publish(self._redis, RouterLeads(epoch=epoch, replica=self._admission.replica))
        except BaseException:
            self._end_term()  # the next round takes over again
            raise
        self._task = asyncio.create_task(term.run(), name="decisions")
        if self._gathering:
            asyncio.get_running_loop().call_later(GATHER_S, self._admit, term)
        else:
            self._admit(term)
        LEADING.set(1)
        _log.info("leading", epoch=epoch, workers=len(self._workers.by_id), pins=len(pins))

    async def _others(self) -> set[str]:
        """Other replicas that are alive."""
        return set(await routers.present(self._redis)) - {self._admission.replica}

    def _admit(self, term: LeaderTerm) -> None:
        """Begin to admit calls: first those that wait here."""
        if term is self._leading and self._admission.term is not term:
            self._gathering = set()
            self._admission.term = term
            term.put(*(CallArrived(call) for call in list(self._admission.waiting())))

    def _canary(self, worker: str) -> None:
        term = self._leading

        def answered(result: CanaryAnswered) -> None:
            if term is not None and term is self._leading:
                term.put(result)

        self._canaries(worker, answered)

    async def _follow(self) -> None:
        """Another replica has the lease. Report to it, unless that has begun."""
        if self._leading is not None:
            _log.warning("deposed", epoch=self._epoch)
            self._end_term()
        if self._following is None:
            self._report_to(await read_epoch(self._redis, Role.ROUTER))

    def _report_to(self, epoch: Epoch) -> None:
        self._end_term()
        self._epoch = epoch
        self._following = term = FollowerTerm(epoch, self._admission, self._redis)
        self._admission.term = term
        self._task = asyncio.create_task(term.run(), name="reports")

    def _end_term(self) -> None:
        if self._leading is not None:
            self._leading.close()
            LEADING.set(0)
        if self._task is not None:
            self._task.cancel()
        self._leading = self._following = self._task = self._admission.term = None

    # ---- messages ----------------------------------------------------------------------------------------------

    async def _read(self, message: object) -> None:
        match message:
            case RouterLeads(epoch=epoch, replica=replica) if replica != self._admission.replica:
                if epoch > self._epoch or (epoch == self._epoch and self._following is None):
                    self._report_to(epoch)
            case CallsDecided() if self._following is not None and message.epoch == self._following.epoch:
                self._following.decide(message)
            case CallsReported() if self._leading is not None and message.epoch == self._leading.epoch:
                self._leading.report(message)
                if message.whole:
                    self._gathering.discard(message.replica)
                    if not self._gathering:
                        self._admit(self._leading)
            case WorkersChanged():
                try:
                    await self.refresh_workers()
                except TRANSIENT as error:  # `watch_replicas` reads them again
                    _log.warning("valkey_unavailable", what="workers", error=str(error))
            case ModelTrajectoryClosed(trajectory=trajectory, tenant=tenant):
                name = routed_name(tenant, trajectory)
                self._admission.close_trajectory(name)
                if self._leading is not None:
                    self._leading.put(TrajectoryEnded(name))
            case _:
                pass
