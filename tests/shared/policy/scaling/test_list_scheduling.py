"""List scheduling in pieces, while units come and go, against a slow implementation of the same rules."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.scaling.list_scheduling import (
    BROKEN,
    COMPLETE,
    QUIET,
    RUNNING,
    SERVED,
    VISIT,
    Records,
    ScheduleState,
    advance,
    begin,
    schedule_state,
)

POOLS = 2
LAST_S = 30


class Visit(NamedTuple):
    lasts: int
    key: int
    pool: int
    units: int


class RequestCase(NamedTuple):
    """A request."""

    arrives: int | None
    """None: its first visit runs when time begins."""
    batch: int
    visits: tuple[Visit, ...]


class Change(NamedTuple):
    at: int
    pool: int
    units: int
    """Owned from then on."""


@dataclass(frozen=True)
class Case:
    """Whole seconds from 0. Visits are numbered request after request."""

    requests: tuple[RequestCase, ...]
    owned: tuple[int, ...]
    changes: tuple[Change, ...] = ()

    @property
    def visits(self) -> list[Visit]:
        return [visit for request in self.requests for visit in request.visits]

    @property
    def firsts(self) -> list[int]:
        """First visit of each request."""
        return list(accumulate([0, *(len(request.visits) for request in self.requests[:-1])]))

    @property
    def finals(self) -> list[int]:
        return [first + len(one.visits) - 1 for first, one in zip(self.firsts, self.requests, strict=True)]


class SlowScheduling:
    """Second after second, with sorted lists."""

    def __init__(self, case: Case) -> None:
        self.visits, self.finals = case.visits, set(case.finals)
        self.owned, self.free = list(case.owned), list(case.owned)
        self.queues: list[list[tuple[int, int]]] = [[] for _ in case.owned]
        self.start, self.end = [math.inf] * len(self.visits), [math.inf] * len(self.visits)
        self.over = [0] * len(case.owned)
        firsts = list(zip(case.firsts, case.requests, strict=True))
        for number in [first for first, request in firsts if request.arrives is None]:
            self.begin(number, 0)
        self.least = list(self.free)
        for now in range(LAST_S + sum(visit.lasts for visit in self.visits) + 1):
            self.end_at(now)
            for number in [first for first, request in firsts if request.arrives == now]:
                self.wait(number)
            self.hand_out(now)
            for change in [change for change in case.changes if change.at == now]:
                self.free[change.pool] += change.units - self.owned[change.pool]
                self.owned[change.pool] = change.units
            self.hand_out(now)
            self.over = [so_far + max(0, -free) for so_far, free in zip(self.over, self.free, strict=True)]

    def begin(self, number: int, now: int) -> None:
        visit = self.visits[number]
        self.free[visit.pool] -= visit.units
        self.start[number], self.end[number] = now, now + visit.lasts

    def wait(self, number: int) -> None:
        self.queues[self.visits[number].pool].append((self.visits[number].key, number))

    def end_at(self, now: int) -> None:
        for number in [number for number, end in enumerate(self.end) if end == now]:
            self.free[self.visits[number].pool] += self.visits[number].units
            if number not in self.finals:
                self.wait(number + 1)

    def hand_out(self, now: int) -> None:
        for pool, queue in enumerate(self.queues):
            queue.sort()
            while queue and self.visits[queue[0][1]].units <= self.free[pool]:
                self.begin(queue.pop(0)[1], now)
                self.least[pool] = min(self.least[pool], self.free[pool])

    def complete(self, case: Case) -> list[float]:
        """By batch."""
        ends: dict[int, list[float]] = {request.batch: [] for request in case.requests}
        for request, final in zip(case.requests, case.finals, strict=True):
            ends[request.batch].append(self.end[final])
        return [max(ends[batch]) if batch in ends else math.inf for batch in range(batches_of(case))]


def batches_of(case: Case) -> int:
    return max(request.batch for request in case.requests) + 1


def records(case: Case, limit_s: float = math.inf) -> Records:
    found = np.zeros(len(case.visits), VISIT)
    found["lasts_s"], found["key"], found["pool"], found["units"] = np.array(case.visits).T
    found["limit_s"] = limit_s
    found["owner"] = [request.batch for request in case.requests for _ in request.visits]
    found["final"][case.finals] = 1
    return found


def fast(case: Case, cuts: Iterable[float] = (), *, stop_at_complete: bool = False) -> ScheduleState:
    """`advance` up to each cut and each change, then to the end."""
    visits, state = records(case), schedule_state(batches_of(case), len(case.visits), np.array(case.owned))
    state.now_s[0] = 0.0
    np.add.at(state.left, [request.batch for request in case.requests], 1)
    firsts = list(zip(case.firsts, case.requests, strict=True))
    begin(visits, state, np.array([first for first, one in firsts if one.arrives is None], np.int64))
    coming = sorted((one.arrives, first) for first, one in firsts if one.arrives is not None)
    arrivals, numbers = np.array([float(at) for at, _ in coming]), np.array([first for _, first in coming], np.int64)
    owned = list(case.owned)
    for until in sorted({*cuts, *(change.at for change in case.changes), math.inf}):
        code = COMPLETE
        while code == COMPLETE:
            code = advance(visits, state, arrivals, numbers, until_s=until, stop_at_complete=stop_at_complete)
        assert code == QUIET
        assert until == math.inf or state.now_s[0] == until
        for change in [change for change in case.changes if change.at == until]:
            state.free[change.pool] += change.units - owned[change.pool]
            owned[change.pool] = change.units
    assert state.progress[SERVED] == len(coming)
    return state


def agree(case: Case, state: ScheduleState) -> None:
    slow, visits = SlowScheduling(case), records(case)
    starts = state.times["start_s"]
    assert starts.tolist() == slow.start
    assert state.complete_s.tolist() == slow.complete(case)
    assert state.over_unit_s.tolist() == slow.over
    assert state.waiting.tolist() == [len(queue) for queue in slow.queues]
    assert state.free.tolist() == slow.free
    assert state.progress[RUNNING] == 0
    if not case.changes:
        assert state.least_free.tolist() == slow.least
    goes_on = np.flatnonzero((visits["final"] == 0) & np.isfinite(starts))
    assert state.times["ready_s"][goes_on + 1].tolist() == (starts + visits["lasts_s"])[goes_on].tolist()


visits = st.builds(Visit, st.integers(1, 8), st.integers(0, 3), st.integers(0, POOLS - 1), st.integers(1, 2))
asked = st.builds(
    RequestCase, st.none() | st.integers(0, 20), st.integers(0, 2), st.lists(visits, min_size=1, max_size=3).map(tuple)
)
changes = st.lists(
    st.builds(Change, st.integers(0, LAST_S - 1), st.integers(0, POOLS - 1), st.integers(0, 4)),
    max_size=4,
    unique_by=lambda change: (change.at, change.pool),
)
cases = st.builds(
    Case,
    st.lists(asked, min_size=1, max_size=8).map(tuple),
    st.tuples(*[st.integers(0, 4)] * POOLS),
    changes.map(lambda found: tuple(sorted(found))),
)
halves = st.lists(st.integers(0, 100).map(lambda number: number / 2), max_size=6)


@given(cases, halves, st.booleans())
@settings(deadline=None, max_examples=200)
def test_in_pieces_while_units_come_and_go_it_is_the_slow_schedule(
    case: Case, cuts: list[float], stop_at_complete: bool
) -> None:
    agree(case, fast(case, cuts, stop_at_complete=stop_at_complete))


@given(cases)
@settings(deadline=None)
def test_in_one_piece_it_is_the_slow_schedule(case: Case) -> None:
    alone = replace(case, changes=())
    agree(alone, fast(alone))


LONG = Case(
    (RequestCase(0, 0, (Visit(10, 0, 0, 2), Visit(3, 0, 1, 1))), RequestCase(1, 1, (Visit(4, 0, 0, 1),))), (3, 1)
)


def test_taking_units_away_ends_nothing_and_what_runs_beyond_them_is_counted() -> None:
    """All 3 units run 1-5 s; one is left from 2 s on, so 2 run beyond it until 5 s and one more until 10 s."""
    shrunk = replace(LONG, changes=(Change(2, 0, 1),))
    state = fast(shrunk)
    assert state.times["start_s"].tolist() == [0.0, 10.0, 1.0]
    assert state.complete_s.tolist() == [13.0, 5.0]
    assert state.over_unit_s.tolist() == [2 * 3 + 1 * 5, 0]


def test_what_is_begun_runs_where_nothing_is_owned() -> None:
    state = fast(Case((RequestCase(None, 0, (Visit(4, 0, 0, 2),)), RequestCase(0, 0, (Visit(1, 0, 0, 1),))), (1,)))
    assert state.times["start_s"].tolist() == [0.0, 4.0]
    assert state.least_free.tolist() == [-1]
    assert state.over_unit_s.tolist() == [4.0]


def test_time_stops_after_the_moment_at_which_a_batch_is_complete() -> None:
    case = Case(
        (
            RequestCase(0, 0, (Visit(4, 0, 0, 1),)),
            RequestCase(0, 1, (Visit(6, 0, 0, 1),)),
            RequestCase(4, 1, (Visit(2, 0, 0, 1),)),
        ),
        (2,),
    )
    state = schedule_state(2, 3, np.array(case.owned))
    state.left[:] = (1, 2)
    state.now_s[0] = 0.0
    coming = np.array([0.0, 0.0, 4.0]), np.array([0, 1, 2])
    moments = []
    while advance(records(case), state, *coming, stop_at_complete=True) == COMPLETE:
        moments.append((float(state.now_s[0]), state.times["start_s"].tolist()))
    assert moments == [(4.0, [0.0, 0.0, 4.0]), (6.0, [0.0, 0.0, 4.0])]


@pytest.mark.parametrize(("limit_s", "code"), [(2.0, QUIET), (1.5, BROKEN)])
def test_a_wait_beyond_its_limit_stops_the_run(limit_s: float, code: int) -> None:
    """The second waits from 0 s for the first to end at 2 s; the first never waits, whatever its limit."""
    case = Case((RequestCase(0, 0, (Visit(2, 0, 0, 1),)), RequestCase(0, 0, (Visit(5, 0, 0, 1),))), (1,))
    state = schedule_state(1, 2, np.array(case.owned))
    limited = records(case)
    limited["limit_s"] = (-9.0, limit_s)
    assert advance(limited, state, np.zeros(2), np.arange(2), heed_limits=True) == code
