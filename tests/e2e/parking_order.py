"""Oracle of the order in which parked actions continue: it reads a leader's log and knows nothing of its queues."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from shared.kinds.registry import all_kinds
from shared.policy.dispatch.stimuli import (
    AttemptParked,
    AttemptsEnded,
    ParkRequested,
    RequestsSubmitted,
    ResumeRequested,
    Stimulus,
)
from shared.policy.order.ebf import EbfKey
from shared.store.dispatch_log import DispatchLogReader, to_builtins


@dataclass
class ParkingOrder:
    """Actions of one tenant that need one core each, on one node. Checks after each step of the leader:

    - no action continues or begins while an earlier one (by its key) waits to continue;
    - no core is idle while one waits to continue.

    So each one waits for turns of those ahead of it only.
    """

    cores: int
    keys: dict[str, EbfKey] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    parked: set[str] = field(default_factory=set)
    early: set[str] = field(default_factory=set)
    """Asked to continue before they were parked."""
    waiting: dict[str, int] = field(default_factory=dict)
    """Action that waits to continue -> turns of others since it asked."""
    waits: list[tuple[int, int]] = field(default_factory=list)
    """Of each continuation: turns of others since it was asked for, and actions ahead of it then."""
    delayed: set[str] = field(default_factory=set)
    """Actions that waited to continue after all decisions of a step."""
    _ahead: dict[str, int] = field(default_factory=dict)

    def given(self, stimulus: Stimulus) -> None:
        """Apply what the leader has received."""
        match stimulus:
            case AttemptParked(action=action) if action in self.running:
                self.running.remove(action)
                self.parked.add(action)
                if action in self.early:
                    self._ask(action)
            case ResumeRequested(action=action) if action in self.parked:
                self._ask(action)
            case ResumeRequested(action=action) if action in self.running:
                self.early.add(action)
            case ParkRequested(action=action):
                self.early.discard(action)
                self.waiting.pop(action, None)
            case AttemptsEnded(ends=ends):
                for end in ends:
                    for known in (self.running, self.parked, self.early):
                        known.discard(end.action)
                    self.waiting.pop(end.action, None)
            case _:
                pass

    def _ask(self, action: str) -> None:
        self.early.discard(action)
        if action not in self.waiting:
            self.waiting[action] = 0
            self._ahead[action] = sum(self.keys[other] < self.keys[action] for other in self.running | self.parked)

    def granted(self, action: str) -> None:
        """Apply a decision of the leader: this action begins or continues."""
        if action in self.waiting:
            self.waits.append((self.waiting.pop(action), self._ahead[action]))
        overtaken = [other for other in self.waiting if self.keys[other] < self.keys[action]]
        assert not overtaken, f"{action} passes {overtaken}"
        for other in self.waiting:
            self.waiting[other] += 1
        self.parked.discard(action)
        self.running.add(action)
        assert len(self.running) <= self.cores

    def decided(self) -> None:
        """Check the state after all decisions of one step."""
        self.delayed |= self.waiting.keys()
        assert not self.waiting or len(self.running) == self.cores, "a core is idle, and a parked action waits"


def read_parking_order(log: Path, cores: int) -> ParkingOrder:
    """Check a whole log; return what was found. The dispatcher repeats its decisions only to show the actions' keys."""
    reader, order = DispatchLogReader(log), ParkingOrder(cores)
    dispatcher = reader.header.dispatcher(all_kinds().resources)
    for call in reader.calls():
        commands = to_builtins(dispatcher.handle(call.now, *call.given))
        assert commands == call.commands
        for stimulus in call.given:
            if isinstance(stimulus, RequestsSubmitted):
                for request in stimulus.requests:
                    action = dispatcher.action(request.id)
                    assert action is not None
                    order.keys[request.id] = action.key
            order.given(stimulus)
        for kind, command in commands:
            if kind in ("Grant", "Resume"):
                order.granted(command["action"] if isinstance(command, dict) else command[0])
        order.decided()
    assert not reader.torn
    return order
