"""Intake: from a caller's body to a journal entry. Accepted means that the entry is on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import NamedTuple, Protocol

from redis.asyncio import Redis

from services.proxy.metrics import SUBMITTED
from services.proxy.records.batching import Batcher
from services.proxy.records.disk import StoreDisk, short_of_disk
from services.proxy.records.memory import ValkeyMemory
from services.proxy.records.workflows import plain_stages
from shared.api.requests import ActionRequest
from shared.bus import functions
from shared.bus.connection import with_retries
from shared.bus.functions import Receipt, Submission
from shared.messages.actions import ACTIONS, ActionSubmitted, StageWork
from shared.runtime.coarse_timers import CoarseTimers
from shared.runtime.errors import Conflict, NotFound, Overloaded, TreadleError, Unavailable
from shared.runtime.units import Seconds

MOST_AT_ONCE, MOST_SHARED = 256, 16
"""Submissions in one round trip, and in one while several tenants submit."""
NO_TRAJECTORY = "it was never opened, or ended long ago"


class Accepted(NamedTuple):
    """The journal's receipt."""

    action: str
    repeated: bool
    """It was accepted before, with the same body."""


class ActionDecider(Protocol):
    """The leader, if it is this replica: it grants its own callers' actions at once (`leader.local_actions`)."""

    def submit(self, submitted: ActionSubmitted) -> asyncio.Future[Receipt | None] | None:
        """Submit an action, and grant it with the same write. None, here or as the result: submit it to the journal.
        Raises Overloaded if Valkey's memory bound is reached.

        If the future is done before, the action may be submitted or not.
        """
        ...


def digest_of(stages: Sequence[StageWork], priority: float) -> bytes:
    """Return the digest of a request's content. The same id with another digest is a conflict."""
    parts: list[bytes] = []
    for stage in stages:
        parts += (
            f"{stage.name}\x00{stage.kind}\x00{stage.pool}\x00{stage.cost}\x00{stage.timeout_s}\x00".encode(),
            stage.params,
        )
        if stage.amounts or stage.elasticity or stage.duration_s:  # entries from before these fields keep their digest
            parts.append(f"\x00{stage.amounts}\x00{stage.elasticity}\x00{stage.duration_s}".encode())
        if stage.quotas:
            parts.append(f"\x00{sorted(stage.quotas.items())}".encode())
    parts.append(str(priority).encode())
    return blake2b(b"".join(parts), digest_size=16).digest()


class Intake:
    """Journals submissions, many in one round trip. Tenants take turns."""

    def __init__(
        self, redis: Redis, *, max_journal: int, limit_s: Seconds, disk: StoreDisk, memory: ValkeyMemory
    ) -> None:
        """`disk`: while it is short, only repeats of accepted work are accepted."""
        self._redis = redis
        self._disk = disk
        self._memory = memory
        self._max_journal = max_journal
        self._limit_s = limit_s
        self._batcher: Batcher[Submission, Receipt] = Batcher(self._flush, most=MOST_AT_ONCE, most_shared=MOST_SHARED)
        self._timers = CoarseTimers()
        self.leader: ActionDecider | None = None
        """Set while this replica leads."""
        self._counted = {outcome: SUBMITTED.labels(outcome) for outcome in ("accepted", "repeated", "rejected")}

    async def submit(self, submitted: ActionSubmitted) -> Accepted:
        """Journal one action.

        Raises:
            Conflict: the same id with another body; a batch that accepts no more; a trajectory that has ended.
            NotFound: no such batch or trajectory.
            Overloaded: a bound is reached. Nothing was accepted.
            Unavailable: Valkey did not answer in time. The action may be accepted: repeat it with the same id.
        """
        receipt = None
        if self.leader is not None and self._disk.shortage() is None:
            granted = self.leader.submit(submitted)
            receipt = None if granted is None else await self._in_time(granted)
        return self._accepted(submitted, await self._put(submitted) if receipt is None else receipt)

    async def _in_time(self, receipt: asyncio.Future[Receipt | None]) -> Receipt | None:
        expiry = self._timers.after(self._limit_s, partial(_expire, receipt, self._limit_s))
        try:
            return await receipt
        finally:
            expiry.cancel()

    async def submit_all(self, submissions: Sequence[ActionSubmitted]) -> list[Accepted | Exception]:
        """Journal the actions of one call; return for each what `submit` would return or raise.

        Costs less than as many calls of `submit`, because no task is created. If it is cancelled, actions that have not
        been sent to Valkey are dropped.
        """
        receipts = [self._put(submitted) for submitted in submissions]
        try:
            if receipts:
                await asyncio.wait(receipts)
        finally:
            for receipt in receipts:
                receipt.cancel()  # without effect on receipts that have arrived
        ends: list[Accepted | Exception] = []
        for submitted, receipt in zip(submissions, receipts, strict=True):
            try:
                ends.append(self._accepted(submitted, receipt.result()))
            except Exception as error:  # noqa: BLE001  # the caller gets it
                ends.append(error)
        return ends

    @property
    def shared(self) -> bool:
        """True if several tenants submit. A call with many lines should submit few at once then."""
        return self._batcher.shared

    def most_kept(self) -> int:
        """Return how much memory the kept answers of one tenant may take now, bytes; 0: no bound."""
        return self._memory.most_kept

    @property
    def accepts_new(self) -> bool:
        """True unless the disk is short."""
        return self._disk.shortage() is None

    def _put(self, submitted: ActionSubmitted) -> asyncio.Future[Receipt]:
        return self._batcher.put(submission_of(submitted), submitted.tenant)

    def _accepted(self, submitted: ActionSubmitted, receipt: Receipt) -> Accepted:
        if (refusal := refusal_of(receipt, submitted)) is not None:
            self._counted["rejected"].inc()
            raise refusal
        repeated = receipt.code == "repeated"
        self._counted["repeated" if repeated else "accepted"].inc()
        return Accepted(submitted.action, repeated)

    async def _flush(self, submissions: list[Submission]) -> list[Receipt]:
        shortage = self._disk.shortage()

        async def attempt() -> list[Receipt]:
            return await functions.journal_actions(
                self._redis,
                submissions,
                max_journal=0 if shortage else self._max_journal,
                most_kept=self.most_kept(),
            )

        receipts = await with_retries(attempt, what="submitting", limit_s=self._limit_s)
        if shortage is None:
            return receipts
        return [receipt if receipt.code != "journal-full" else Receipt("disk-short", shortage) for receipt in receipts]


def _expire(receipt: asyncio.Future[Receipt | None], limit_s: Seconds) -> None:
    if not receipt.done():
        receipt.set_exception(Unavailable(what=f"submitting: Valkey has not answered for {limit_s:.0f} s"))


def submission_of(submitted: ActionSubmitted) -> Submission:
    """Return what the journal gets of an action."""
    return Submission(
        submitted.action,
        digest_of(submitted.stages, submitted.priority),
        submitted.batch,
        ACTIONS.encode(submitted),
        submitted.trajectory,
        submitted.tenant,
    )


def journal_full() -> Overloaded:
    """Return the error that rejects new work while the journal is full."""
    return Overloaded(what="too many unanswered actions", retry_after_s=2.0)


def trajectory_ended(trajectory: str, how: str) -> Conflict:
    """Return the error for a request to a trajectory that has ended. `how`: its state, a space, and the reason."""
    state, _, reason = how.partition(" ")
    return Conflict(what=f"trajectory {trajectory} is {state}: {reason}")


def refusal_of(receipt: Receipt, submitted: ActionSubmitted) -> TreadleError | None:
    """Return the error for a submission that the journal has rejected; None if it was accepted."""
    match receipt.code:
        case "conflict":
            return Conflict(what=f"request_id {submitted.request!r} was used with another body; use a new one")
        case "no-batch":
            return NotFound(kind="batch", name=submitted.batch, hint="it was never opened, or has expired")
        case "batch-closed":
            return Conflict(what=f"batch {submitted.batch} is {receipt.entry} and accepts no more requests")
        case "batch-full":
            return Conflict(what=f"batch {submitted.batch} already has its {receipt.entry} requests")
        case "no-trajectory":
            return NotFound(kind="trajectory", name=submitted.trajectory, hint=NO_TRAJECTORY)
        case "trajectory-ended":
            return trajectory_ended(submitted.trajectory, receipt.entry)
        case "answer-gone":
            why = "was answered, and its answer has expired; it is not executed again"
            return Conflict(what=f"request_id {submitted.request!r} {why}")
        case "tenant-full":
            what = f"the kept answers of tenant {submitted.tenant!r} fill its part of Valkey until they are archived"
            return Overloaded(what=what, retry_after_s=2.0)
        case "journal-full":
            return journal_full()
        case "disk-short":
            return short_of_disk(receipt.entry)
    return None


def of_action(action: str, tenant: str, request: ActionRequest) -> ActionSubmitted:
    """Return a plain action under this id, as the journal stores it.

    Raises:
        BadRequest: it is invalid.
    """
    return ActionSubmitted(
        action=action,
        tenant=tenant,
        request=request.request_id or "",
        stages=plain_stages(request),
        budget_s=request.budget_s,
        priority=request.priority,
        for_trajectory=request.trajectory or "",
    )
