"""Agent of one node: publishes its hello and heartbeats, executes the leader's messages, reports its inventory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from shared.bus.connection import TRANSIENT, with_retries
from shared.bus.nodes import publish_bye, publish_heartbeat, publish_hello
from shared.bus.streams import trim_through
from shared.bus.tail import Tail
from shared.messages.grants import (
    AttemptParkRequested,
    AttemptResumed,
    EnvironmentClosed,
    Grant,
    Granted,
    ImageRequested,
    InventoryRequested,
    Revoked,
    ShareSet,
    grants_topic,
)
from shared.messages.nodes import Bye, Heartbeat, Hello, ServiceCapacity
from shared.messages.outcomes import ImagesChanged, InventoryTaken, Outcome, ServicesChanged
from shared.node.attempts import Attempts
from shared.node.connection import NodeConnection
from shared.node.executor import Environments, Executor, Parking
from shared.runtime import log
from shared.runtime.background import Background
from shared.runtime.clock import SYSTEM_CLOCK, Clock
from shared.runtime.units import Epoch, Seconds

T = TypeVar("T")

_log = log.get(__name__)

TRIM_EVERY, TRIM_BYTES = 512, 256 << 10
"""Entries and bytes of grants read before the stream is trimmed. Each heartbeat trims the rest."""
HEARTBEATS_A_HELLO = 15
"""Heartbeats between two publications of the hello."""


class NodeAgent:
    """One node in one incarnation. Ignores grants of an epoch older than the newest it has received."""

    def __init__(
        self,
        connection: NodeConnection,
        executor: Executor,
        *,
        environments: Environments | None = None,
        parking: Parking | None = None,
        clock: Clock = SYSTEM_CLOCK,
        report: Callable[[Outcome], None] | None = None,
        cold_start_s: Callable[[], dict[str, Seconds]] = dict,
        services: Callable[[], ServicesChanged] | None = None,
        service_capacity: Callable[[], dict[str, ServiceCapacity]] = dict,
    ) -> None:
        """Assemble the agent.

        Args:
            connection: the node's streams.
            executor: the manager's own part.
            environments: of trajectories, if the manager has them.
            parking: of running attempts, if the manager can freeze them.
            clock: of this process.
            report: publishes outcomes; default: the connection's outbox.
            cold_start_s: returns resource -> seconds from owning a unit to a worker that executes on it, as measured.
            services: returns the model services of the node, if it has any.
            service_capacity: returns what the planner needs of these, by name.
        """
        self.identity, self._redis, self._outbox = connection.identity, connection.redis, connection.outbox
        self._executor = executor
        self._environments = environments
        self.resources = executor.resources
        """Units of this node, by resource."""
        self._clock = clock
        self._cold_start_s = cold_start_s
        self._services = services
        self._service_capacity = service_capacity
        self._services_due = False
        self.attempts = Attempts(self.identity, executor, report or self._outbox.put, clock, environments, parking)
        self._outbox.may_gather = self.attempts.busy
        self._outbox.is_idle = lambda: not len(self.attempts)
        self._direct = connection.direct
        self._epoch = 0
        self._topic = grants_topic(self.identity.node, self.identity.incarnation)
        self.tail = Tail(connection.reader, {self._topic: "0"})
        self._untrimmed = 0
        self._trimmed_bytes = 0
        """Value of `tail.bytes` at the last trim."""
        self._offered_at: Seconds = clock.monotonic()
        """Time of the last publication of the hello."""
        self._images: frozenset[str] = frozenset()
        """Images as last reported."""
        self.met_leader = False
        """True after a leader has requested the inventory. Only then can it grant work."""

    def unready(self) -> str | None:
        """Return the reason why this node cannot work yet; None if it can."""
        if not self.met_leader:
            return "no leader has requested this node's inventory yet"
        return None if self._outbox.ready() else "outcomes are waiting: Valkey does not store them"

    @asynccontextmanager
    async def running(self, *, heartbeat_s: Seconds) -> AsyncIterator[None]:
        """Run the node's loops; stop it in good order at the end of the block. If a loop crashes, the service stops."""
        async with Background() as background:
            background.start(self._outbox.run(), name="outbox")
            if self._direct is not None:
                background.start(self._direct.run(), name="confirmations")
            background.start(self.run(), name="grants")
            background.start(self.heartbeats(heartbeat_s), name="heartbeats")
            yield
            await self.stop()

    async def run(self) -> None:
        """Publish the hello, then execute the leader's messages until stopped."""
        await self.publish_offer()
        async for entries in self.tail.batches():
            for entry in entries:
                self._handle(entry.message)
            self._untrimmed += len(entries)
            if self._untrimmed >= TRIM_EVERY or self.tail.bytes - self._trimmed_bytes >= TRIM_BYTES:
                await self._trim()

    async def heartbeats(self, every_s: Seconds) -> None:
        """Publish heartbeats forever, and report as started the attempts that are still running at a heartbeat.

        The hello is published again after `HEARTBEATS_A_HELLO` heartbeats, or after the time of as many: the hello of a
        silent node expires, and services that have forgotten this node must find it again. Time counts because
        heartbeats stop while Valkey is away or this process is suspended.
        """
        for beats in itertools.count(1):
            self.attempts.report_started()
            if self._environments is not None:
                self._environments.check()
                self._report_images(self._environments.images())
            silent_s = self._clock.monotonic() - self._offered_at
            if beats % HEARTBEATS_A_HELLO == 0 or silent_s > HEARTBEATS_A_HELLO * every_s:
                await self.publish_offer()
            beat = self._heartbeat()
            await self._until_stored(partial(publish_heartbeat, self._redis, beat))
            if self._untrimmed:
                await self._trim()
            await asyncio.sleep(every_s)

    async def publish_offer(self) -> None:
        """Publish and store the hello, with the executor's offer at the time when it is stored."""
        if not await self._until_stored(lambda: publish_hello(self._redis, self._hello())):
            _log.error("hello_rejected", node=self.identity.node, reason="a later manager has this node's name")
        self._offered_at = self._clock.monotonic()

    def _hello(self) -> Hello:
        identity, offer = self.identity, self._executor.offer()
        return Hello(
            node=identity.node,
            incarnation=identity.incarnation,
            node_class=identity.node_class,
            capacity={name: usage.exist for name, usage in self.resources.items()},
            kinds=sorted(offer.kinds),
            prefetches=[name for name, usage in self.resources.items() if usage.prefetches],
            labels=offer.labels,
            runtimes=offer.runtimes,
            generation=identity.generation,
        )

    async def stop(self) -> None:
        """Kill running work, report the outcomes, publish a Bye. Bounded: without Valkey the Bye is not published."""
        self.tail.stopping = True
        await self.attempts.stop()
        try:
            async with asyncio.timeout(2.0):
                await self._outbox.flush()
                await publish_bye(self._redis, Bye(node=self.identity.node, incarnation=self.identity.incarnation))
        except (*TRANSIENT, TimeoutError) as error:
            _log.warning("bye_not_published", error=str(error))

    def _handle(self, message: Grant) -> None:
        if message.epoch < self._epoch:
            _log.warning("stale_epoch_rejected", epoch=message.epoch, newest=self._epoch)
            return
        self._epoch = message.epoch
        match message:
            case Granted():
                self.attempts.accept(message)
            case Revoked():
                self.attempts.revoke(message.action, message.attempt, recall=message.recall)
            case AttemptParkRequested():
                self.attempts.park(message)
            case AttemptResumed():
                self.attempts.resume(message)
            case ShareSet():
                if message.resource in self.resources:
                    self.resources[message.resource].own(message.units, self._clock.monotonic())
            case EnvironmentClosed():
                self.attempts.close_environment(message.trajectory)
            case ImageRequested():
                if self._environments is not None:
                    self._environments.prepare(message.image)
            case InventoryRequested():
                self._report_inventory(message.epoch)

    def _report_inventory(self, epoch: Epoch) -> None:
        self.met_leader = True
        if self._services is not None:  # before the inventory, after which the leader grants
            self._outbox.put(self._services())
        self._outbox.put(self._inventory(epoch))

    def report_services(self) -> None:
        """Report the model services soon: once for all changes of one turn of the event loop."""
        if self._services is not None and not self._services_due:
            self._services_due = True
            asyncio.get_running_loop().call_soon(self._put_services)

    def _put_services(self) -> None:
        self._services_due = False
        if self._services is not None and self.met_leader:
            self._outbox.put(self._services())

    def _inventory(self, epoch: Epoch) -> InventoryTaken:
        if self._environments is not None:
            self._images = self._environments.images()
        return InventoryTaken(
            node=self.identity.node,
            incarnation=self.identity.incarnation,
            epoch=epoch,
            held=self.attempts.held_grants(),
            environments=self.attempts.held_environments(),
            images=sorted(self._images),
        )

    def _heartbeat(self) -> Heartbeat:
        now, resources = self._clock.monotonic(), self.resources.items()
        for _, usage in resources:
            usage.integrate(now)
        return Heartbeat(
            node=self.identity.node,
            incarnation=self.identity.incarnation,
            owned={name: usage.held for name, usage in resources},
            used={name: usage.used for name, usage in resources},
            owned_unit_s={name: round(usage.owned_unit_s, 3) for name, usage in resources},
            used_unit_s={name: round(usage.used_unit_s, 3) for name, usage in resources},
            services=self._service_capacity(),
            cold_start_s=self._cold_start_s(),
        )

    def _report_images(self, now: frozenset[str]) -> None:
        """Report images that came or went since the last report or inventory."""
        before = self._images
        if now != before:
            self._images = now
            changed = ImagesChanged(
                node=self.identity.node,
                incarnation=self.identity.incarnation,
                added=sorted(now - before),
                removed=sorted(before - now),
            )
            self._outbox.put(changed)

    async def _trim(self) -> None:
        """Trim the entries that were read. Their grants are in memory and in inventories."""
        entries, self._untrimmed = self._untrimmed, 0
        self._trimmed_bytes = self.tail.bytes
        try:
            await trim_through(self._redis, self._topic, self.tail.last(self._topic))
        except TRANSIENT:
            self._untrimmed += entries  # the trim of the next heartbeat covers this one

    async def _until_stored(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await with_retries(attempt, what="reporting to the leader", limit_s=None)
