"""Deadlines of unanswered actions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.policy.dispatch.deadlines import COMPACT_ABOVE, Deadlines


@given(st.lists(st.tuples(st.floats(0, 9), st.sampled_from(["drop", "keep"])), max_size=300), st.floats(0, 9))
def test_due_deadlines_come_once_in_order_and_dropped_ones_never(
    deadlines: list[tuple[float, str]], now: float
) -> None:
    pending = Deadlines()
    for at, (when, _) in enumerate(deadlines):
        pending.push(when, f"a{at}")
    for at, (_, end) in enumerate(deadlines):
        if end == "drop":
            pending.drop(f"a{at}")
    kept = sorted((when, f"a{at}") for at, (when, end) in enumerate(deadlines) if end == "keep")
    assert list(pending.due(now)) == [name for when, name in kept if when <= now]
    assert list(pending.due(now)) == []
    assert len(pending) == len([one for one in kept if one[0] > now])


def test_pendingof_answered_actions_do_not_pile_up() -> None:
    pending = Deadlines()
    for at in range(10_000):
        pending.push(1e9 + at, f"a{at}")
        pending.drop(f"a{at}")
    assert len(pending._heap) <= COMPACT_ABOVE


def test_one_that_is_dropped_while_others_are_due_does_not_come() -> None:
    pending = Deadlines()
    for name in ("first", "second", "third"):
        pending.push(1.0, name)
    due = []
    for name in pending.due(2.0):
        due.append(name)
        pending.drop("second")
    assert due == ["first", "third"]
