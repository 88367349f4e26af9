"""Workers as every replica knows them: read from the store, and again after each change."""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis

from shared.bus import workers as stored
from shared.messages.routing import RegisteredWorker
from shared.policy.routing.model import Stimulus, Worker, WorkerDrained, WorkerRemoved, WorkerSet


class Workers:
    """Registered workers."""

    def __init__(self) -> None:
        self.by_id: dict[str, RegisteredWorker] = {}
        self._refreshing = asyncio.Lock()

    def url(self, worker: str) -> str | None:
        """Return the address of a worker, without a slash at its end. None: it was removed."""
        known = self.by_id.get(worker)
        return None if known is None else known.url

    async def refresh(self, redis: Redis) -> list[Stimulus]:
        """Read all workers. Return what has changed, for the leader. O(workers).

        One after another: the answer of an older read would undo what a newer one has found.
        """
        async with self._refreshing:
            found = await stored.read_workers(redis)
            before, self.by_id = self.by_id, found
        changes: list[Stimulus] = [WorkerRemoved(name) for name in before if name not in self.by_id]
        for name, worker in self.by_id.items():
            changes += changes_of(before.get(name), worker)
        return changes

    def find(self, reference: str) -> RegisteredWorker | None:
        """Return a worker by its id or its address."""
        known = self.by_id.get(reference)
        if known is not None:
            return known
        url = reference.rstrip("/")
        return next((worker for worker in self.by_id.values() if worker.url == url), None)


def changes_of(before: RegisteredWorker | None, worker: RegisteredWorker) -> list[Stimulus]:
    """Return the stimuli of a worker that was registered or changed."""
    if before == worker:
        return []
    restarted = before is not None and worker.serial > before.serial
    changes: list[Stimulus] = [WorkerSet(to_policy(worker), restarted=restarted)]
    if worker.drained:
        changes.append(WorkerDrained(worker.id))
    return changes


def to_policy(worker: RegisteredWorker) -> Worker:
    """Return the policy's value of a worker."""
    return Worker(
        worker.id,
        models=frozenset(worker.models),
        most_calls=worker.most_calls,
        kv_tokens=worker.kv_tokens,
    )
