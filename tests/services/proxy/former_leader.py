"""Store that former leaders and nodes have written, and the leader that takes over."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis

from services.proxy.leader.leader import Leader
from services.proxy.leader.takeover import take_over
from shared.bus import functions
from shared.bus.connection import ValkeyClock, command
from shared.bus.functions import Granting, Submission
from shared.bus.tail import Tail
from shared.messages.actions import ACTIONS, ActionSubmitted
from shared.messages.base import Message, Topic
from tests.services.proxy.mesh import WriteRecorder, from_node, leader_of
from tests.shared.bus.journal import Journal


class StoreOfFormerLeader:
    """The store of a former leader, and the leader that takes it over."""

    def __init__(self, journal: Journal, reader: Redis) -> None:
        self.journal = journal
        self.redis = journal.redis
        self.reader = reader
        self.recorder = WriteRecorder()
        self.leader: Leader
        self.clock: ValkeyClock

    async def submit(self, *requests: ActionSubmitted) -> list[str]:
        items = [Submission(one.action, b"", one.batch, ACTIONS.encode(one), one.trajectory) for one in requests]
        return [entry for _, entry in await functions.journal_actions(self.redis, items, max_journal=100)]

    async def mark(self, action: str, attempt: int, node: str = "n", trajectory: str = "", place: bytes = b"") -> None:
        """Write a grant of the former leader."""
        grant = Granting("grants.n.1", b"m", action, f"{attempt}:{node}", trajectory, place)
        await functions.send_grants(self.redis, self.journal.epoch, [grant])

    async def publish(self, topic: Topic[Any], *messages: Message, at: str = "*") -> None:
        for message in messages:
            await command(self.redis, "XADD", topic.name, at, "m", topic.encode(message))

    async def taken_over(self) -> Tail:
        self.clock = await ValkeyClock.measure(self.redis)
        self.leader = leader_of(self.recorder, self.clock)
        tail = await take_over(self.redis, self.reader, self.leader)
        self.leader.dispatcher.check()
        return tail

    def read(self, message: Message) -> list[Any]:
        """Let the new leader read one more message; return its writes."""
        self.recorder.take()
        self.leader.take([from_node(message, at=self.clock.unix())])
        self.leader.dispatcher.check()
        return self.recorder.take()
