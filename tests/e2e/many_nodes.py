"""Many simulated nodes in one process: their messages are real, and an action ends when the test ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from shared.bus import functions
from shared.bus.connection import connect
from shared.bus.nodes import publish_heartbeat, publish_hello
from shared.bus.tail import Tail
from shared.messages.grants import Granted, InventoryRequested, grants_topic
from shared.messages.nodes import Heartbeat, Hello
from shared.messages.outcomes import OUTCOMES, Finished, GrantHeld, InventoryTaken, Outcome
from shared.policy.model.results import AttemptResult

BEAT_S = 0.5


class ManyNodes:
    """Nodes with one slot each. They publish one hello, and then heartbeats alone."""

    def __init__(self, redis: Redis, reader: Redis, count: int) -> None:
        self._redis = redis
        self._names = {f"grants.node-{number}.1": f"node-{number}" for number in range(count)}
        self._tail = Tail(reader, {grants_topic(name, "1"): "0" for name in self._names.values()}, block_s=0.2)
        self.granted: list[Granted] = []
        """All grants, in order."""
        self.asked: dict[str, int] = {}
        """Node -> epoch of the leader that last requested its inventory."""
        self._held: dict[str, dict[str, Granted]] = {name: {} for name in self._names.values()}

    @classmethod
    @asynccontextmanager
    async def up(cls, url: str, count: int) -> AsyncIterator[ManyNodes]:
        async with connect(url, name="many-nodes") as redis, connect(url, name="many-nodes-reader") as reader:
            nodes = cls(redis, reader, count)
            for name in nodes._held:
                hello = Hello(node=name, incarnation="1", node_class="default", capacity={"slots": 1}, kinds=["sleep"])
                await publish_hello(redis, hello)
            tasks = [asyncio.create_task(nodes._follow()), asyncio.create_task(nodes._beat())]
            try:
                yield nodes
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    async def finish_all(self) -> None:
        """End every held action with `ok`."""
        for name, held in self._held.items():
            await self._publish(*(_finished(name, grant) for grant in held.values()))
            held.clear()

    async def _beat(self) -> None:
        while True:
            for name in self._held:
                await publish_heartbeat(self._redis, Heartbeat(node=name, incarnation="1", owned={"slots": 1}, used={}))
            await asyncio.sleep(BEAT_S)

    async def _follow(self) -> None:
        async for entries in self._tail.batches():
            for entry in entries:
                name, message = self._names[entry.topic], entry.message
                if isinstance(message, Granted):
                    self.granted.append(message)
                    self._held[name][message.action] = message
                elif isinstance(message, InventoryRequested):
                    await self._publish(self._inventory(name, message.epoch))
                    self.asked[name] = message.epoch

    def _inventory(self, name: str, epoch: int) -> InventoryTaken:
        held = [
            GrantHeld(action=one.action, epoch=one.epoch, attempt=one.attempt, stage=0, units=one.units, running_s=1.0)
            for one in self._held[name].values()
        ]
        return InventoryTaken(node=name, incarnation="1", epoch=epoch, held=held)

    async def _publish(self, *outcomes: Outcome) -> None:
        payloads = [OUTCOMES.encode(outcome) for outcome in outcomes]
        await functions.publish(self._redis, OUTCOMES.name, OUTCOMES.maxlen or 0, payloads)


def _finished(node: str, grant: Granted) -> Finished:
    return Finished(
        action=grant.action, node=node, incarnation="1", epoch=grant.epoch, attempt=grant.attempt, stage=grant.stage,
        result=AttemptResult("ok", passed=True), units=grant.units,
    )  # fmt: skip
