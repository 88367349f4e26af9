"""Service around the planner: messages of the mesh to Postgres and the planner, its commands to the bus.

Order for each delivery: store what the message reports, decide, store the decisions, publish them, acknowledge. Every
step is safe to repeat, so a crash at any point repeats the delivery and loses nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncSession

from services.scaling_planner import metrics
from services.scaling_planner.capacity import Capacity
from services.scaling_planner.decisions import encoded
from services.scaling_planner.measurements import ended_batch, observed_batches, opened_batch
from services.scaling_planner.quotas import QuotaReader, quotas_of
from shared.bus import functions
from shared.bus.batch_snapshot import read_counts, read_snapshot
from shared.bus.batches import batch_exists
from shared.bus.connection import ValkeyClock, with_retries
from shared.bus.nodes import read_hellos
from shared.bus.results import RequestRecord, read_record
from shared.bus.tail import Tail
from shared.messages.batches import BatchEnded, BatchOpened, FirstArrival, RolloutProgress
from shared.policy.scaling.planner import Planner
from shared.policy.scaling.stimuli import (
    BatchAdded,
    BatchesObserved,
    BatchRemoved,
    Command,
    ExpectCompletion,
    FirstRequestArrived,
    ProgressReported,
    PublishTarget,
    Stimulus,
    TargetsRestored,
    TimerFired,
)
from shared.policy.scaling.workload import OpenedBatch, PastBatch
from shared.runtime import log
from shared.runtime.errors import Unavailable
from shared.runtime.units import Seconds
from shared.store.batches import BatchHistory
from shared.store.database import Sessions, persistently, transaction
from shared.store.plans import Plans
from shared.store.records import EndedBatch, StoredPlan
from shared.store.results import ArchiveReader, Results
from shared.store.stimulus_log import StimulusLog

T = TypeVar("T")

_log = log.get(__name__)

PAUSE_FACTOR = 4
"""Least pause before a decision without an event, in multiples of the last decision's duration."""
MAX_HISTORY_REQUESTS = 200_000
"""Most requests of past batches in memory for one open batch; the newest batch counts in any case."""


class PlannerService:
    """One planner with its connections. Stimuli are handled one at a time."""

    def __init__(
        self,
        planner: Planner,
        capacity: Capacity,
        sessions: Sessions,
        redis: Redis,
        clock: ValkeyClock,
        stimulus_log: StimulusLog | None = None,
    ) -> None:
        self._planner = planner
        self._capacity = capacity
        self._sessions = sessions
        self._redis = redis
        self._results = Results(redis, ArchiveReader(sessions))
        self._clock = clock
        self._log = stimulus_log
        self._turn = asyncio.Lock()
        self._turn_began_s: Seconds | None = None
        self._planned = asyncio.Event()
        self._decision_s = 0.0
        """Duration of the last decision."""
        self._quotas = QuotaReader(redis)
        self.restored = False
        """The state is rebuilt from Postgres; deliveries may begin."""

    @property
    def turn_s(self) -> Seconds:
        """Duration of the present turn; 0 between turns."""
        return 0.0 if self._turn_began_s is None else time.monotonic() - self._turn_began_s

    async def restore(self) -> None:
        """Restore the state of a former process: targets, and the open batches that are still in Valkey."""

        async def load(session: AsyncSession) -> tuple[dict[str, int], list[BatchAdded]]:
            history = BatchHistory(session)
            batches = await history.still_open()
            opened = [BatchAdded(batch, await self._past(history, batch), restored=True) for batch in batches]
            return await Plans(session).targets(), opened

        async with self._exclusive():
            targets, still_open = await self._store(load, "restoring the planner")
            await self._process(TargetsRestored(targets))
            for opened in still_open:
                if await self._exists_in_valkey(opened.batch.batch):
                    await self._process(opened)
                else:
                    await self._end_lost_batch(opened.batch)
        self.restored = True
        _log.info("planner_restored", targets=self._planner.targets)

    async def on_batch(self, message: BatchOpened | FirstArrival | BatchEnded | RolloutProgress) -> None:
        """Handle one delivery of `batches`. Returns when its effects are durable and published."""
        async with self._exclusive():
            match message:
                case BatchOpened():
                    await self._batch_added(opened_batch(message))
                case FirstArrival():
                    await self._first_arrival(message)
                case BatchEnded():
                    await self._batch_removed(message)
                case RolloutProgress():
                    await self._process(ProgressReported(message.batch, message.at, message.generating, message.tokens))

    async def follow_nodes(self, tail: Tail) -> None:
        """Loop: update the ceilings. Messages from before this process started count for nodes that are still alive."""
        for stored in await with_retries(lambda: read_hellos(self._redis), what="reading hellos", limit_s=None):
            self._capacity.receive(stored.at, stored.hello)
        backlog, last = True, None
        async for entries in tail.batches():
            for entry in entries:
                self._capacity.receive(entry.at, entry.message)
            backlog = backlog and len(entries) > 0 and self._clock.unix() - entries[-1].at > 1.0
            if backlog:
                continue  # decide once on the present state, not once for each page of the past
            stimulus = self._capacity.stimulus(self._clock.unix())
            if stimulus != last:
                async with self._exclusive():
                    await self._process(stimulus)
                last = stimulus

    async def wake_planner(self) -> None:
        """Loop: wake the planner at the times that it requests. Planning takes at most 1/5 of a core."""
        while True:
            self._planned.clear()
            now = self._clock.unix()
            most_s = min(self._planner.next_observation_s(now) - now, 3600.0)
            wait_s = max(self._planner.wake_s() - now, PAUSE_FACTOR * self._decision_s)
            try:
                async with asyncio.timeout(min(wait_s, max(most_s, PAUSE_FACTOR * self._decision_s))):
                    await self._planned.wait()
            except TimeoutError:
                async with self._exclusive():
                    await self._process(TimerFired())

    async def delete_old_rows(self, every_s: Seconds, keep_s: Seconds, keep_plans_s: Seconds) -> None:
        """Loop: delete old history and plans."""
        while True:
            now = self._clock.unix()

            async def delete(session: AsyncSession) -> int:
                await Plans(session).prune(now - keep_plans_s)  # noqa: B023  # awaited in this turn
                return await BatchHistory(session).prune(now - keep_s)  # noqa: B023

            deleted = await self._store(delete, "deleting old rows")
            _log.info("history_deleted", batches=deleted)
            await asyncio.sleep(every_s)

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        async with self._turn:
            self._turn_began_s = time.monotonic()
            try:
                yield
            finally:
                self._turn_began_s = None

    async def _batch_added(self, batch: OpenedBatch) -> None:
        async def store(session: AsyncSession) -> tuple[bool, tuple[PastBatch, ...]]:
            history = BatchHistory(session)
            await history.opened(batch)
            return await history.is_open(batch.batch), await self._past(history, batch)

        still_open, past = await self._store(store, "storing an opened batch")
        if still_open:  # a repeated delivery may be older than the end
            await self._process(BatchAdded(batch, past))

    async def _first_arrival(self, message: FirstArrival) -> None:
        commands = await self._process(FirstRequestArrived(message.batch, message.arrived_at))
        completions = (c.at for c in commands if isinstance(c, ExpectCompletion) and c.batch == message.batch)
        expected = next(completions, None)

        async def store(session: AsyncSession) -> None:
            await BatchHistory(session).first_arrival(message.batch, message.arrived_at, expected)

        await self._store(store, "storing a first arrival")

    async def _batch_removed(self, message: BatchEnded) -> None:
        batch = ended_batch(message, await self._answers(message.batch), self._planner.tokens_per_s(message.batch))

        async def store(session: AsyncSession) -> tuple[bool, tuple[PastBatch, ...]]:
            history = BatchHistory(session)
            new = await history.ended(batch)
            opened = await history.find(batch.batch)
            used = opened is not None and self._planner.uses_history_of(opened)
            return new, await self._past(history, opened) if opened is not None and used else ()

        new, past = await self._store(store, "storing an ended batch")
        if new:
            _count(batch)
        history_used = past if past and past[-1].opened.batch == batch.batch else ()
        await self._process(BatchRemoved(batch.batch, history_used))

    async def _answers(self, batch: str) -> list[RequestRecord]:
        """Read a batch's measurements from both stores; retry while one of them is away."""
        while True:
            try:
                return await read_record(self._results.pages(batch))
            except Unavailable as error:
                _log.warning("results_not_read", batch=batch, error=str(error))
                await asyncio.sleep(error.retry_after_s)

    async def _past(self, history: BatchHistory, batch: OpenedBatch) -> tuple[PastBatch, ...]:
        window = min(self._planner.config.window, max(1, MAX_HISTORY_REQUESTS // (batch.size or 1)))
        return tuple(await history.recent(batch.tenant, batch.task, batch.size, window))

    async def _process(self, stimulus: Stimulus) -> list[Command]:
        """Pass a snapshot and a stimulus to the planner (in a thread, because a search may take long), then store and
        publish.
        """
        quotas = await self._quotas.observe(self._planner.quotas_named | quotas_of(stimulus))
        observed = await with_retries(self._observe, what="reading batch snapshots", limit_s=None)
        now = self._clock.unix()
        started = time.perf_counter()
        commands = await asyncio.to_thread(self._apply, now, *quotas, observed, stimulus)
        self._decision_s = time.perf_counter() - started
        self._planned.set()
        if commands:
            metrics.DECIDING.observe(self._decision_s)
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

    def _apply(self, now: Seconds, *stimuli: Stimulus) -> list[Command]:
        commands: list[Command] = []
        for stimulus in stimuli:
            decided = self._planner.handle(now, stimulus)
            if self._log is not None:
                self._log.write(now, stimulus, decided)
            commands += decided
        return commands

    async def _observe(self) -> BatchesObserved:
        batches = self._planner.open_batches
        if not batches:
            return BatchesObserved({})
        snapshot, counts = await asyncio.gather(read_snapshot(self._redis), read_counts(self._redis, batches))
        return BatchesObserved(observed_batches(batches, snapshot, counts, self._clock.unix()))

    async def _publish(self, now: Seconds, commands: Sequence[Command]) -> None:
        for topic, payloads in encoded(now, commands):
            await self._append(topic.name, topic.maxlen or 10_000, payloads)

    async def _append(self, stream: str, kept: int, payloads: Sequence[bytes]) -> None:
        await with_retries(
            lambda: functions.publish(self._redis, stream, kept, payloads),
            what=f"publishing {stream}",
            limit_s=None,
        )

    async def _exists_in_valkey(self, batch: str) -> bool:
        return await with_retries(lambda: batch_exists(self._redis, batch), what="reading open batches", limit_s=None)

    async def _end_lost_batch(self, batch: OpenedBatch) -> None:
        """Store the end of a batch that Valkey has lost. No end would ever be reported, and it would hold units
        forever.
        """
        now = self._clock.unix()
        first = batch.first_arrival_at or batch.opened_at
        end = EndedBatch(batch.batch, batch.tenant, batch.task, "abandoned", batch.opened_at, first, now, 0)
        await self._store(lambda session: BatchHistory(session).ended(end), "ending a lost batch")
        _log.warning("open_batch_lost", batch=batch.batch)

    async def _store(self, work: Callable[[AsyncSession], Awaitable[T]], what: str) -> T:
        """Run one transaction; retry while Postgres is away."""

        async def attempt() -> T:
            async with transaction(self._sessions) as session:
                return await work(session)

        return await persistently(attempt, what=what)


def _count(batch: EndedBatch) -> None:
    metrics.BATCHES.labels(batch.state).inc()
    if batch.extra_delay_s is not None:
        metrics.EXTRA_DELAY.observe(batch.extra_delay_s)
