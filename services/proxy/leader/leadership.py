"""Leader election by lease: exactly one replica dispatches, and one that has lost the lease writes nothing more."""

from __future__ import annotations

import asyncio
import math

from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.proxy.leader.backlog import publish_backlog
from services.proxy.leader.direct_outcomes import DirectOutcomes
from services.proxy.leader.dispatching import DispatchFailed, Suspects
from services.proxy.leader.interpreter import Interpreter
from services.proxy.leader.leader import Leader
from services.proxy.leader.learned_amounts import store_learned_amounts
from services.proxy.leader.maintenance import Maintenance
from services.proxy.leader.recent_calls import RecentCalls
from services.proxy.leader.recording import DispatchRecorder
from services.proxy.leader.replicas import cancel_held
from services.proxy.leader.takeover import take_over
from services.proxy.leader.tenant_weights import TenantWeights
from services.proxy.metrics import (
    EPOCH,
    NODES,
    PARKED_NOW,
    QUEUED,
    QUOTA_HELD,
    QUOTA_WAITING,
    STUCK,
    UNANSWERED,
    UPSTREAM,
)
from services.proxy.records.intake import Intake
from services.proxy.records.lease_waiters import LeaseWaiters
from services.proxy.records.waiters import Waiters
from services.proxy.settings import ProxySettings
from shared.bus import streams
from shared.bus.connection import TRANSIENT, ValkeyClock
from shared.bus.functions import Answering
from shared.bus.keys import Role
from shared.bus.lease import Lease, is_held
from shared.bus.suspects import count_failed_term, read_failed_terms
from shared.bus.tail import Tail
from shared.kinds.registry import all_kinds
from shared.messages.actions import ActionSubmitted
from shared.messages.leases import LeasesGranted
from shared.messages.outcomes import ANSWERED
from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import StoreStalled
from shared.runtime import log
from shared.runtime.background import Background
from shared.runtime.units import Epoch, Seconds

_log = log.get(__name__)

FAILED_PAUSE_S = 1.0
"""Pause after a term in which the dispatcher has failed. Other replicas campaign in it."""
LOOKS = 8
"""How often a follower looks, in the time of a lease, whether it is free."""


class Leadership:
    """Campaigns for the lease; leads while it holds it, follows while another replica does."""

    def __init__(
        self,
        redis: Redis,
        reader: Redis,
        waiters: Waiters,
        settings: ProxySettings,
        background: Background,
        leases: LeaseWaiters | None = None,
        intake: Intake | None = None,
        outcomes: Redis | None = None,
    ) -> None:
        """`outcomes`: a client that serves nothing but direct outcomes; None: they are not received."""
        self._redis = redis
        self._outcomes = outcomes
        self._leases = LeaseWaiters(redis) if leases is None else leases
        self._intake = intake
        self._reader = reader
        self._waiters = waiters
        self._settings = settings
        self._background = background
        self._lease = Lease(redis, Role.DISPATCHER, settings.lease_s)
        self._tail: Tail | None = None
        self._stopping = False
        self.epoch: Epoch = 0
        """Epoch of the term that this replica leads; 0 while it follows."""

    async def run(self) -> None:
        """Lead or follow, forever. Every end of a term leads back to the campaign.

        Raises:
            DispatchFailed: the dispatcher has failed, and nothing is known that a later term could leave out.
        """
        while not self._stopping:
            try:
                epoch = await self._lease.hold()
                await (self._lead(epoch) if epoch else self._follow())
            except TRANSIENT as error:
                _log.warning("valkey_unavailable", what="campaigning", error=str(error))
                await asyncio.sleep(0.2)
            except DispatchFailed as failed:
                if not failed.suspects or not await self._count(failed.suspects):
                    raise
                await asyncio.sleep(FAILED_PAUSE_S)

    async def stop(self) -> None:
        """Release the lease, so that the next leader need not wait until it expires."""
        self._stopping = True
        if self._tail is not None:
            self._tail.stopping = True
        if self.epoch:
            try:
                async with asyncio.timeout(1.0):
                    await self._lease.release()
            except (*TRANSIENT, TimeoutError) as error:
                _log.warning("lease_release_failed", error=str(error))

    async def _count(self, suspects: tuple[str, ...]) -> bool:
        """Count a failed term for the actions that it named, and release the lease. False: they cannot be counted."""
        try:
            async with asyncio.timeout(2.0):
                await count_failed_term(self._redis, suspects)
                await self._lease.release()
        except (RedisError, *TRANSIENT, TimeoutError) as error:
            _log.warning("failed_term_not_counted", error=str(error))
            return False
        return True

    # ---- leading -----------------------------------------------------------------------------------------------

    async def _lead(self, epoch: Epoch) -> None:
        clock = await ValkeyClock.measure(self._redis)
        settings = self._settings
        interpreter = Interpreter(
            self._redis, epoch, self._answered, keep_batch_s=settings.keep_batch_s, leased=self._leases.granted,
            max_journal=settings.max_journal, most_kept=int if self._intake is None else self._intake.most_kept,
        )  # fmt: skip
        config = DispatchConfig(max_attempts=settings.max_attempts, node_lost_s=settings.node_lost_s)
        dispatcher = Dispatcher(config, all_kinds().resources)
        recorder = self._recorder(epoch, dispatcher)
        suspects = Suspects(await read_failed_terms(self._redis))
        leader = Leader(epoch, dispatcher, interpreter, clock, self._keep_s, recorder, suspects)
        weights = TenantWeights(self._redis)
        tasks = [asyncio.create_task(self._renew(epoch, interpreter), name="lease")]
        if isinstance(recorder, DispatchRecorder):
            tasks.append(asyncio.create_task(recorder.run(), name="stimulus log"))
        try:
            await self._check_planner(leader)
            await weights.refresh(leader)
            self._tail = tail = await take_over(self._redis, self._reader, leader)
            tail.stopping, leader.local_leases.tail = self._stopping, tail
            tail.returned = interpreter.flushing.ended_late = lambda lasted_s: leader.handle(StoreStalled(lasted_s))
            _log.info("leading", epoch=epoch)
            self.epoch = epoch
            EPOCH.set(epoch)
            maintenance = Maintenance(self._redis, leader, interpreter, tail, weights, settings, self._check_planner)
            tasks += [
                asyncio.create_task(interpreter.run(), name="interpreter"),
                asyncio.create_task(leader.wakeup.run(leader.tick, lambda: _last_read(leader, tail)), name="wake-ups"),
                asyncio.create_task(maintenance.run(), name="maintenance"),
                asyncio.create_task(cancel_held(self._redis, leader, lambda: interpreter.deposed), name="held calls"),
                asyncio.create_task(leader.leases.expire(self._redis), name="leases"),
                asyncio.create_task(publish_backlog(self._redis, epoch, dispatcher, clock), name="backlog"),
                asyncio.create_task(store_learned_amounts(self._redis, epoch, dispatcher), name="learned amounts"),
            ]
            tasks += self._direct_outcomes(leader, interpreter, tail)
            self._lend(leader)
            leading = asyncio.create_task(leader.run(tail), name="leader")
            done, _ = await asyncio.wait({leading, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            tail.stopping = True
            await _cancelled(leading)
            for task in done:
                task.result()  # a crash of the leader is a crash of the service
        finally:
            self.epoch = 0
            EPOCH.set(0)
            UNANSWERED.set(0)
            PARKED_NOW.set(0)
            for gauge in (NODES, QUEUED, STUCK, QUOTA_WAITING, QUOTA_HELD, UPSTREAM):
                gauge.clear()  # the next leader's values count
            interpreter.deposed = True
            self._lend(None)
            for task in tasks:
                await _cancelled(task)
            leader.local_actions.close()
            for action in leader.local_leases.close():
                self._leases.cancel(action)
            if isinstance(recorder, DispatchRecorder):
                recorder.close()
            _log.info("leadership_ended", epoch=epoch)

    def _direct_outcomes(self, leader: Leader, interpreter: Interpreter, tail: Tail) -> list[asyncio.Task[None]]:
        if self._outcomes is None:
            return []
        direct = DirectOutcomes(leader, self._redis, self._outcomes)
        interpreter.stored, tail.ignores = direct.stored, direct.repeats
        return [
            asyncio.create_task(direct.follow(), name="channel of outcomes"),
            asyncio.create_task(direct.run(), name="direct outcomes"),
        ]

    def _lend(self, leader: Leader | None) -> None:
        """Set the leader that decides about this replica's own calls; None: this replica does not lead."""
        self._leases.leader = None if leader is None else leader.local_leases
        if self._intake is not None:
            self._intake.leader = None if leader is None else leader.local_actions

    def _recorder(self, epoch: Epoch, dispatcher: Dispatcher) -> DispatchRecorder | RecentCalls | None:
        """Return a recorder; None if the settings name a folder that cannot be written."""
        settings = self._settings
        most_bytes, folder = settings.stimulus_log_bytes, settings.stimulus_logs
        if folder is None:
            folder = settings.treadle.home / "log" if settings.treadle.home is not None else None
            return RecentCalls(folder, epoch, dispatcher)
        try:
            return DispatchRecorder(folder, epoch, dispatcher, most_bytes=most_bytes)
        except OSError as error:
            _log.warning("stimulus_log_failed", path=str(settings.stimulus_logs), error=str(error))
            return None

    async def _renew(self, epoch: Epoch, interpreter: Interpreter) -> None:
        """Renew the lease three times per lease duration, from the start of the takeover: that may outlast the
        lease.
        """
        while not interpreter.deposed:
            await asyncio.sleep(self._settings.lease_s / 3)
            try:
                if await self._lease.hold() != epoch:
                    interpreter.deposed = True
            except TRANSIENT as error:
                _log.warning("valkey_unavailable", what="renewing the lease", error=str(error))

    async def _check_planner(self, leader: Leader) -> None:
        leader.planned(await is_held(self._redis, Role.PLANNER))

    def _keep_s(self, submitted: ActionSubmitted) -> int:
        """Seconds for which an answer outside a batch is kept.

        The time is short if the caller is connected and has no request_id with which it could repeat the request.
        Otherwise answers that were delivered long ago would fill the memory of a busy mesh. Actions in trajectories
        usually have a request_id; the time of these is shortened too.
        """
        settings = self._settings
        if not self._waiters.awaits(submitted.action):
            return round(settings.keep_action_s)
        if not submitted.request:
            return round(settings.keep_delivered_s)
        return round(settings.keep_repeatable_s if submitted.trajectory else settings.keep_action_s)

    def _answered(self, answering: Answering, counts: bool) -> None:
        if counts:
            self._waiters.resolve(answering.action, answering.answer)
            self._leases.answered(answering.action, answering.answer)
        else:
            self._background.start(self._waiters.look_up([answering.action]), name="look up an earlier answer")
        if answering.batch:
            self._waiters.wake([answering.batch])

    # ---- following ---------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Wake this replica's waiters as the leader publishes answers, until the lease is free."""
        self._tail = Tail(self._reader, {ANSWERED: await streams.last_id(self._redis, ANSWERED)}, block_s=0.5)
        await self._waiters.look_up(self._waiters.waited_for())
        await self._leases.look_up(self._leases.waited_for())
        loop = asyncio.get_running_loop()
        look = loop.time()
        async for entries in self._tail.batches():
            for entry in entries:
                if isinstance(entry.message, LeasesGranted):
                    self._leases.granted(entry.message.leases)
                    continue
                await self._waiters.look_up(entry.message.actions)
                await self._leases.look_up(entry.message.actions)
                self._waiters.wake(entry.message.batches)
            if loop.time() >= look:
                look = loop.time() + self._settings.lease_s / LOOKS
                if await self._lease.is_free():
                    return


def _last_read(leader: Leader, tail: Tail) -> Seconds:
    """Return the time of the last read; none while limits may have changed that cannot be read."""
    return -math.inf if tail.away else leader.last_read


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task until it has ended (a client may swallow a cancel that races a reply)."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.5)
