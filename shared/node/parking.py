"""Parking on a node: freezes running attempts, gives their units back, and continues them (ADR 0054).

Laws:
  - the units of an attempt are free before `Parked` is reported, and are taken before the executor resumes it;
  - an attempt that waits for its units goes before every waiting grant;
  - a message that is older than the newest one about its attempt, or repeats it, is ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from shared.messages.grants import AttemptParkRequested, AttemptResumed
from shared.messages.outcomes import Parked
from shared.node.executor import Parking
from shared.node.resource_usage import ResourceUsage
from shared.node.running import RunningAttempt
from shared.runtime import log
from shared.runtime.clock import Clock
from shared.runtime.units import Seconds

_log = log.get(__name__)

ParkMessage = AttemptParkRequested | AttemptResumed


@dataclass(slots=True)
class ParkedAttempts:
    """Parks and continues the running attempts of one node."""

    node: str
    parking: Parking | None
    """None: this manager parks nothing, and requests are ignored."""
    resources: Mapping[str, ResourceUsage]
    clock: Clock
    report: Callable[[Parked], None]
    freed: Callable[[Seconds], None]
    """Called after units have become free."""
    _waiting: dict[str, RunningAttempt] = field(default_factory=dict)
    """Action -> its attempt that waits for its units; in order of arrival."""

    @property
    def any_waits(self) -> bool:
        """True if a parked attempt waits for its units."""
        return bool(self._waiting)

    def park(self, running: RunningAttempt, asked: AttemptParkRequested) -> None:
        """Begin to park an attempt. `Parked` is reported when it is frozen, and not if it ends before."""
        if self.parking is None:
            _log.warning("not_parked", action=asked.action, reason="this manager parks nothing")
        elif _is_newer(running, asked):
            if running.state == "running":
                running.state = "parking"
                running.freezing = asyncio.create_task(self.parking.park(running.task), name=f"park {asked.action}")
                running.freezing.add_done_callback(partial(self._frozen, running))
            elif running.state == "resuming":
                del self._waiting[asked.action]
                self._set_parked(running)

    def _frozen(self, running: RunningAttempt, freezing: asyncio.Task[bool]) -> None:
        if running.freezing is not freezing:
            return  # the attempt has ended
        running.freezing = None
        error = asyncio.CancelledError() if freezing.cancelled() else freezing.exception()
        if error is not None:
            _log.error("parking_failed", action=running.grant.action, exc_info=error)
        if error is not None or not freezing.result():
            running.state = "running"
            return
        running.paused_at = self.clock.monotonic()
        for name, units in running.units.items():
            self.resources[name].use(-units, running.paused_at)
        self._set_parked(running)

    def _set_parked(self, running: RunningAttempt) -> None:
        """Report an attempt that is frozen and holds no units. Others may take them, or its place in the order."""
        grant = running.grant
        running.state, running.reported = "parked", True
        self.report(Parked(action=grant.action, node=self.node, epoch=grant.epoch, attempt=grant.attempt))
        self.freed(self.clock.monotonic())

    def resume(self, running: RunningAttempt, asked: AttemptResumed) -> None:
        """Continue a parked attempt as soon as its units are free."""
        if _is_newer(running, asked) and running.state == "parked":
            running.state = "resuming"
            self._waiting[asked.action] = running
            self.resume_next(self.clock.monotonic())

    def resume_next(self, now: Seconds) -> bool:
        """Assign free units to the attempts that wait for theirs, in order. Return False if one still waits."""
        while self._waiting:
            running = next(iter(self._waiting.values()))
            if any(units > self.resources[name].free for name, units in running.units.items()):
                return False
            del self._waiting[running.grant.action]
            assert self.parking is not None, "it was parked by an executor that can park"
            for name, units in running.units.items():
                self.resources[name].use(units, now)
            running.paused_s += now - running.paused_at
            running.state = "running"
            self.parking.resume(running.grant, running.task)
        return True

    def ended(self, running: RunningAttempt) -> None:
        """Forget an attempt that has ended."""
        if self._waiting.get(running.grant.action) is running:
            del self._waiting[running.grant.action]
        if running.freezing is not None:
            freezing, running.freezing = running.freezing, None
            freezing.cancel()


def _is_newer(running: RunningAttempt, asked: ParkMessage) -> bool:
    if order_of(asked) <= running.order:
        return False
    running.order = order_of(asked)
    return True


def order_of(asked: ParkMessage) -> tuple[int, int]:
    """Return the position of this message among those about one attempt."""
    return asked.epoch, asked.serial
