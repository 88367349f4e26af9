"""A dispatcher in virtual time on hosts that never fail: start times of actions."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import InventoryReported, NodeSeen, TickPassed
from shared.policy.model.formulation import AnswerAction, Command, Grant, Request, SetShare
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.resources.ledger import Node
from tests.shared.policy.strategies import joined, reported, submitted


@dataclass(slots=True)
class VirtualTimeMesh:
    """Executes every grant for the seconds of `lasts`, then reports it ok."""

    nodes: Iterable[Node]
    lasts: Callable[[Request], float]
    dispatcher: Dispatcher = field(default_factory=Dispatcher)
    now: float = 0.0
    started: dict[str, float] = field(default_factory=dict)
    """Action -> when its newest stage was granted, in the order of the grants."""
    answered: dict[str, str] = field(default_factory=dict)
    shares: dict[tuple[str, str], int] = field(default_factory=dict)
    """(node, resource) -> units it was last assigned to own."""
    _requests: dict[str, Request] = field(default_factory=dict)
    _agenda: list[tuple[float, int, Ended | Request]] = field(default_factory=list)
    _serial: int = 0

    def __post_init__(self) -> None:
        for node in self.nodes:
            self.do(self.dispatcher.handle(self.now, joined(node)))
            self.do(self.dispatcher.handle(self.now, InventoryReported(node.name, node.incarnation, {})))

    def at(self, when: float, event: Ended | Request) -> None:
        """Schedule an event."""
        self._serial += 1
        heapq.heappush(self._agenda, (when, self._serial, event))

    def submit(self, *requests: Request) -> None:
        """Submit requests now, together."""
        self._requests.update((request.id, request) for request in requests)
        self.do(self.dispatcher.handle(self.now, submitted(*requests)))

    def do(self, commands: Iterable[Command]) -> None:
        """Execute the dispatcher's commands at once."""
        for command in commands:
            match command:
                case Grant():
                    self.started.pop(command.action, None)
                    self.started[command.action] = self.now
                    lasts = self.lasts(self._requests[command.action])
                    ended = Ended(
                        command.action,
                        command.node,
                        command.attempt,
                        command.stage,
                        AttemptResult("ok", True),
                        execution_s=lasts,
                    )
                    self.at(self.now + lasts, ended)
                case AnswerAction():
                    self.answered[command.action] = command.ended
                case SetShare():
                    self.shares[command.node, command.resource] = command.units
                case _:
                    pass

    def run(self, until: float = float("inf")) -> None:
        """Handle all events until then, in order."""
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, event = heapq.heappop(self._agenda)
            if isinstance(event, Request):
                self.submit(event)
            else:
                self.do(self.dispatcher.handle(self.now, reported(event)))
            self.dispatcher.check()
        if until < float("inf"):
            self.now = until

    def tick(self, when: float) -> None:
        """Run until then; then tick the dispatcher."""
        self.run(when)
        for name in self.dispatcher.cluster.nodes.present:
            node = self.dispatcher.cluster.nodes.present[name]
            self.dispatcher.handle(when, NodeSeen(name, node.incarnation))
        self.do(self.dispatcher.handle(when, TickPassed()))
