"""Executes the dispatcher's commands as writes: in batches, tenants in turn, fenced by the leader's epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import groupby
from typing import Any

from redis.asyncio import Redis

from services.proxy.leader.answer_traces import AnswerTraces
from services.proxy.leader.flushing import Flushing
from services.proxy.leader.local_calls import ActionCalls, LeaseCalls
from services.proxy.leader.writes import (
    GRANTS,
    Discard,
    Forget,
    HoldOrder,
    HoldsChanged,
    LeaseInventory,
    Write,
    leave,
    levels,
    levels_of,
)
from services.proxy.records.intake import journal_full
from shared.bus import functions, held_leases, quotas, trajectories
from shared.bus.connection import together, with_retries
from shared.bus.functions import Advancing, Answering, Deposed, Granting
from shared.bus.granted_submissions import GrantedSubmission, submit_granted
from shared.bus.held_leases import LeaseAcquisition, LeaseGrant, LeaseRelease, LeaseRevocation
from shared.messages.leases import GrantedLease
from shared.policy.order.turns import NO_FLOW, TurnQueue
from shared.runtime import log
from shared.runtime.errors import Overloaded
from shared.runtime.units import Epoch, Seconds

_log = log.get(__name__)

MOST_AT_ONCE, MOST_SHARED = 256, 16
"""Writes of one flush, and of one while several tenants have writes: a new write waits for the flush under way."""


MOST_WAITING = 2048
"""Waiting writes with which the leader does not go on with cancellations. A write that is put after all, and every
later one, waits for all of them."""


Answered = Callable[[Answering, bool], None]
"""Called when an answer is durable: (answer, whether this answer counts)."""
Leased = Callable[[Sequence[GrantedLease]], None]
"""Called when leases have been granted."""


class Interpreter:
    """Queue of writes. While a flush is under way, the next writes gather.

    Tenants take turns. The order stays between writes that share a name: an action, or a trajectory with its actions
    and its environment. Writes that take from a rate, or give back to one, share the name of the quota, because a level
    depends on the order of its changes. So tenants take turns except where they use the same rates. Other changes of
    holds only follow earlier writes of their action. A write that depends on others (the request for an inventory) is
    put after all.
    """

    def __init__(
        self,
        redis: Redis,
        epoch: Epoch,
        answered: Answered,
        *,
        keep_batch_s: Seconds,
        leased: Leased | None = None,
        max_journal: int = 0,
        most_kept: Callable[[], int] = int,
    ) -> None:
        """`max_journal`: most unanswered actions of the whole mesh. `most_kept`: see `submit_granted`."""
        self._redis = redis
        self._epoch = epoch
        self._answered = answered
        self._leased = leased
        self._keep_batch_s = keep_batch_s
        self._max_journal = max_journal
        self._most_kept = most_kept
        self.lease_calls: LeaseCalls | None = None
        self.action_calls: ActionCalls | None = None
        self.void: set[tuple[str, str]] = set()
        """(Action, mark) of grants that wait here and must not be sent: the journal has rejected the action."""
        self.flushing = Flushing()
        self._waiting: TurnQueue[Write] = TurnQueue()
        self._more = asyncio.Event()
        self._traces = AnswerTraces(redis, epoch)
        self._repeats = False
        """The flush under way was tried before."""
        self.stored: Callable[[str], None] = lambda _: None
        """Called with an action when an answer or the next stage of it is stored."""
        self.deposed = False
        """Another leader has taken over, or the dispatcher has failed: nothing more is written."""

    def depose(self) -> None:
        """Write nothing more."""
        self.deposed = True

    def wake(self) -> None:
        """Let `decide` of local calls be called before the next flush: at once if none is under way."""
        self._more.set()

    def put(self, write: Write, tenant: str = NO_FLOW, names: tuple[str, ...] = ()) -> None:
        """Add a write of a tenant. It leaves after earlier writes that share a name."""
        if isinstance(write, HoldsChanged):
            for change in write.settled:  # each follows the writes of its own action
                self._waiting.put(tenant, HoldsChanged((change,)), (*names, change.action, *levels_of([change])))
        else:
            self._waiting.put(tenant, write, (*names, *levels(write)))
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
            self._decide()
            while self._waiting and not self.deposed:
                await self._flush()
                self._decide()

    def _decide(self) -> None:
        for calls in (self.lease_calls, self.action_calls):
            if calls is not None and not self.deposed:
                calls.decide()

    async def _flush(self) -> None:
        """Write up to `MOST_AT_ONCE` writes. Repeated as a whole while Valkey is away: every function is safe to
        repeat.
        """
        batch = self._next()
        self._repeats = False

        async def write() -> None:
            try:
                await self._write(batch)
            finally:
                self._repeats = True

        try:
            with self.flushing:
                await with_retries(write, what="dispatching", limit_s=None)
        except Deposed:
            self.deposed = True
            _log.warning("deposed", epoch=self._epoch)

    def _next(self) -> list[Write]:
        """Return the next writes, tenants in turn.

        A flush writes failed creations before grants. One flush must not contain both a grant and a later failed
        creation for the same trajectory. The same holds for a hold of quotas and its end, because a repeated flush
        would take it again; and a refund stays after the grants that were decided before it. A later grant of an action
        stays after the result of its submission.
        """
        begun: set[str] = set()
        submitted: set[str] = set()
        order = HoldOrder()

        def accepts(write: Write) -> bool:
            if (isinstance(write, Forget) and write.trajectory in begun) or not order.accepts(write):
                return False
            if isinstance(write, GrantedSubmission):
                submitted.add(write.submission.action)
            if isinstance(write, Granting):
                if write.action in submitted:
                    return False
                if write.trajectory:
                    begun.add(write.trajectory)
            return True

        taken = self._waiting.take(MOST_SHARED if self._waiting.shared else MOST_AT_ONCE, accepts)
        return [write for write in taken if not self._is_void(write)] if self.void else taken

    async def _write(self, batch: list[Write]) -> None:
        unmade = [write for write in batch if isinstance(write, Forget) and write.ended == "unmade"]
        ended = [write for write in batch if isinstance(write, Forget) and write.ended != "unmade"]
        steps = [write for write in batch if isinstance(write, Advancing)]
        discards = [write.entry for write in batch if isinstance(write, Discard)]
        changes = [change for write in batch if isinstance(write, HoldsChanged) for change in write.settled]
        if changes:  # before grants, so that the store does not count more as taken than the leader
            await quotas.change_holds(self._redis, self._epoch, changes)
        if unmade:  # before grants: the environment may begin again elsewhere
            await trajectories.record_ends(self._redis, self._epoch, unmade)
        if steps:  # before grants: moving to the next stage deletes the stage's grant
            await functions.advance_stages(self._redis, self._epoch, steps)
            for step in steps:
                self.stored(step.action)
        await self._grant_and_answer(batch)
        if ended:  # after answers: a successor that reads the end would not look for earlier verdicts
            await trajectories.record_ends(self._redis, self._epoch, ended)
        if revoked := [write for write in batch if isinstance(write, LeaseRevocation)]:
            await held_leases.revoke_leases(self._redis, self._epoch, revoked)
        if any(isinstance(write, LeaseInventory) for write in batch):  # after the grants that it must contain
            await held_leases.list_leases(self._redis, self._epoch)
        if discards:  # after their effects: a successor finds the entries again if this leader stops before
            await functions.discard(self._redis, self._epoch, discards)

    async def _grant_and_answer(self, batch: list[Write]) -> None:
        """Write grants, answers, and leases' beginnings and ends, in one turn of Valkey."""
        grants = any(isinstance(write, GRANTS) for write in batch)
        submitted = any(isinstance(write, GrantedSubmission) for write in batch)
        acquisitions = [write for write in batch if isinstance(write, LeaseAcquisition)]
        if grants and any(one.grant is None for one in acquisitions):  # one of the grants may be of such a lease
            await self._acquire(acquisitions, batch)
            acquisitions = []
        writes: list[Coroutine[Any, Any, None]] = []
        if releases := [write for write in batch if isinstance(write, LeaseRelease)]:
            writes.append(self._release(releases))  # before the grants that it allows
        if grants or submitted:
            writes += self._in_order(batch)
        if acquisitions:
            writes.append(self._acquire(acquisitions, batch))
        answers = [write for write in batch if isinstance(write, Answering)]
        if traced := [one for one in answers if one.traced_by]:
            writes.append(self._traces.write(traced))
        if answers:
            if writes:
                flags, *_ = await together(self._redis, self._finish(answers), *writes)
            else:
                flags = await self._finish(answers)  # a task costs more than the call
            for answer, counts in zip(answers, flags, strict=True):
                self._answered(answer, counts)
                self.stored(answer.action)
        elif len(writes) == 1:
            await writes[0]
        else:
            await together(self._redis, *writes)

    def _in_order(self, batch: list[Write]) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the writes of grants in their order: levels of rates depend on it, and nodes execute in it. One write
        for each run of one kind.
        """
        grants = [write for write in batch if isinstance(write, (Granting, LeaseGrant, GrantedSubmission))]
        for kind, run in groupby(grants, key=type):
            if kind is LeaseGrant:
                yield self._grant_leases([write for write in run if isinstance(write, LeaseGrant)])
            elif kind is Granting:
                sent = [write for write in run if isinstance(write, Granting)]
                yield functions.send_grants(self._redis, self._epoch, sent)
            else:
                yield self._submit([write for write in run if isinstance(write, GrantedSubmission)], batch)

    async def _grant_leases(self, given: list[LeaseGrant]) -> None:
        self._note_granted(await held_leases.grant_leases(self._redis, self._epoch, given))

    def _note_granted(self, granted: Sequence[GrantedLease]) -> None:
        if self.lease_calls is not None:
            self.lease_calls.granted(granted)
        if self._leased is not None:
            self._leased(granted)

    async def _acquire(self, acquisitions: list[LeaseAcquisition], batch: list[Write]) -> None:
        """Write leases and pass on the result. They leave the batch: its repeat must not change what callers know."""
        assert self.lease_calls is not None
        replies, rejection = None, journal_full()
        try:
            replies = await held_leases.acquire_leases(
                self._redis, self._epoch, acquisitions, max_journal=self._max_journal, again=self._repeats
            )
        except Overloaded as error:
            rejection = error
        leave(batch, acquisitions)
        if replies is None:
            self.lease_calls.rejected(acquisitions, rejection)
        else:
            self.lease_calls.acquired(acquisitions, replies)
            self._note_granted([one.granted for one in replies if one.granted is not None])

    async def _submit(self, submitted: list[GrantedSubmission], batch: list[Write]) -> None:
        """Write granted actions and pass on the result. They leave the batch, as leases do."""
        assert self.action_calls is not None
        unwanted, again = self.action_calls.begin_write(submitted)
        if unwanted:
            leave(batch, unwanted)
            submitted = [one for one in submitted if one not in unwanted]
        limits = {"max_journal": self._max_journal, "most_kept": self._most_kept()}
        try:
            receipts = await submit_granted(self._redis, self._epoch, submitted, **limits, again=again)
        except Overloaded as error:
            self.action_calls.rejected(submitted, error)
        else:
            self.action_calls.journaled(submitted, receipts)
        leave(batch, submitted)

    def _is_void(self, write: Write) -> bool:
        if not isinstance(write, Granting) or (write.action, write.mark) not in self.void:
            return False
        self.void.discard((write.action, write.mark))
        return True

    async def _release(self, releases: list[LeaseRelease]) -> None:
        assert self.lease_calls is not None
        codes = await held_leases.release_leases(self._redis, self._epoch, releases)
        self.lease_calls.released(releases, codes)

    async def _finish(self, answers: list[Answering]) -> list[bool]:
        return await functions.answer_actions(self._redis, self._epoch, answers, keep_batch_s=self._keep_batch_s)
