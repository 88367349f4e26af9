"""Admission of this replica's calls: each waits until the leader has sent it to a worker, or is refused.

`Admission` has the futures of the clients and the calls in flight. It passes stimuli to a `Term`: the leader's own
policy (`leading`), or the leader's replica over the stream (`following`). When the leader changes, it reports its calls
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from services.trajectory_router.metrics import IN_FLIGHT, REFUSED, RESENT, WAITING
from shared.policy.routing.model import (
    CallArrived,
    CallEnded,
    CallProgressed,
    ModelCall,
    Refuse,
    Stimulus,
)
from shared.runtime.errors import DeadlineMissed, NotFound, Overloaded, TreadleError, Unavailable

T = TypeVar("T")

PROGRESS_S: Final = 1.0
"""Least time between two reports of one call's progress."""


class Recalled(Exception):
    """The worker of a call makes no progress: the call goes to another one."""


class Term(Protocol):
    """Where stimuli about calls go."""

    def put(self, stimulus: Stimulus) -> None:
        """Pass a stimulus on. What it leads to may come back before this returns."""
        ...


class _UnderWay:
    """A call of this replica, from its arrival until its end."""

    __slots__ = ("call", "closed", "future", "progressed", "recalled", "task", "unanswered", "worker")

    def __init__(self, call: ModelCall, future: asyncio.Future[str]) -> None:
        self.call = call
        self.future = future
        self.worker = ""
        """Worker that carries it; empty: it waits."""
        self.unanswered: asyncio.Task[object] | None = None
        """Task that waits for the first byte of its answer."""
        self.recalled = False
        self.task = asyncio.current_task()
        """Task that carries it."""
        self.closed = False
        """Its trajectory was closed, and its task cancelled."""
        self.progressed = 0.0
        """Loop time of the last report of progress, or of the begin at its worker."""


class Admission:
    """Calls of this replica's clients."""

    def __init__(self, replica: str, *, most: int) -> None:
        """`most`: calls at once, waiting or in flight."""
        self.replica = replica
        self.term: Term | None = None
        """None while no leader is known. Calls wait meanwhile."""
        self._most = most
        self._calls: dict[str, _UnderWay] = {}
        IN_FLIGHT.set_function(lambda: sum(1 for one in self._calls.values() if one.worker))
        WAITING.set_function(lambda: sum(1 for one in self._calls.values() if not one.worker))

    def __len__(self) -> int:
        return len(self._calls)

    # ---- calls -------------------------------------------------------------------------------------------------

    async def place(self, call: ModelCall) -> str:
        """Return the worker for a call. Report its end with `ended`, or place it again with `replace`.

        Raises:
            TreadleError: it was refused.
        """
        if len(self._calls) >= self._most:
            raise Overloaded(what=f"this router carries {len(self._calls)} calls, which is its bound")
        under_way = _UnderWay(call, asyncio.get_running_loop().create_future())
        self._calls[call.id] = under_way
        return await self._placed(under_way)

    async def place_again(self, call_id: str, outcome: str, avoid: str) -> str:
        """Return another worker for a call that its worker has not answered.

        Raises:
            TreadleError: it was refused.
        """
        under_way = self._calls[call_id]
        self._put(CallEnded(call_id, "overloaded" if outcome == "overloaded" else "unreachable"))
        RESENT.labels(outcome).inc()
        call = under_way.call
        under_way.call = replace(call, avoid=call.avoid | {avoid}, tries=call.tries + 1)
        under_way.future = asyncio.get_running_loop().create_future()
        under_way.worker = ""
        return await self._placed(under_way)

    async def _placed(self, under_way: _UnderWay) -> str:
        self._put(CallArrived(under_way.call))
        try:
            return await under_way.future
        except BaseException:
            if not under_way.closed and self._calls.pop(under_way.call.id, None) is not None:
                self._put(CallEnded(under_way.call.id, "aborted"))
            raise

    async def first_byte(self, call_id: str, answer: Awaitable[T]) -> T:
        """Wait for the first byte of a call's answer.

        Raises:
            Recalled: its worker makes no progress.
        """
        under_way = self._calls[call_id]
        task = under_way.task
        assert task is not None
        under_way.unanswered = task
        try:
            return await answer
        except asyncio.CancelledError:
            if under_way.recalled:
                under_way.recalled = False
                task.uncancel()
                raise Recalled from None
            raise
        finally:
            under_way.unanswered = None

    def recall(self, call_id: str) -> None:
        """End a call at its worker, if no byte of its answer has come."""
        under_way = self._calls.get(call_id)
        if under_way is not None and under_way.unanswered is not None and not under_way.recalled:
            under_way.recalled = True
            under_way.unanswered.cancel()

    def progressed(self, call_id: str, now: float) -> None:
        """Report that bytes of an answer have arrived. `now`: the loop's time."""
        under_way = self._calls.get(call_id)
        if under_way is not None and now - under_way.progressed >= PROGRESS_S:
            under_way.progressed = now
            self._put(CallProgressed(call_id))

    def ended(self, end: CallEnded) -> None:
        """Report the end of a call."""
        if self._calls.pop(end.call, None) is not None:
            self._put(end)

    def close_trajectory(self, trajectory: str) -> None:
        """End the calls of a trajectory. O(calls of this replica)."""
        for one in self._calls.values():
            if one.call.trajectory == trajectory and one.task is not None and not one.closed:
                one.closed = True
                one.task.cancel()

    def was_closed(self, call_id: str) -> bool:
        """Return whether a call was cancelled because its trajectory was closed."""
        under_way = self._calls.get(call_id)
        return under_way is not None and under_way.closed

    def _put(self, stimulus: Stimulus) -> None:
        if self.term is not None:
            self.term.put(stimulus)

    # ---- decisions ---------------------------------------------------------------------------------------------

    def sent(self, call_id: str, worker: str) -> bool:
        """Let a call's relay begin. False: its client has gone."""
        under_way = self._calls.get(call_id)
        if under_way is None:
            return False
        if not under_way.future.done():
            under_way.worker = worker
            under_way.progressed = under_way.future.get_loop().time()
            under_way.future.set_result(worker)
        return True

    def refused(self, refusal: Refuse) -> None:
        """Let a call's client be answered with an error."""
        under_way = self._calls.pop(refusal.call, None)
        if under_way is not None and not under_way.future.done():
            REFUSED.labels(refusal.code).inc()
            under_way.future.set_exception(_error(refusal, under_way.call))

    def in_flight(self) -> Iterator[tuple[ModelCall, str]]:
        """Calls that workers answer, with their workers: for a new leader."""
        for one in self._calls.values():
            if one.worker:
                yield one.call, one.worker

    def waiting(self) -> Iterator[ModelCall]:
        """Calls that wait: for a new leader."""
        for one in self._calls.values():
            if not one.worker:
                yield one.call


def _error(refusal: Refuse, call: ModelCall) -> TreadleError:
    match refusal.code:
        case "no-model":
            return NotFound(kind="model", name=call.model, hint=refusal.reason)
        case "late":
            return DeadlineMissed(what=refusal.reason)
        case "queue-full":
            return Overloaded(what=refusal.reason, retry_after_s=refusal.retry_after_s or 1.0)
        case "no-worker":
            return Unavailable(what=refusal.reason, retry_after_s=refusal.retry_after_s or 1.0)
