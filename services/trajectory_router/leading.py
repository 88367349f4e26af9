"""The leader's term: the policy of all calls, its timer, and the execution of its commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, get_args

from redis.asyncio import Redis

from services.trajectory_router.admission import Admission
from services.trajectory_router.metrics import WORKERS
from shared.bus import workers as stored
from shared.bus.connection import TRANSIENT, ValkeyClock
from shared.bus.workers import StoredView
from shared.messages.routing import (
    CallsDecided,
    CallsReported,
    EndedCall,
    FinishedTrajectory,
    ProgressedCall,
    RefusedCall,
    SentCall,
    WaitingCall,
)
from shared.policy.routing.model import (
    CallArrived,
    CallEnded,
    CallProgressed,
    CallRestored,
    Canary,
    Command,
    ModelCall,
    Pin,
    Recall,
    Refuse,
    Send,
    Stimulus,
    Ticked,
    TrajectoryEnded,
    WorkerChanged,
    WorkerState,
)
from shared.policy.routing.router import Router
from shared.runtime import log
from shared.runtime.units import Epoch

_log = log.get(__name__)

MOST_DECIDED: Final = 512
"""Decisions in one message."""


class LeaderTerm:
    """One term of leadership."""

    def __init__(
        self,
        epoch: Epoch,
        router: Router,
        admission: Admission,
        redis: Redis,
        clock: ValkeyClock,
        canary: Callable[[str], None],
    ) -> None:
        """`canary`: calls a worker for one token in the background, and reports with `put`."""
        self.epoch = epoch
        self.router = router
        self._admission = admission
        self._redis = redis
        self._clock = clock
        self._canary = canary
        self._timer: asyncio.TimerHandle | None = None
        self._armed_s = float("inf")
        self._pins: dict[str, str] = {}
        self._sent: list[SentCall] = []
        self._refused: list[RefusedCall] = []
        self._recalled: list[tuple[str, str]] = []
        self._more = asyncio.Event()

    def put(self, *changes: Stimulus) -> None:
        """Handle stimuli now, and execute the commands."""
        self._execute(self.router.handle(self._clock.unix(), *changes))
        self._arm()

    def report(self, report: CallsReported) -> None:
        """Handle the calls of a follower. A whole report also ends the calls that are not in it, and repeats decisions
        that were lost.
        """
        restored = [CallRestored(to_call(call, report.replica), worker) for call, worker in report.restored]
        events = report.events
        if report.whole:
            listed = {call.id for call, _ in report.restored} | {
                one.id for one in events if isinstance(one, WaitingCall)
            }
            events = [event for event in events if not self._repeat(event, report.replica)]
            ended = [CallEnded(call, "aborted") for call in self.router.calls_of(report.replica) - listed]
            self.put(*ended)
        self.put(*restored, *(_stimulus(event, report.replica) for event in events))

    def _repeat(self, event: object, replica: str) -> bool:
        """Send a decision again whose call still waits at its replica."""
        worker = self.router.worker_of(event.id) if isinstance(event, WaitingCall) else None
        if worker is None or not isinstance(event, WaitingCall):
            return False
        self._sent.append(SentCall(event.id, replica, worker))
        self._more.set()
        return True

    def _execute(self, commands: list[Command]) -> None:
        gone: list[Stimulus] = []
        for command in commands:
            match command:
                case Send() | Refuse() | Recall():
                    if command.replica != self._admission.replica:
                        self._pass_on(command)
                    elif not self._do(command):
                        gone.append(CallEnded(command.call, "aborted"))
                case Pin(trajectory, worker):
                    self._pins[trajectory] = worker
                case Canary(worker):
                    self._canary(worker)
                case WorkerChanged(worker, state, reason):
                    _log.info("worker_state_changed", worker=worker, state=state, reason=reason)
        if self._sent or self._refused or self._recalled or self._pins:
            self._more.set()
        if gone:
            self.put(*gone)

    def _do(self, command: Send | Refuse | Recall) -> bool:
        """Execute a command about a call of this replica. False: its client has gone."""
        match command:
            case Send(call, _, worker):
                return self._admission.sent(call, worker)
            case Refuse():
                self._admission.refused(command)
            case Recall(call):
                self._admission.recall(call)
        return True

    def _pass_on(self, command: Send | Refuse | Recall) -> None:
        """Send a command to the replica that has the call, with the next message."""
        match command:
            case Send():
                self._sent.append(SentCall(command.call, command.replica, command.worker))
            case Refuse():
                self._refused.append(RefusedCall(*command))
            case Recall():
                self._recalled.append((command.call, command.replica))

    def _arm(self) -> None:
        """Set the timer to the next time at which the policy has something due, or leave it at an earlier one.

        Most changes make that time later. The earlier timer sets the next one when it fires.
        """
        due_s = self.router.due()
        if due_s >= self._armed_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_s = due_s
        wait_s = max(0.0, due_s - self._clock.unix())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer, self._armed_s = None, float("inf")
        self.put(Ticked())

    async def publish_views(self) -> None:
        """Store what the workers do, and set the metric of their states."""
        views = [StoredView(*view) for view in self.router.activities(self._clock.unix())]
        states = [view.state for view in views]
        for state in get_args(WorkerState):
            WORKERS.labels(state).set(states.count(state))
        await stored.store_views(self._redis, views)

    async def run(self) -> None:
        """Loop: publish decisions about followers' calls, and store pins."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._sent or self._refused or self._recalled:
                sent, self._sent = self._sent[:MOST_DECIDED], self._sent[MOST_DECIDED:]
                refused, self._refused = self._refused, []
                recalled, self._recalled = self._recalled, []
                decided = CallsDecided(epoch=self.epoch, sent=sent, refused=refused, recalled=recalled)
                await self._retried(decided)
            pins, self._pins = self._pins, {}
            try:
                await stored.store_pins(self._redis, pins)
            except TRANSIENT as error:
                _log.warning("valkey_unavailable", what="storing pins", error=str(error))
                self._pins = pins | self._pins
                await asyncio.sleep(0.5)
                self._more.set()

    async def _retried(self, decided: CallsDecided) -> None:
        while True:
            try:
                return await stored.publish(self._redis, decided)
            except TRANSIENT as error:
                _log.warning("valkey_unavailable", what="publishing decisions", error=str(error))
                await asyncio.sleep(0.2)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()


def _stimulus(event: WaitingCall | ProgressedCall | EndedCall | FinishedTrajectory, replica: str) -> Stimulus:
    match event:
        case WaitingCall():
            return CallArrived(to_call(event, replica))
        case ProgressedCall(call):
            return CallProgressed(call)
        case EndedCall():
            return CallEnded(event.call, event.outcome, event.held_tokens)
        case FinishedTrajectory():
            return TrajectoryEnded(event.trajectory)


def to_call(call: WaitingCall, replica: str) -> ModelCall:
    """Return the policy's value of a follower's call."""
    return ModelCall(
        call.id,
        replica,
        call.trajectory,
        call.tenant,
        call.group,
        call.model,
        call.priority,
        call.context_tokens,
        call.most_tokens,
        call.deadline_s,
        frozenset(call.avoid),
        call.tries,
    )
