"""Work outside batches runs in order of arrival, also while the duration of its kind is being learned."""

from __future__ import annotations

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import InventoryReported
from shared.policy.model.formulation import Grant, Request, Work
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.resources.ledger import Node
from tests.shared.policy.strategies import joined, reported, submitted

WORK = Work("run", "code.run", "cores@default", {"cores": 1}, 60.0)


def request(name: str, at_ms: int) -> Request:
    return Request(name, "default", "", "", (at_ms, 0), (WORK,), at_ms / 1000 + 100)


def test_the_first_requests_of_an_unseen_kind_are_not_overtaken_by_later_ones() -> None:
    dispatcher = Dispatcher()
    dispatcher.handle(0.0, joined(Node("n", "i", "default", {"cores": 1}, frozenset({"code.run"}))))
    dispatcher.handle(0.0, InventoryReported("n", "i", {}))
    granted = []
    arriving = [request(f"r{number:02}", 1000 + number) for number in range(40)]
    commands = dispatcher.handle(1.1, submitted(*arriving[:10]))
    later = iter(arriving[10:])
    now = 1.1
    while grants := [command for command in commands if isinstance(command, Grant)]:
        granted += [grant.action for grant in grants]
        now += 0.02
        ends = [Ended(grant.action, "n", grant.attempt, 0, AttemptResult("ok"), execution_s=0.02) for grant in grants]
        commands = dispatcher.handle(now, reported(*ends))
        if (new_request := next(later, None)) is not None:
            commands += dispatcher.handle(now, submitted(new_request))
    assert granted == sorted(granted)
    assert len(granted) == 40
