"""Priorities of trajectories that change: waiting actions move in their order, granted ones go on (ADR 0059)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import AttemptParked, AttemptStarted, PriorityChanged, ResumeRequested
from shared.policy.model.formulation import AnswerAction, Command, EnvironmentNeed, Grant, Request, Resume
from tests.shared.policy.dispatch.leading import ended
from tests.shared.policy.dispatch.test_dispatch_trajectories import act, host, leading
from tests.shared.policy.strategies import reported, request, submitted, work

PRIORITIES = [-20.0, -2.0, -1.0, 0.0, 1.0, 2.0, 20.0]
changes = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(PRIORITIES)), max_size=12)


def acting(at: int, own: float = 0.0, batch: str = "") -> Request:
    """The only action of trajectory t<at>, which arrives at that second."""
    return replace(act(f"r{at}", f"t{at}", seq=at), arrival=(1000 * at, at), priority=own, batch=batch)


def busy() -> tuple[Dispatcher, Grant]:
    """A node with one core, and what runs on it."""
    dispatcher = leading(host("a", 1))
    (grant,) = dispatcher.handle(0.0, submitted(act("running", "t")))
    assert isinstance(grant, Grant)
    return dispatcher, grant


def granted(commands: list[Command]) -> list[Grant]:
    return [one for one in commands if isinstance(one, Grant)]


def order_after(dispatcher: Dispatcher, grant: Grant) -> list[str]:
    """Order in which the waiting actions are granted, each after the end of the one before."""
    order: list[str] = []
    while following := granted(dispatcher.handle(40.0, reported(ended(grant)))):
        (grant,) = following
        order.append(grant.action)
        dispatcher.check()
    return order


@given(changes, st.lists(st.sampled_from(PRIORITIES), min_size=6, max_size=6))
def test_outside_batches_a_priority_counts_in_seconds(changes: list[tuple[int, float]], own: list[float]) -> None:
    """Oracle: sort by arrival + priorities of action and trajectory, then by the priorities, then by arrival."""
    dispatcher, grant = busy()
    assert granted(dispatcher.handle(6.0, submitted(*(acting(at, own[at]) for at in range(6))))) == []
    total = dict(enumerate(own))
    for at, priority in changes:
        total[at] = own[at] + priority
        assert dispatcher.handle(7.0, PriorityChanged(f"t{at}", priority)) == []
        dispatcher.check()
    expected = sorted(total, key=lambda at: (at + total[at], total[at], at))
    assert order_after(dispatcher, grant) == [f"r{at}" for at in expected]


@given(changes)
def test_inside_a_batch_priorities_decide_then_the_arrival(changes: list[tuple[int, float]]) -> None:
    dispatcher, grant = busy()
    dispatcher.handle(6.0, submitted(*(acting(at, batch="b") for at in range(6))))
    priorities = dict.fromkeys(range(6), 0.0)
    for at, priority in changes:
        priorities[at] = priority
        dispatcher.handle(7.0, PriorityChanged(f"t{at}", priority))
        dispatcher.check()
    expected = sorted(priorities, key=lambda at: (priorities[at], at))
    assert order_after(dispatcher, grant) == [f"r{at}" for at in expected]


def test_a_later_action_is_submitted_with_the_priority_of_its_trajectory() -> None:
    dispatcher, grant = busy()
    dispatcher.handle(3.0, submitted(acting(1), acting(2), replace(acting(3), trajectory_priority=-20.0)))
    assert order_after(dispatcher, grant) == ["r3", "r1", "r2"]


def test_nothing_waits_forever_behind_lower_numbers() -> None:
    """An action waits for those that arrive less than the difference of the priorities after it, and for no other."""
    dispatcher, grant = busy()
    late = [replace(acting(at), trajectory_priority=-20.0) for at in range(10, 40, 3)]
    dispatcher.handle(40.0, submitted(acting(1), *late))
    assert order_after(dispatcher, grant).index("r1") == sum(one.arrival[0] / 1000 - 20 < 1 for one in late)


@pytest.mark.parametrize("name", ["t", "unknown"])
def test_a_trajectory_that_waits_for_nothing_is_not_touched(name: str) -> None:
    dispatcher, _ = busy()
    assert dispatcher.handle(1.0, PriorityChanged(name, -5.0)) == []
    dispatcher.check()


def test_a_lost_action_is_queued_again_with_its_new_priority() -> None:
    dispatcher = leading(host("a", 1))
    repeatable = [act(name, f"of {name}", seq=at, repeatable=True) for at, name in enumerate("ab")]
    (first,) = granted(dispatcher.handle(0.0, submitted(*repeatable)))
    dispatcher.handle(1.0, PriorityChanged("of a", 3.0))
    (grant,) = granted(dispatcher.handle(1.0, reported(ended(first, "lost"))))
    assert grant.action == "b", "lower goes first"


def test_actions_of_one_trajectory_keep_their_turns() -> None:
    dispatcher = leading(host("a", 1))
    (first,) = granted(dispatcher.handle(0.0, submitted(acting(0), *(act(f"q{at}", "t0", seq=at) for at in (1, 2)))))
    dispatcher.handle(0.0, submitted(act("other", "u", seq=3)))
    dispatcher.handle(0.5, PriorityChanged("t0", -9.0))
    dispatcher.check()
    assert order_after(dispatcher, first) == ["q1", "q2", "other"]


@pytest.mark.parametrize("changed", ["running", "parked", "resuming"])
def test_a_parked_action_continues_by_its_new_priority(changed: str) -> None:
    dispatcher = leading(host("a", 1))
    (parked,) = dispatcher.handle(0.0, submitted(act("r0", seq=1)))
    assert isinstance(parked, Grant)
    dispatcher.handle(0.1, AttemptStarted("r0", 1))
    change = PriorityChanged("t", 5.0)
    if changed == "running":
        assert dispatcher.handle(0.2, change) == []
    dispatcher.handle(0.5, AttemptParked("r0", 1))
    (grant,) = granted(dispatcher.handle(0.5, submitted(request("busy", seq=2), request("next", seq=3))))
    if changed == "parked":
        assert dispatcher.handle(0.55, change) == []
    dispatcher.handle(0.6, ResumeRequested("r0"))
    if changed == "resuming":
        assert dispatcher.handle(0.7, change) == []
    dispatcher.check()
    found = dispatcher.handle(1.0, reported(ended(grant)))
    assert [one.action for one in found if isinstance(one, Grant | Resume)] == ["next"]
    assert isinstance(found[0], AnswerAction)


@pytest.mark.parametrize("changed", [False, True])
def test_a_tenant_keeps_its_place_when_a_priority_changes(changed: bool) -> None:
    """The only waiting action of a tenant gets another priority: the tenant is owed as much as before."""

    def first(name: str, seq: int, tenant: str, lasts_s: float) -> Request:
        one = request(name, replace(work(timeout_s=100.0), duration_s=lasts_s), seq=seq, tenant=tenant)
        return replace(one, need=EnvironmentNeed(f"of {name}", "runtime.local", {"memory_mb": 1}))

    dispatcher = leading(host("a", 1))
    (grant,) = granted(dispatcher.handle(0.0, submitted(*(first(f"b{at}", at, "bob", 50.0) for at in range(9)))))
    dispatcher.handle(0.5, submitted(first("z0", 20, "zed", 10.0)))
    (grant,) = granted(dispatcher.handle(1.0, reported(ended(grant))))
    assert grant.action == "b1", "both are level, and bob's name is first"
    if changed:
        dispatcher.handle(1.0, PriorityChanged("of z0", -9.0))
    dispatcher.handle(1.0, submitted(*(first(f"z{at}", 20 + at, "zed", 10.0) for at in range(1, 9))))
    served = []
    for _ in range(8):
        (grant,) = granted(dispatcher.handle(1.0, reported(ended(grant))))
        served.append(grant.action[0])
    assert "".join(served) == "zzzzzbzz"
