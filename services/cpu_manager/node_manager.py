"""Connection of this node to the leader: receives grants, publishes outcomes and heartbeats."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec
from redis.asyncio import Redis

from services.cpu_manager.attempts import Attempts
from services.cpu_manager.outbox import Outbox
from services.cpu_manager.resource_usage import ResourceUsage
from shared.bus.connection import TRANSIENT, command, with_retries
from shared.bus.nodes import publish_bye, publish_heartbeat, publish_hello
from shared.bus.tail import Tail
from shared.messages.grants import (
    EnvironmentClosed,
    Grant,
    Granted,
    ImageRequested,
    InventoryRequested,
    Revoked,
    ShareSet,
    grants_topic,
)
from shared.messages.nodes import Bye, Heartbeat, Hello
from shared.messages.outcomes import ImagesChanged, InventoryTaken
from shared.runtime import log
from shared.runtime.clock import Clock

T = TypeVar("T")

_log = log.get(__name__)

TRIM_EVERY, TRIM_BYTES = 512, 256 << 10
"""Entries and bytes of grants read before the stream is trimmed. Each heartbeat trims the rest."""
HEARTBEATS_A_HELLO = 15
"""Heartbeats between two publications of the hello."""


class NodeManager:
    """One node in one incarnation. Ignores grants of an epoch older than the newest it has received."""

    def __init__(
        self,
        redis: Redis,
        reader: Redis,
        hello: Hello,
        attempts: Attempts,
        outbox: Outbox,
        usages: Mapping[str, ResourceUsage],
        clock: Clock,
        cold_start_s: Callable[[], dict[str, float]] = dict,
    ) -> None:
        """Store the parts. `reader` serves only blocking reads; `redis` writes. `usages`: by resource.

        `cold_start_s`: see `NodeExecutor.cold_start_s`.
        """
        self._redis = redis
        self._hello = hello
        self._attempts = attempts
        self._outbox = outbox
        self._usages = usages
        self._clock = clock
        self._cold_start_s = cold_start_s
        self._epoch = 0
        self._topic = grants_topic(hello.node, hello.incarnation)
        self.tail = Tail(reader, {self._topic: "0"})
        self._untrimmed = 0
        self._trimmed_bytes = 0
        """Value of `tail.bytes` at the last trim."""
        self._images: frozenset[str] = frozenset()
        """Images as last reported."""
        self.met_leader = False
        """True after a leader has requested the inventory. Only then can it grant work."""

    async def run(self) -> None:
        """Publish the hello, then execute the leader's messages until stopped."""
        await self._publish_hello()
        async for entries in self.tail.batches():
            for entry in entries:
                self._handle(entry.message)
            self._untrimmed += len(entries)
            if self._untrimmed >= TRIM_EVERY or self.tail.bytes - self._trimmed_bytes >= TRIM_BYTES:
                await self._trim()

    async def heartbeats(self, every_s: float) -> None:
        """Publish heartbeats forever, and report as started the attempts that are still running at a heartbeat.

        Every `HEARTBEATS_A_HELLO` heartbeats the hello is published again: a silent node's hello expires, and services
        that have forgotten this node must find it again.
        """
        for beats in itertools.count(1):
            self._attempts.report_started()
            self._attempts.registry.check()
            self._report_images()
            if beats % HEARTBEATS_A_HELLO == 0:
                await self._publish_hello()
            now = self._clock.monotonic()
            for usage in self._usages.values():
                usage.integrate(now)
            beat = Heartbeat(
                node=self._hello.node,
                incarnation=self._hello.incarnation,
                owned={name: usage.held for name, usage in self._usages.items()},
                used={name: usage.used for name, usage in self._usages.items()},
                owned_unit_s={name: round(usage.owned_unit_s, 3) for name, usage in self._usages.items()},
                used_unit_s={name: round(usage.used_unit_s, 3) for name, usage in self._usages.items()},
                cold_start_s=self._cold_start_s(),
            )
            await self._until_stored(partial(publish_heartbeat, self._redis, beat))
            if self._untrimmed:
                await self._trim()
            await asyncio.sleep(every_s)

    async def offer(self, *, kinds: list[str], runtimes: list[str], labels: dict[str, str]) -> None:
        """Publish a new hello with these additional offers. A node never withdraws an offer."""
        self._hello = msgspec.structs.replace(self._hello, kinds=kinds, runtimes=runtimes, labels=labels)
        await self._publish_hello()

    async def stop(self) -> None:
        """Kill running work, report the outcomes, publish a Bye. Bounded: without Valkey the Bye is not published."""
        self.tail.stopping = True
        await self._attempts.stop()
        try:
            async with asyncio.timeout(2.0):
                await self._outbox.flush()
                await publish_bye(self._redis, Bye(node=self._hello.node, incarnation=self._hello.incarnation))
        except (*TRANSIENT, TimeoutError) as error:
            _log.warning("bye_not_published", error=str(error))

    def _handle(self, message: Grant) -> None:
        if message.epoch < self._epoch:
            _log.warning("stale_epoch_rejected", epoch=message.epoch, newest=self._epoch)
            return
        self._epoch = message.epoch
        match message:
            case Granted():
                self._attempts.accept(message)
            case Revoked():
                self._attempts.revoke(message.action, message.attempt, recall=message.recall)
            case ShareSet():
                if message.resource in self._usages:
                    self._usages[message.resource].own(message.units, self._clock.monotonic())
            case EnvironmentClosed():
                self._attempts.close_environment(message.trajectory)
            case ImageRequested():
                self._attempts.registry.prepare(message.image)
            case InventoryRequested():
                self.met_leader = True
                self._images = self._attempts.registry.images()
                self._outbox.put(
                    InventoryTaken(
                        node=self._hello.node,
                        incarnation=self._hello.incarnation,
                        epoch=message.epoch,
                        held=self._attempts.held_grants(),
                        environments=self._attempts.environments(),
                        images=sorted(self._images),
                    )
                )

    def _report_images(self) -> None:
        """Report images that came or went since the last report or inventory."""
        now, before = self._attempts.registry.images(), self._images
        if now != before:
            self._images = now
            changed = ImagesChanged(
                node=self._hello.node,
                incarnation=self._hello.incarnation,
                added=sorted(now - before),
                removed=sorted(before - now),
            )
            self._outbox.put(changed)

    async def _trim(self) -> None:
        """Trim the entries that were read. Their grants are in memory and in inventories."""
        ms, _, seq = self.tail.last(self._topic).partition("-")
        self._untrimmed, self._trimmed_bytes = 0, self.tail.bytes
        try:
            await command(self._redis, "XTRIM", self._topic.name, "MINID", f"{ms}-{int(seq) + 1}")
        except TRANSIENT:
            return  # the next trim covers this one

    async def _publish_hello(self) -> None:
        if not await self._until_stored(partial(publish_hello, self._redis, self._hello)):
            _log.error("hello_rejected", node=self._hello.node, reason="a later manager has this node's name")

    async def _until_stored(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await with_retries(attempt, what="reporting to the leader", limit_s=None)
