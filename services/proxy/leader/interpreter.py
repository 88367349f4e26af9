"""Executes the dispatcher's commands as writes: in batches, tenants in turn, fenced by the leader's epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from redis.asyncio import Redis

from services.proxy.metrics import UNTRACED
from shared.bus import functions, held_leases, quotas, traces, trajectories
from shared.bus.connection import with_retries
from shared.bus.functions import Advancing, Answering, Deposed, Granting
from shared.bus.held_leases import LeaseGrant, LeaseRevocation
from shared.messages.leases import GrantedLease
from shared.policy.model.quotas import QuotaHold, Settled
from shared.policy.order.turns import NO_FLOW, TurnQueue
from shared.runtime import log
from shared.runtime.units import Epoch, Seconds

_log = log.get(__name__)

MOST_AT_ONCE, MOST_SHARED = 256, 16
"""Writes of one flush, and of one while several tenants have writes: a new write waits for the flush under way."""


MOST_WAITING = 2048
"""Waiting writes with which the leader does not go on with cancellations. A write that is put after all, and every
later one, waits for all of them."""


class Discard(NamedTuple):
    """A journal entry that is not a request (a cancellation) has been handled."""

    entry: str


class Forget(NamedTuple):
    """A trajectory's environment has ended, or was not created."""

    trajectory: str
    ended: str
    """Its end; `unmade`: it was not created, and the trajectory has not ended."""
    reason: str


class HoldsChanged(NamedTuple):
    """Attempts have ended without an answer, or a node reports one again: what they hold of quotas has changed."""

    settled: tuple[QuotaHold | Settled, ...]


class LeaseInventory(NamedTuple):
    """The inventory of the node of leases is needed."""


Write = (
    Granting | Answering | Advancing | Discard | Forget | HoldsChanged | LeaseGrant | LeaseRevocation | LeaseInventory
)

Answered = Callable[[Answering, bool], None]
"""Called when an answer is durable: (answer, whether this answer counts)."""
Leased = Callable[[Sequence[GrantedLease]], None]
"""Called when leases have been granted."""


@dataclass(slots=True)
class _HoldOrder:
    """Changes of holds in one flush, which does not write in the order of the writes."""

    taken: set[str] = field(default_factory=set)
    refunds: bool = False

    def accepts(self, write: Write) -> bool:
        """Return whether a write may join the flush."""
        if isinstance(write, Granting | LeaseGrant):
            if write.taking is None:
                return True
            self.taken.add(write.taking.hold.key)
            return not self.refunds
        settled = write.settled if isinstance(write, Answering | Advancing | HoldsChanged) else ()
        if not settled:
            return True
        refunds = any(isinstance(change, Settled) and change.refunds for change in settled)
        self.refunds = self.refunds or refunds
        return self.taken.isdisjoint(change.key for change in settled) and not (refunds and self.taken)


class Interpreter:
    """Queue of writes. While a flush is under way, the next writes gather.

    Tenants take turns. The order stays between writes that share a name: an action, or a trajectory with its actions
    and its environment. Writes that take from a rate, or give back to one, share the name of the quota, because a level
    depends on the order of its changes. So tenants take turns except where they use the same rates. Other changes of
    holds only follow earlier writes of their action. A write that depends on others (the request for an inventory) is
    put after all.
    """

    def __init__(
        self, redis: Redis, epoch: Epoch, answered: Answered, *, keep_batch_s: Seconds, leased: Leased | None = None
    ) -> None:
        self._redis = redis
        self._epoch = epoch
        self._answered = answered
        self._leased = leased
        self._keep_batch_s = keep_batch_s
        self._waiting: TurnQueue[Write] = TurnQueue()
        self._more = asyncio.Event()
        self._traces_fail = False
        self.deposed = False
        """Another leader has taken over: nothing more is written."""

    def put(self, write: Write, tenant: str = NO_FLOW, names: tuple[str, ...] = ()) -> None:
        """Add a write of a tenant. It leaves after earlier writes that share a name."""
        if isinstance(write, HoldsChanged):
            for change in write.settled:  # each follows the writes of its own action
                self._waiting.put(tenant, HoldsChanged((change,)), (*names, change.action, *_levels_of([change])))
        else:
            self._waiting.put(tenant, write, (*names, *_levels(write)))
        self._more.set()

    def put_after_all(self, write: Write) -> None:
        """Add a write that leaves after all earlier ones."""
        self._waiting.put_after_all(write)
        self._more.set()

    def discard(self, entry: str, *names: str) -> None:
        """Remove a handled journal entry after its effects, which share a name with it."""
        self.put(Discard(entry), names=names)

    async def lags(self) -> bool:
        """Return whether many writes wait. If so, wait shortly, so that some are written."""
        if len(self._waiting) < MOST_WAITING:
            return False
        await asyncio.sleep(0.005)
        return True

    async def run(self) -> None:
        """Flush until deposed."""
        while not self.deposed:
            await self._more.wait()
            self._more.clear()
            while self._waiting and not self.deposed:
                await self._flush()

    async def _flush(self) -> None:
        """Write up to `MOST_AT_ONCE` writes. Repeated as a whole while Valkey is away: every function is safe to
        repeat.
        """
        batch = self._next()
        try:
            await with_retries(lambda: self._write(batch), what="dispatching", limit_s=None)
        except Deposed:
            self.deposed = True
            _log.warning("deposed", epoch=self._epoch)

    def _next(self) -> list[Write]:
        """Return the next writes, tenants in turn.

        A flush writes failed creations before grants. One flush must not contain both a grant and a later failed
        creation for the same trajectory. The same holds for a hold of quotas and its end, because a repeated flush
        would take it again; and a refund stays after the grants that were decided before it.
        """
        begun: set[str] = set()
        order = _HoldOrder()

        def accepts(write: Write) -> bool:
            if (isinstance(write, Forget) and write.trajectory in begun) or not order.accepts(write):
                return False
            if isinstance(write, Granting) and write.trajectory:
                begun.add(write.trajectory)
            return True

        return self._waiting.take(MOST_SHARED if self._waiting.shared else MOST_AT_ONCE, accepts)

    async def _write(self, batch: list[Write]) -> None:
        unmade = [write for write in batch if isinstance(write, Forget) and write.ended == "unmade"]
        ended = [write for write in batch if isinstance(write, Forget) and write.ended != "unmade"]
        steps = [write for write in batch if isinstance(write, Advancing)]
        grants = [write for write in batch if isinstance(write, Granting | LeaseGrant)]
        answers = [write for write in batch if isinstance(write, Answering)]
        discards = [write.entry for write in batch if isinstance(write, Discard)]
        changes = [change for write in batch if isinstance(write, HoldsChanged) for change in write.settled]
        if changes:  # before grants, so that the store does not count more as taken than the leader
            await quotas.change_holds(self._redis, self._epoch, changes)
        if unmade:  # before grants: the environment may begin again elsewhere
            await trajectories.record_ends(self._redis, self._epoch, unmade)
        if steps:  # before grants: moving to the next stage deletes the stage's grant
            await functions.advance_stages(self._redis, self._epoch, steps)
        if grants and not answers:
            await self._send(grants)
        elif answers:
            traced = [one for one in answers if one.traced_by]
            tracing = (self._trace(traced),) if traced else ()
            flags, *_ = await asyncio.gather(self._finish(answers), self._send(grants), *tracing)
            for answer, counts in zip(answers, flags, strict=True):
                self._answered(answer, counts)
        if ended:  # after answers: a successor that reads the end would not look for earlier verdicts
            await trajectories.record_ends(self._redis, self._epoch, ended)
        if revoked := [write for write in batch if isinstance(write, LeaseRevocation)]:
            await held_leases.revoke_leases(self._redis, self._epoch, revoked)
        if any(isinstance(write, LeaseInventory) for write in batch):  # after the grants that it must contain
            await held_leases.list_leases(self._redis, self._epoch)
        if discards:  # after their effects: a successor finds the entries again if this leader stops before
            await functions.discard(self._redis, self._epoch, discards)

    async def _send(self, grants: list[Granting | LeaseGrant]) -> None:
        """Send grants in their order: levels of rates depend on it. One write for each run of one kind."""
        for leases, run in groupby(grants, key=lambda write: isinstance(write, LeaseGrant)):
            if leases:
                given = [write for write in run if isinstance(write, LeaseGrant)]
                granted = await held_leases.grant_leases(self._redis, self._epoch, given)
                if self._leased is not None:
                    self._leased(granted)
            else:
                sent = [write for write in run if isinstance(write, Granting)]
                await functions.send_grants(self._redis, self._epoch, sent)

    async def _trace(self, traced: list[Answering]) -> None:
        """Add answered actions to the traces of their trajectories, in the same turn of Valkey as their answers.

        A failure costs the spans, and no answer.
        """
        try:
            await traces.trace_actions(self._redis, self._epoch, traced)
        except Deposed:
            raise
        except Exception as error:  # noqa: BLE001  # a trace is for people: its loss must not end a leader
            UNTRACED.inc(len(traced))
            if not self._traces_fail:
                _log.warning("tracing_failed", actions=len(traced), error=str(error) or type(error).__name__)
            self._traces_fail = True
        else:
            self._traces_fail = False

    async def _finish(self, answers: list[Answering]) -> list[bool]:
        return await functions.answer_actions(self._redis, self._epoch, answers, keep_batch_s=self._keep_batch_s)


def _levels(write: Write) -> Iterable[str]:
    """Names of the quotas whose levels a write changes."""
    if isinstance(write, Granting | LeaseGrant):
        return () if write.taking is None else dict.fromkeys(_level(name) for name, _ in write.taking.rates)
    return _levels_of(write.settled) if isinstance(write, Answering | Advancing) else ()


def _levels_of(changes: Iterable[QuotaHold | Settled]) -> Iterable[str]:
    settled = (change for change in changes if isinstance(change, Settled))
    return dict.fromkeys(_level(refund.quota) for one in settled for refund in one.refunds)


def _level(quota: str) -> str:
    return f" level of {quota}"  # no id begins with a blank
