"""A follower's term: reports what happens to its calls to the leader's replica, over the stream."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from redis.asyncio import Redis

from services.trajectory_router.admission import Admission
from shared.bus import workers as stored
from shared.bus.connection import TRANSIENT
from shared.messages.routing import (
    CallsDecided,
    CallsReported,
    EndedCall,
    FinishedTrajectory,
    ProgressedCall,
    WaitingCall,
)
from shared.policy.routing.model import (
    CallArrived,
    CallEnded,
    CallProgressed,
    ModelCall,
    Refuse,
    Stimulus,
    TrajectoryEnded,
)
from shared.runtime import log
from shared.runtime.units import Epoch, Seconds

_log = log.get(__name__)

WHOLE_S: Final[Seconds] = 10.0
"""Interval at which all calls are reported: a message may be lost when the stream is trimmed."""
MOST_REPORTED: Final = 512
"""Stimuli in one message."""


class FollowerTerm:
    """One term of another replica."""

    def __init__(self, epoch: Epoch, admission: Admission, redis: Redis) -> None:
        self.epoch = epoch
        self._admission = admission
        self._redis = redis
        self._waiting: list[Stimulus] = []
        self._more = asyncio.Event()
        self._whole = True
        """The next report has all calls."""

    def put(self, stimulus: Stimulus) -> None:
        """Report a stimulus with the next message."""
        self._waiting.append(stimulus)
        self._more.set()

    def decide(self, decided: CallsDecided) -> None:
        """Execute the leader's decisions about calls of this replica."""
        own = self._admission.replica
        for sent in decided.sent:
            if sent.replica == own and not self._admission.sent(sent.call, sent.worker):
                self.put(CallEnded(sent.call, "aborted"))
        for call, replica in decided.recalled:
            if replica == own:
                self._admission.recall(call)
        for refused in decided.refused:
            if refused.replica == own:
                self._admission.refused(Refuse(refused.call, own, refused.code, refused.reason, refused.retry_after_s))

    async def run(self) -> None:
        """Loop: send reports. The first one, and later some, have all calls of this replica."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._more.wait()
            self._more.clear()
            if loop.time() >= due_s:
                self._whole, due_s = True, loop.time() + WHOLE_S
            while self._waiting or self._whole:
                report = self._next()
                while True:
                    try:
                        await stored.publish(self._redis, report)
                        break
                    except TRANSIENT as error:
                        _log.warning("valkey_unavailable", what="reporting calls", error=str(error))
                        await asyncio.sleep(0.2)

    def _next(self) -> CallsReported:
        replica, epoch = self._admission.replica, self.epoch
        if self._whole:
            self._whole = False
            self._waiting.clear()  # all of it is in the calls as they are now
            return CallsReported(
                replica=replica,
                epoch=epoch,
                restored=[(_waiting(call), worker) for call, worker in self._admission.in_flight()],
                events=[_waiting(call) for call in self._admission.waiting()],
                whole=True,
            )
        part, self._waiting = self._waiting[:MOST_REPORTED], self._waiting[MOST_REPORTED:]
        return CallsReported(replica=replica, epoch=epoch, events=[_event(one) for one in part])


def _event(stimulus: Stimulus) -> WaitingCall | ProgressedCall | EndedCall | FinishedTrajectory:
    match stimulus:
        case CallArrived(call):
            return _waiting(call)
        case CallProgressed(call):
            return ProgressedCall(call)
        case CallEnded(call, outcome, held_tokens):
            return EndedCall(call, outcome, held_tokens)
        case TrajectoryEnded(trajectory):
            return FinishedTrajectory(trajectory)
        case _:
            raise AssertionError(f"a follower reports no {type(stimulus).__name__}")


def _waiting(call: ModelCall) -> WaitingCall:
    return WaitingCall(
        call.id,
        call.trajectory,
        call.tenant,
        call.group,
        call.model,
        call.priority,
        call.context_tokens,
        call.most_tokens,
        call.deadline_s,
        sorted(call.avoid),
        call.tries,
    )
