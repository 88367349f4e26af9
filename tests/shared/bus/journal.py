"""The server-side functions for tests: short calls, decoded results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from shared.bus import batches, functions
from shared.bus.batches import BatchOpeningResult
from shared.bus.connection import command
from shared.bus.functions import Answering, Receipt, Submission
from shared.bus.keys import Role
from shared.bus.lease import Lease
from shared.messages.actions import ACTIONS, ActionSubmitted, CancelRequested
from shared.messages.base import M, Topic
from shared.messages.batches import BATCHES, BatchEnded, BatchOpened
from shared.runtime.units import Epoch

KEEP_ACTION_S = 60
KEEP_BATCH_S = 600


async def lead(redis: Redis, holder: str, ttl_s: float) -> Epoch:
    """Take or renew the dispatching lease."""
    return await Lease(redis, Role.DISPATCHER, ttl_s, holder).hold()


async def resign(redis: Redis, holder: str) -> None:
    await Lease(redis, Role.DISPATCHER, 1.0, holder).release()


def submission(action: str, *, batch: str = "", body: bytes = b"body") -> Submission:
    """A request whose digest is its body."""
    message = ActionSubmitted(action=action, tenant="ada", batch=batch, stages=(), budget_s=60.0)
    return Submission(action, body, batch, ACTIONS.encode(message))


def opened(batch: str, size: int | None = None) -> BatchOpened:
    return BatchOpened(
        batch=batch, tenant="ada", task="t", size=size, opened_at=1.0, stages=[], max_extra_delay_s=2.0, resources=1.0
    )


@dataclass(frozen=True, slots=True)
class Journal:
    """Calls of the server-side functions as one leader."""

    redis: Redis
    epoch: Epoch

    @classmethod
    async def led(cls, redis: Redis) -> Journal:
        return cls(redis, await lead(redis, "me", 30.0))

    async def submit(self, *actions: str, batch: str = "", body: bytes = b"body", room: int = 1000) -> list[Receipt]:
        submissions = [submission(action, batch=batch, body=body) for action in actions]
        return await functions.journal_actions(self.redis, submissions, max_journal=room)

    async def entry(self, action: str, batch: str = "") -> str:
        """Submit one action; its journal entry."""
        (receipt,) = await self.submit(action, batch=batch)
        assert receipt.code == "accepted"
        return receipt.entry

    async def finish(
        self, action: str, entry: str, batch: str = "", answer: bytes = b"{}", *, trajectory: str = ""
    ) -> bool:
        answering = Answering(action, entry, batch, answer, KEEP_ACTION_S, trajectory=trajectory)
        (counts,) = await self.finish_all(answering)
        return counts

    async def finish_all(self, *answers: Answering) -> list[bool]:
        return await functions.answer_actions(self.redis, self.epoch, answers, keep_batch_s=KEEP_BATCH_S)

    async def open(
        self, batch: str = "b", *, size: int | None = None, key: str = "", of_task: int | None = None
    ) -> BatchOpeningResult:
        """`size`: the caller's; `of_task`: the default without one."""
        fields = {"tenant": "ada", "task": "t", "workflow": "{}"}
        message = opened(batch, size or of_task)
        return await batches.open_batch(self.redis, message, idempotency_key=key, asked=size, fields=fields)

    async def end(self, batch: str, state: str) -> str | None:
        return await batches.end_batch(self.redis, batch, state, keep_batch_s=KEEP_BATCH_S)

    # ---- reading -----------------------------------------------------------------------------------------------

    async def fields(self, key: str) -> dict[str, bytes]:
        flat = await command(self.redis, "HGETALL", key)
        return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}

    async def batch(self, batch: str = "b") -> dict[str, str]:
        return {name: value.decode() for name, value in (await self.fields(f"batch:{batch}")).items()}

    async def counts(self, batch: str = "b") -> tuple[str, int, int]:
        """State, submitted, answered."""
        fields = await self.batch(batch)
        return fields["state"], int(fields["submitted"]), int(fields["answered"])

    async def messages(self, topic: Topic[M]) -> list[M]:
        return [topic.decode(fields[1]) for _, fields in await command(self.redis, "XRANGE", topic.name, "-", "+")]

    async def ended(self) -> list[BatchEnded]:
        return [message for message in await self.messages(BATCHES) if isinstance(message, BatchEnded)]

    async def unanswered(self) -> list[str]:
        return [one.action for one in await self.messages(ACTIONS) if isinstance(one, ActionSubmitted)]

    async def cancels(self) -> list[CancelRequested]:
        return [one for one in await self.messages(ACTIONS) if isinstance(one, CancelRequested)]

    async def results(self, batch: str = "b") -> list[bytes]:
        return [fields[1] for _, fields in await command(self.redis, "XRANGE", f"results:{batch}", "-", "+")]

    async def indexes(self) -> list[Any]:
        """The journal's index fields, in order."""
        return [int(fields[3]) for _, fields in await command(self.redis, "XRANGE", ACTIONS.name, "-", "+")]

    async def ttl_s(self, key: str) -> int:
        return int(await command(self.redis, "TTL", key))
