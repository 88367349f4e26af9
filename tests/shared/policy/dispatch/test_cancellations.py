"""Cancellations of many actions come in parts, and nothing of them is granted meanwhile."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import (
    BatchCancelled,
    EnvironmentEndReported,
    InventoryReported,
    Stimulus,
    TickPassed,
    TrajectoryClosed,
    TurnStarted,
)
from shared.policy.model.formulation import AnswerAction, Command, EnvironmentNeed, ForgetTrajectory, Grant, Request
from tests.shared.policy.dispatch.leading import ended, meet, report, submit
from tests.shared.policy.strategies import SPECS, joined, node, request, work

MOST = 100
NEED = EnvironmentNeed("t", "runtime", {"memory": 1})


def dispatching(cores: int = 1) -> Dispatcher:
    """A dispatcher that ends `MOST` actions a turn, with one node."""
    dispatcher = Dispatcher(DispatchConfig(most_ended=MOST), SPECS)
    dispatcher.handle(0.0, joined(node("n", {"cores": cores, "memory": 4}, kinds="run runtime")))
    dispatcher.handle(0.0, InventoryReported("n", "1", {}))
    return dispatcher


def batch(name: str, count: int, tenant: str = "ada") -> list[Request]:
    return [request(f"{name}-{at:03}", seq=at, batch=name, tenant=tenant) for at in range(count)]


def acting(count: int) -> list[Request]:
    return [replace(request(f"act-{at:03}", seq=at), need=NEED) for at in range(count)]


def answers(commands: list[Command]) -> list[str]:
    return [one.action for one in commands if isinstance(one, AnswerAction)]


def grants(commands: list[Command]) -> list[str]:
    return [one.action for one in commands if isinstance(one, Grant)]


def turns(dispatcher: Dispatcher, now: float, first: Stimulus) -> list[list[Command]]:
    """Commands of each turn until nothing is left."""
    parts = [dispatcher.handle(now, first)]
    while dispatcher.unfinished:
        dispatcher.check()
        parts.append(dispatcher.handle(now, TurnStarted()))
    dispatcher.check()
    return parts


def test_each_turn_ends_a_bounded_number_of_a_cancelled_batch() -> None:
    dispatcher = dispatching()
    submit(dispatcher, request("running"), *batch("b", 250))

    parts = turns(dispatcher, 1.0, BatchCancelled("b", "enough"))

    assert [len(answers(part)) for part in parts] == [100, 100, 50]
    assert [name for part in parts for name in answers(part)] == [one.id for one in batch("b", 250)]
    assert not dispatcher.has_unanswered("b")


def test_nothing_of_a_batch_is_granted_while_it_is_cancelled_and_others_are() -> None:
    dispatcher = dispatching(cores=2)
    first, second = submit(dispatcher, request("long"), request("longer", seq=1), *batch("b", 250))
    others = [request(f"bob-{at}", seq=900 + at, tenant="bob") for at in range(2)]
    submit(dispatcher, *others)

    dispatcher.handle(1.0, BatchCancelled("b", "enough"))

    assert grants(report(dispatcher, ended(first), ended(second))) == ["bob-0", "bob-1"]
    meet(dispatcher, "m")
    dispatcher.check()
    assert dispatcher.cancels("b")
    assert all(grants(dispatcher.handle(1.0, TurnStarted())) == [] for _ in range(3))
    assert not dispatcher.unfinished


def test_a_request_of_a_batch_that_is_being_cancelled_is_cancelled_too() -> None:
    dispatcher = dispatching()
    submit(dispatcher, request("running"), *batch("b", 250))
    dispatcher.handle(1.0, BatchCancelled("b", "enough"))

    assert submit(dispatcher, request("late", seq=999, batch="b"), request("other", seq=1000, batch="c")) == []

    parts = [*turns(dispatcher, 1.0, TurnStarted())]
    assert answers(parts[-1])[-1] == "late"
    assert dispatcher.unanswered == 2


def test_a_repeated_cancellation_ends_each_action_once() -> None:
    dispatcher = dispatching()
    submit(dispatcher, request("running"), *batch("b", 250))

    ends = answers(dispatcher.handle(1.0, BatchCancelled("b", "enough")))
    ends += answers(dispatcher.handle(1.0, BatchCancelled("b", "again"), BatchCancelled("unknown", "again")))
    ends += [name for part in turns(dispatcher, 1.0, TurnStarted()) for name in answers(part)]

    assert sorted(ends) == [one.id for one in batch("b", 250)]


def test_a_small_cancellation_does_not_wait_for_the_end_of_a_large_one() -> None:
    dispatcher = dispatching()
    submit(dispatcher, request("running"), *batch("large", 400), *batch("small", 3, tenant="bob"))
    dispatcher.handle(1.0, BatchCancelled("large", "enough"))
    dispatcher.handle(1.0, BatchCancelled("small", "enough"))

    assert set(answers(dispatcher.handle(1.0, TurnStarted()))) >= {"small-000", "small-001", "small-002"}
    assert dispatcher.cancels("large")
    assert not dispatcher.cancels("small")


def test_a_tick_goes_on_too() -> None:
    dispatcher = dispatching()
    submit(dispatcher, request("running"), *batch("b", 150))
    dispatcher.handle(1.0, BatchCancelled("b", "enough"))

    assert len(answers(dispatcher.handle(1.5, TickPassed()))) == 50


def test_deadlines_that_pass_together_end_a_bounded_number_a_turn() -> None:
    dispatcher = dispatching()
    due = [request(f"due-{at:03}", seq=at, deadline_s=5.0) for at in range(250)]
    submit(dispatcher, request("running"), *due)

    parts = turns(dispatcher, 6.0, TickPassed())

    assert [len(answers(part)) for part in parts] == [100, 100, 50]


def test_a_closed_trajectory_with_many_actions_ends_in_parts_and_never_begins_again() -> None:
    dispatcher = dispatching()
    submit(dispatcher, request("running"), *acting(250))

    parts = turns(dispatcher, 1.0, TrajectoryClosed("t"))

    assert [len(answers(part)) for part in parts] == [101, 100, 49]
    assert [grants(part) for part in parts] == [[], [], []]
    assert sum(isinstance(one, ForgetTrajectory) for part in parts for one in part) == 1


def test_a_lost_environment_answers_its_waiting_actions_in_parts() -> None:
    dispatcher = dispatching()
    (grant,) = submit(dispatcher, *acting(250))

    first = dispatcher.handle(1.0, EnvironmentEndReported("n", "1", "t", "lost", "killed"))
    assert (len(answers(first)), grants(first)) == (100, [])
    assert answers(report(dispatcher, ended(grant))) == ["act-000"]
    assert submit(dispatcher, replace(request("after", seq=999), need=NEED)) == []

    rest = turns(dispatcher, 1.0, TurnStarted())
    assert [len(answers(part)) for part in rest] == [100, 49]
    assert not dispatcher.unanswered


@pytest.mark.parametrize("kind", ["run", "alien"])
def test_a_withdrawn_batch_leaves_the_order_of_every_queue(kind: str) -> None:
    """`alien`: no node can run it, so that it is set aside."""
    dispatcher = dispatching()
    submit(dispatcher, request("running"), *(replace(one, stages=(work(kind=kind),)) for one in batch("b", 250)))

    dispatcher.handle(1.0, BatchCancelled("b", "enough"))
    meet(dispatcher, "m")

    assert [pool.waiting for pool in dispatcher.survey().pools] == [150]
    assert len([name for part in turns(dispatcher, 1.0, TurnStarted()) for name in answers(part)]) == 150
