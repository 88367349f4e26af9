"""Snapshots of open batches: requests that wait for each stage, and those that hold units of it, with the start."""

from __future__ import annotations

from array import array

from shared.policy.dispatch.batch_snapshots import BatchSnapshot, batch_snapshots
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import (
    ActionRestored,
    AttemptStarted,
    BatchCancelled,
    InventoryReported,
)
from shared.policy.model.reports import HeldGrant
from tests.shared.policy.dispatch.leading import ended, leading, meet, report, submit
from tests.shared.policy.strategies import SLOTS, SPECS, joined, node, request, submitted, work


def times(*values: float) -> array[float]:
    return array("d", values)


def test_a_mesh_without_batches_has_no_snapshots() -> None:
    dispatcher = leading("n", cores=1)
    submit(dispatcher, request("r"), request("s", seq=1))
    assert batch_snapshots(dispatcher.cluster) == {}


def test_a_request_that_holds_units_runs_and_all_others_wait() -> None:
    dispatcher = leading("n", cores=2)
    arrivals = [1.0, 2.0, 3.0, 4.0]
    dispatcher.handle(
        9.0,
        submitted(*(request(f"b{at}", seq=at, at_s=at_s, batch="b") for at, at_s in enumerate(arrivals))),
    )
    dispatcher.handle(10.5, AttemptStarted("b1", 1))
    assert batch_snapshots(dispatcher.cluster) == {
        "b": BatchSnapshot([times(3.0, 3.0, 4.0, 4.0)], [times(1.0, 1.0, 9.0, 2.0, 2.0, 10.5)])
    }


def test_each_request_is_counted_at_its_own_stage_and_an_answered_one_nowhere() -> None:
    dispatcher = Dispatcher(specs=SPECS)
    host = node("n", {"cores": 3, "slots": 1})
    dispatcher.handle(0.0, joined(host))
    dispatcher.handle(0.0, InventoryReported("n", "1", {}))
    stages = (work(), work(SLOTS, name="judge"))
    grants = submit(dispatcher, *(request(f"b{at}", *stages, seq=at, batch="b") for at in range(4)))
    report(dispatcher, ended(grants[0], passed=True), ended(grants[1], passed=True), ended(grants[2], passed=False))
    assert batch_snapshots(dispatcher.cluster) == {
        "b": BatchSnapshot([times(), times(0.0, 2.0)], [times(0.0, 0.0, 1.0), times(0.0, 2.0, 1.0)])
    }


def test_a_grant_that_only_the_store_reports_counts_as_waiting() -> None:
    dispatcher = Dispatcher(specs=SPECS)
    submit(dispatcher, request("b", batch="b"), request("c", seq=1, batch="c"))
    dispatcher.handle(0.0, ActionRestored("b", 0, 1, (), "n"))
    assert batch_snapshots(dispatcher.cluster)["b"] == BatchSnapshot([times(0.0, 0.0)], [times()])
    meet(dispatcher, "n", {"b": HeldGrant(0, 1, 3.0, {"cores": 1})})
    assert batch_snapshots(dispatcher.cluster)["b"] == BatchSnapshot([times()], [times(0.0, 0.0, -3.0)])


def test_a_request_that_is_being_cancelled_holds_its_units_and_does_not_wait() -> None:
    dispatcher = leading("n", cores=1)
    submit(dispatcher, request("b", batch="b"), request("c", seq=1, batch="b"))
    dispatcher.handle(0.0, ActionRestored("c", 0, 1, (), "gone"))
    dispatcher.handle(1.0, BatchCancelled("b", "asked"))
    assert batch_snapshots(dispatcher.cluster) == {"b": BatchSnapshot([times()], [times(0.0, 0.0, 0.0)])}
