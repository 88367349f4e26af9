"""DPArrange equals the best of all splits: for every prefix, on every topology, in Python and compiled."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.elastic.arrange import Choices, arrange, arrange_counted, warm
from shared.policy.resources.resource import Counted
from tests.shared.policy.elastic.elastic_oracle import amounts, splits


@st.composite
def choices(draw: st.DrawFn) -> Choices:
    allowed = draw(amounts())
    return Choices(allowed, [float(draw(st.integers(0, 20))) for _ in allowed])


def paid(candidates: list[Choices], split: tuple[int, ...]) -> float:
    return sum(one.costs[one.amounts.index(units)] for one, units in zip(candidates, split, strict=True))


few = st.lists(choices(), min_size=1, max_size=4)


@given(few, st.integers(0, 14))
@settings(deadline=None)
def test_every_prefix_costs_what_the_best_of_all_its_splits_does(candidates: list[Choices], free: int) -> None:
    table = arrange(candidates, Counted(free))
    for count in range(len(candidates) + 1):
        found = splits([tuple(one.amounts) for one in candidates[:count]], free)
        assert table.cost(count) == min((paid(candidates[:count], split) for split in found), default=math.inf)
        if found:
            assert table.units(count) in found
            assert paid(candidates[:count], table.units(count)) == table.cost(count)


@given(few, st.integers(1, 14))
@settings(deadline=None)
def test_the_compiled_table_is_the_table(candidates: list[Choices], free: int) -> None:
    firsts = np.array([0, *itertools.accumulate(len(one.amounts) for one in candidates)])
    units = np.array([amount for one in candidates for amount in one.amounts])
    costs = np.array([cost for one in candidates for cost in one.costs])
    found = arrange_counted(units, costs, firsts, free)
    for row, (chosen, one) in enumerate(zip(arrange(candidates, Counted(free)).choice[1:], candidates, strict=True)):
        assert [one.amounts[place - 1] if place else 0 for place in found[row + 1]] == list(chosen)


@dataclass(frozen=True)
class Boards:
    """Units on two boards, and no action can use both: a state is a pair. One takes the fuller board that does."""

    first: int
    second: int

    @property
    def units(self) -> int:
        return self.first + self.second

    @property
    def states(self) -> int:
        return (self.first + 1) * (self.second + 1)

    def left(self, state: int, units: int) -> int | None:
        boards = list(divmod(state, self.second + 1))
        able = [(free, board) for board, free in enumerate(boards) if free >= units]
        if not able:
            return None
        boards[min(able)[1]] -= units
        return boards[0] * (self.second + 1) + boards[1]


@given(few, st.integers(0, 6), st.integers(0, 6))
@settings(deadline=None)
def test_it_uses_only_the_operator_of_a_topology(candidates: list[Choices], one: int, other: int) -> None:
    operator = Boards(one, other)

    def fits(units: tuple[int, ...]) -> bool:
        state: int | None = operator.states - 1
        for needed in reversed(units):  # the last candidate takes first
            state = None if state is None else operator.left(state, needed)
        return state is not None

    for count in range(1, len(candidates) + 1):
        costs = [
            paid(candidates[:count], split)
            for split in itertools.product(*[candidate.amounts for candidate in candidates[:count]])
            if fits(split)
        ]
        assert arrange(candidates, operator).cost(count) == min(costs, default=math.inf)


def test_units_need_not_come_out_even() -> None:
    """The paper's table begins at `dp[0][0]` alone so these two could not share three units."""
    table = arrange([Choices((1, 4), (9.0, 1.0))] * 2, Counted(3))
    assert table.units(2) == (1, 1)
    assert table.cost(2) == 18.0


def test_of_equals_later_candidates_get_fewer() -> None:
    assert arrange([Choices((1, 2), (2.0, 1.0))] * 3, Counted(4)).units(3) == (2, 1, 1)


def test_units_without_gain_are_not_given() -> None:
    assert arrange([Choices((1, 2, 3), (5.0, 5.0, 5.0))], Counted(3)).units(1) == (1,)


def test_candidates_that_do_not_fit_have_no_units() -> None:
    table = arrange([Choices((2,), (1.0,))] * 2, Counted(3))
    assert table.units(1) == (2,)
    with pytest.raises(ValueError, match="2 candidates do not fit"):
        table.units(2)


def test_warming_can_be_done_again() -> None:
    warm()
    warm()
