"""Times by key."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from shared.policy.serving.timers import STALE_KEPT, Timers

CHANGES = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([1.0, 2.0, 3.0, inf])), max_size=300)


@given(CHANGES)
def test_each_key_is_due_once_at_its_last_time(changes: list[tuple[str, float]]) -> None:
    timers, last = Timers(), dict[str, float]()
    for key, at_s in changes:
        timers.set(key, at_s)
        last[key] = at_s
        assert len(timers._heap) <= 2 * len(last) + STALE_KEPT + 1
    last = {key: at_s for key, at_s in last.items() if at_s < inf}
    for now in (0.5, 1.0, 2.0, 3.0):
        assert timers.first_s() == min(last.values(), default=inf)
        due = []
        while (popped := timers.pop_due(now)) is not None:
            due.append(popped)
        assert sorted(map(str, due)) == sorted(key for key, at_s in last.items() if at_s <= now)
        last = {key: at_s for key, at_s in last.items() if at_s > now}
