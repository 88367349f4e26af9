"""Holds of attempts at a takeover: their node's report or its absence settles them, at the cost of that node alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import HoldRestored, QuotaSet
from shared.policy.dispatch.stimuli import ActionRestored, InventoryReported, NodeJoined, NodeSeen, TickPassed
from shared.policy.model.quotas import QuotaHold, QuotaLimits, hold_key
from shared.policy.model.reports import HeldGrant
from tests.shared.policy.strategies import SPECS, request, submitted, work

TAKING = replace(work(timeout_s=600.0), quotas={"model": 1.0})
NODES = ("n0", "n1", "n2")


def taken_over() -> Dispatcher:
    """A new leader that has read two grants with holds on each node, and a hold of an answered action."""
    dispatcher = Dispatcher(specs=SPECS)
    dispatcher.handle(0.0, QuotaSet("model", QuotaLimits((100.0,))))
    for node in NODES:
        for name in (f"{node}-a", f"{node}-b", f"{node}-answered"):
            hold = QuotaHold(name, 0, 1, node, "1", 0.0, {"model": 1.0})
            dispatcher.handle(0.0, HoldRestored(hold))
            if not name.endswith("answered"):
                dispatcher.handle(0.0, submitted(request(name, TAKING)), ActionRestored(name, 0, 1, (), node))
    dispatcher.check()
    return dispatcher


def held(dispatcher: Dispatcher) -> set[str]:
    return {hold.action for hold in dispatcher.cluster.quotas.holds.values()}


def join(dispatcher: Dispatcher, node: str, *listed: str) -> None:
    dispatcher.handle(0.5, NodeJoined(node, "1", "cpu", {"cores": 2}, frozenset({"run"})))
    grants = {name: HeldGrant(0, 1, 1.0, {"cores": 1}) for name in listed}
    dispatcher.handle(0.5, InventoryReported(node, "1", grants))
    dispatcher.check()


def test_an_inventory_settles_the_holds_that_it_does_not_list() -> None:
    dispatcher = taken_over()
    join(dispatcher, "n1", "n1-a", "n1-b")
    assert held(dispatcher) == {f"{node}-{what}" for node in NODES for what in ("a", "b", "answered")} - {"n1-answered"}


@pytest.mark.parametrize("back", [False, True])
def test_holds_of_a_node_that_stays_away_end_with_their_attempts(back: bool) -> None:
    """A node that comes back within the grace keeps the holds of what it lists."""
    dispatcher = taken_over()
    grace_s = dispatcher.config.node_lost_s
    dispatcher.handle(1.0, TickPassed())
    if back:
        dispatcher.handle(grace_s, NodeJoined("n1", "1", "cpu", {"cores": 2}, frozenset({"run"})))
    for now in (grace_s + 1.5, grace_s + 2.0):
        dispatcher.handle(now, NodeSeen("n1", "1"), TickPassed())
        dispatcher.check()
    assert held(dispatcher) == ({f"n1-{what}" for what in ("a", "b", "answered")} if back else set())


class Unscanned(dict[str, QuotaHold]):
    """Holds that must not be walked."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all holds were walked")

    def values(self) -> Any:
        raise AssertionError("all holds were walked")

    items = values


def test_hellos_inventories_and_ticks_do_not_walk_all_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed. A takeover has a hello and an inventory of each node, so a walk in each is quadratic."""
    dispatcher, keys = taken_over(), []
    quotas = dispatcher.cluster.quotas
    quotas.holds = Unscanned(quotas.holds)
    for node in NODES:
        dispatcher.handle(0.5, NodeJoined(node, "1", "cpu", {"cores": 2}, frozenset({"run"})))
        listed = {f"{node}-{what}": HeldGrant(0, 1, 1.0, {"cores": 1}) for what in ("a", "b")}
        dispatcher.handle(0.5, InventoryReported(node, "1", listed))

    def counted(action: ActionState) -> str:
        keys.append(action.request.id)
        return hold_key(action.request.id, action.stage, action.attempt)

    monkeypatch.setattr(ActionState, "hold_key", property(counted))
    dispatcher.handle(1.0, TickPassed())
    assert keys == [], "each node is present, so no hold can expire"
    assert len(quotas.holds) == 6
