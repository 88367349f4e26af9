"""The planner's shell: batches from the bus into Postgres and the planner, its commands onto the bus.

Order of each delivery: make durable what the message says, decide, keep the decisions, publish them, acknowledge. Every
step is harmless to repeat, so a crash anywhere repeats the delivery and loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import TypeVar

from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncSession

from services.scaling_planner import metrics
from services.scaling_planner.capacity import Capacity
from services.scaling_planner.measurements import ended_batch, opened_batch
from services.scaling_planner.planner import Command, ExpectCompletion, Planner, PublishTarget
from shared import log
from shared.bus import functions
from shared.bus.connection import ValkeyClock, command, patiently
from shared.bus.results import read_record
from shared.bus.tail import Tail
from shared.messages.batches import BatchEnded, BatchOpened, FirstArrival
from shared.messages.targets import TARGETS, CompletionExpected, TargetSet
from shared.store.batches import BatchHistory
from shared.store.database import Sessions, persistently, transaction
from shared.store.plans import Plans
from shared.store.records import EndedBatch, LastBatch, OpenedBatch, StoredPlan
from shared.units import Seconds

T = TypeVar("T")

_log = log.get(__name__)


class PlannerService:
    """One planner with its sockets. Deliveries and news of nodes take turns."""

    def __init__(
        self, planner: Planner, capacity: Capacity, sessions: Sessions, redis: Redis, clock: ValkeyClock
    ) -> None:
        self._planner = planner
        self._capacity = capacity
        self._sessions = sessions
        self._redis = redis
        self._clock = clock
        self._turn = asyncio.Lock()
        self.restored = False
        """State is rebuilt from Postgres; deliveries may begin."""

    async def restore(self) -> None:
        """Rebuild what a former process knew: targets, and the open batches that Valkey still knows."""

        async def load(session: AsyncSession) -> list[tuple[OpenedBatch, LastBatch | None]]:
            self._planner.targets = await Plans(session).targets()
            history = BatchHistory(session)
            return [
                (batch, await history.last_complete(batch.tenant, batch.task)) for batch in await history.still_open()
            ]

        for batch, last in await self._store(load, "restoring"):
            if await self._known_to_valkey(batch.batch):
                self._planner.restored(batch, last)
            else:
                await self._abandon(batch)
        self.restored = True
        _log.info("planner_restored", targets=self._planner.targets)

    async def on_batch(self, message: BatchOpened | FirstArrival | BatchEnded) -> None:
        """Handle one delivery of `batches`. Returns when its effects are durable and published."""
        async with self._turn:
            match message:
                case BatchOpened():
                    await self._opened(opened_batch(message))
                case FirstArrival():
                    await self._first_arrival(message)
                case BatchEnded():
                    await self._ended(message)

    async def follow_nodes(self, tail: Tail) -> None:
        """Keep the ceilings, for ever: what nodes said before this process began counts, if they still live."""
        backlog = True
        async for entries in tail.batches():
            for entry in entries:
                self._capacity.heard(entry.at, entry.message)
            backlog = backlog and len(entries) > 0 and self._clock.unix() - entries[-1].at > 1.0
            if backlog:
                continue  # decide once what is true now, not once for each page of the past
            async with self._turn:
                by_pool = self._capacity.by_pool(self._clock.unix())
                await self._decide(lambda now: self._planner.capacities(now, by_pool))  # noqa: B023  # awaited here

    async def keep_house(self, every_s: Seconds, keep_s: Seconds) -> None:
        """Delete what is too old, for ever."""
        while True:
            before = self._clock.unix() - keep_s

            async def prune(session: AsyncSession) -> int:
                await Plans(session).prune(before)  # noqa: B023  # awaited in this turn
                return await BatchHistory(session).prune(before)  # noqa: B023

            gone = await self._store(prune, "pruning")
            _log.info("history_pruned", batches=gone)
            await asyncio.sleep(every_s)

    async def _opened(self, batch: OpenedBatch) -> None:
        async def keep(session: AsyncSession) -> tuple[bool, LastBatch | None]:
            history = BatchHistory(session)
            await history.opened(batch)
            return await history.is_open(batch.batch), await history.last_complete(batch.tenant, batch.task)

        still_open, last = await self._store(keep, "storing an opened batch")
        if still_open:  # a repeated delivery may be older than the end
            await self._decide(lambda now: self._planner.opened(now, batch, last))

    async def _first_arrival(self, message: FirstArrival) -> None:
        commands = await self._decide(lambda now: self._planner.first_arrival(now, message.batch, message.arrived_at))
        expected = next((c.at for c in commands if isinstance(c, ExpectCompletion)), None)

        async def keep(session: AsyncSession) -> None:
            await BatchHistory(session).first_arrival(message.batch, message.arrived_at, expected)

        await self._store(keep, "storing a first arrival")

    async def _ended(self, message: BatchEnded) -> None:
        answers = await patiently(
            lambda: read_record(self._redis, message.batch), what="reading results", patience_s=None
        )
        batch = ended_batch(message, answers)

        async def keep(session: AsyncSession) -> tuple[bool, LastBatch | None]:
            history = BatchHistory(session)
            new = await history.ended(batch)
            return new, await history.last_complete(batch.tenant, batch.task)

        new, last = await self._store(keep, "storing an ended batch")
        if new:
            _observe(batch)
        learnt = last if last is not None and last.opened.batch == batch.batch else None
        await self._decide(lambda now: self._planner.ended(now, batch.batch, learnt))

    async def _decide(self, step: Callable[[Seconds], list[Command]]) -> list[Command]:
        """Let the planner decide (in a thread: a search may take long), then keep and publish."""
        now = self._clock.unix()
        started = perf_counter()
        commands = await asyncio.to_thread(step, now)
        if commands:
            metrics.DECIDING.observe(perf_counter() - started)
        targets = [command for command in commands if isinstance(command, PublishTarget)]
        if targets:
            plans = [StoredPlan(now, t.pool, t.previous, t.units, t.reason.document()) for t in targets]
            await self._store(lambda session: Plans(session).add(plans), "storing plans")
        await self._publish(now, commands)
        for target in targets:
            metrics.TARGET.labels(target.pool).set(target.units)
            metrics.DECISIONS.labels(target.reason.why).inc()
            _log.info("target_set", pool=target.pool, units=target.units, reason=target.reason.summary)
        return commands

    async def _publish(self, now: Seconds, commands: Sequence[Command]) -> None:
        if not commands:
            return
        payloads = [TARGETS.encode(_message(now, command)) for command in commands]
        kept = TARGETS.maxlen or 10_000
        await patiently(
            lambda: functions.publish(self._redis, TARGETS.name, kept, payloads),
            what="publishing targets",
            patience_s=None,
        )

    async def _known_to_valkey(self, batch: str) -> bool:
        found = await patiently(
            lambda: command(self._redis, "EXISTS", f"batch:{batch}"), what="looking for open batches", patience_s=None
        )
        return bool(found)

    async def _abandon(self, batch: OpenedBatch) -> None:
        """Valkey has lost it: no end will ever come, and it must not hold units for ever."""
        now = self._clock.unix()
        first = batch.first_arrival_at or batch.opened_at
        end = EndedBatch(batch.batch, batch.tenant, batch.task, "abandoned", batch.opened_at, first, now, 0)
        await self._store(lambda session: BatchHistory(session).ended(end), "ending a lost batch")
        _log.warning("open_batch_lost", batch=batch.batch)

    async def _store(self, work: Callable[[AsyncSession], Awaitable[T]], what: str) -> T:
        """One transaction, repeated while Postgres is away."""

        async def attempt() -> T:
            async with transaction(self._sessions) as session:
                return await work(session)

        return await persistently(attempt, what=what)


def _message(now: Seconds, decided: Command) -> TargetSet | CompletionExpected:
    if isinstance(decided, ExpectCompletion):
        return CompletionExpected(batch=decided.batch, at=decided.at)
    return TargetSet(pool=decided.pool, units=decided.units, decided_at=now, reason=decided.reason.summary)


def _observe(batch: EndedBatch) -> None:
    metrics.BATCHES.labels(batch.state).inc()
    if batch.extra_delay_s is not None:
        metrics.EXTRA_DELAY.observe(batch.extra_delay_s)
