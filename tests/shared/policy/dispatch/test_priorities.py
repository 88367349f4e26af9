"""Priorities that change: waiting actions move in their order, granted ones go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.dispatch.stimuli import AttemptParked, AttemptStarted, PriorityChanged, ResumeRequested
from shared.policy.model.formulation import AnswerAction, Grant, Resume
from tests.shared.policy.dispatch.leading import ended, leading, report, submit
from tests.shared.policy.dispatch.test_dispatch_trajectories import act, host
from tests.shared.policy.dispatch.test_dispatch_trajectories import leading as leading_environments
from tests.shared.policy.strategies import reported, request, submitted, work

changes = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0])), max_size=12)


@given(changes, st.booleans())
def test_waiting_actions_are_granted_by_their_newest_priority(changes: list[tuple[int, float]], in_batch: bool) -> None:
    """Oracle: sort by (priority, arrival). Outside batches all have arrived at one time."""
    dispatcher = leading("n", cores=1)
    (busy,) = submit(dispatcher, request("busy", work(timeout_s=1.0)))
    batch = "b" if in_batch else ""
    waiting = [request(f"r{at}", seq=at + 1, at_s=0.0, batch=batch) for at in range(6)]
    assert submit(dispatcher, *waiting) == []
    priorities = dict.fromkeys(range(6), 0.0)
    for at, priority in changes:
        priorities[at] = priority
        assert dispatcher.handle(0.5, PriorityChanged(f"r{at}", priority)) == []
        dispatcher.check()
    order: list[str] = []
    grant = busy
    while following := [one for one in report(dispatcher, ended(grant)) if isinstance(one, Grant)]:
        (grant,) = following
        order.append(grant.action)
    assert order == [f"r{at}" for at in sorted(priorities, key=lambda at: (priorities[at], at))]


@pytest.mark.parametrize("name", ["running", "unknown"])
def test_an_action_that_does_not_wait_is_not_touched(name: str) -> None:
    dispatcher = leading("n", cores=1)
    submit(dispatcher, request("running"))
    assert dispatcher.handle(1.0, PriorityChanged(name, -5.0)) == []
    assert dispatcher.action("running") is not None
    dispatcher.check()


def test_a_lost_action_is_queued_again_with_its_new_priority() -> None:
    dispatcher = leading("n", cores=1)
    (first,) = submit(dispatcher, request("a", seq=1))
    submit(dispatcher, request("b", seq=2))
    dispatcher.handle(1.0, PriorityChanged("a", 3.0))
    (grant,) = report(dispatcher, ended(first, "lost"))
    assert isinstance(grant, Grant)
    assert grant.action == "b", "lower goes first"


def test_an_action_behind_an_earlier_one_of_its_trajectory_keeps_its_turn() -> None:
    dispatcher = leading_environments(host("a", 1))
    (first,) = dispatcher.handle(0.0, submitted(act("r0", seq=1), act("r1", seq=2)))
    assert isinstance(first, Grant)
    dispatcher.handle(0.5, PriorityChanged("r1", -9.0))
    dispatcher.check()
    assert next(one for one in dispatcher.handle(1.0, reported(ended(first))) if isinstance(one, Grant)).action == "r1"


@pytest.mark.parametrize("changed", ["running", "parked", "resuming"])
def test_a_parked_action_continues_by_its_new_priority(changed: str) -> None:
    dispatcher = leading_environments(host("a", 1))
    (parked,) = dispatcher.handle(0.0, submitted(act("r0", seq=1)))
    assert isinstance(parked, Grant)
    dispatcher.handle(0.1, AttemptStarted("r0", 1))
    change = PriorityChanged("r0", 5.0)
    if changed == "running":
        assert dispatcher.handle(0.2, change) == []
    dispatcher.handle(0.5, AttemptParked("r0", 1))
    grants = dispatcher.handle(0.5, submitted(request("busy", seq=2), request("next", seq=3)))
    (busy,) = (one for one in grants if isinstance(one, Grant))
    if changed == "parked":
        assert dispatcher.handle(0.55, change) == []
    dispatcher.handle(0.6, ResumeRequested("r0"))
    if changed == "resuming":
        assert dispatcher.handle(0.7, change) == []
    dispatcher.check()
    found = dispatcher.handle(1.0, reported(ended(busy)))
    assert [one.action for one in found if isinstance(one, Grant | Resume)] == ["next"]
    assert isinstance(found[0], AnswerAction)


@pytest.mark.parametrize("changed", [False, True])
def test_a_tenant_keeps_its_place_when_a_priority_changes(changed: bool) -> None:
    """The only waiting action of a tenant gets another priority: the tenant is owed as much as before."""
    dispatcher = leading("n", cores=1)
    long, short = (replace(work(timeout_s=100.0), duration_s=lasts_s) for lasts_s in (50.0, 10.0))
    (grant,) = submit(dispatcher, *(request(f"b{at}", long, seq=at, tenant="bob") for at in range(9)))
    dispatcher.handle(0.5, submitted(request("z0", short, seq=20, tenant="zed")))
    (grant,) = (one for one in report(dispatcher, ended(grant)) if isinstance(one, Grant))
    assert grant.action == "b1", "both are level, and bob's name is first"
    if changed:
        dispatcher.handle(1.0, PriorityChanged("z0", -9.0))
    dispatcher.handle(1.0, submitted(*(request(f"z{at}", short, seq=20 + at, tenant="zed") for at in range(1, 9))))
    served = []
    for _ in range(8):
        (grant,) = (one for one in report(dispatcher, ended(grant)) if isinstance(one, Grant))
        served.append(grant.action[0])
    assert "".join(served) == "zzzzzbzz"
