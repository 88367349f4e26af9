"""Several batches as one expectation of the next."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.scaling.history import DECAY, WINDOW, History
from shared.policy.scaling.workload import UNREACHED, BatchRecord

seconds = st.integers(0, 100).map(float)


def batch(arrivals: list[float]) -> BatchRecord:
    return BatchRecord(tuple(arrivals), ((1.0,) * len(arrivals),))


@st.composite
def with_an_unusual_batch(draw: st.DrawFn) -> tuple[list[BatchRecord], list[BatchRecord], int]:
    """Usual batches, the same with any one of them made strange, and which."""
    size, count = draw(st.integers(1, 6)), draw(st.integers(4, WINDOW))
    times = st.lists(seconds, min_size=size, max_size=size)
    usual = [batch(draw(times)) for _ in range(count)]
    place = draw(st.integers(0, count - 1))
    strange = batch(draw(st.lists(st.floats(0, 1e6), min_size=size, max_size=size)))
    return usual, [*usual[:place], strange, *usual[place + 1 :]], place


@given(with_an_unusual_batch())
@settings(deadline=None)
def test_one_strange_batch_of_four_or_more_does_not_lead_beyond_the_others(
    case: tuple[list[BatchRecord], list[BatchRecord], int],
) -> None:
    usual, records, place = case
    others = np.sort([one.arrivals_s for number, one in enumerate(usual) if number != place], axis=1)
    found = History(records, [0.0] * len(records)).arrivals_s
    assert (others.min(axis=0) <= found).all()
    assert (found <= others.max(axis=0)).all()
    assert (np.diff(found) >= 0).all()


@given(st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=WINDOW), st.data())
@settings(deadline=None)
def test_the_median_is_the_smallest_with_half_of_the_weight(
    times: list[tuple[float, float, float]], data: st.DataObject
) -> None:
    """Rank by rank, whatever the order in which the records name their requests; gaps and spans likewise."""
    records = [batch(data.draw(st.permutations(one))) for one in times]
    history = History(records, [one[0] for one in times])
    weights = [DECAY ** (len(times) - 1 - number) for number in range(len(times))]

    def median(values: list[float]) -> float:
        ordered = sorted(zip(values, weights, strict=True))
        return next(
            value for number, (value, _) in enumerate(ordered)
            if math.fsum(weight for _, weight in ordered[: number + 1]) >= sum(weights) / 2 - 1e-9
        )  # fmt: skip

    ranked = [sorted(one) for one in times]
    assert history.arrivals_s.tolist() == [median([one[rank] for one in ranked]) for rank in range(3)]
    assert history.gap_s == median([one[0] for one in times])
    assert history.span_s == median([max(one) + 1.0 for one in times])


def test_the_newest_weighs_most() -> None:
    weights = History([batch([0.0])] * WINDOW, [0.0] * WINDOW).weights
    assert weights.sum() == pytest.approx(1.0)
    assert (np.diff(weights) > 0).all()
    assert weights[-1] == pytest.approx(0.4, abs=0.005)
    assert weights[-3:].sum() == pytest.approx(0.82, abs=0.005)


def test_of_three_or_more_no_batch_decides_alone() -> None:
    for count in range(3, WINDOW + 1):
        assert History([batch([0.0])] * count, [0.0] * count).weights[-1] < 0.5


def test_with_a_window_of_one_it_is_the_last_batch() -> None:
    last = BatchRecord((0.0, 9.0, 4.0), ((1.0, 2.0, 3.0), (UNREACHED, 5.0, 6.0)))
    history = History([last], [7.0])
    assert history.arrivals_s.tolist() == [0.0, 4.0, 9.0]
    assert history.executions_s[0][0].tolist() == [1.0, 3.0, 2.0]
    assert (history.gap_s, history.span_s) == (7.0, 16.0)


@pytest.mark.parametrize(
    ("records", "gaps"),
    [
        ([], []),
        ([batch([0.0]), batch([0.0, 1.0])], [0.0, 0.0]),
        ([batch([0.0]), BatchRecord((0.0,), ((1.0,), (1.0,)))], [0.0, 0.0]),
        ([batch([0.0])], []),
    ],
    ids=["none", "of different sizes", "of different workflows", "a gap is missing"],
)
def test_records_that_do_not_go_together_are_refused(records: list[BatchRecord], gaps: list[float]) -> None:
    with pytest.raises(ValueError, match="one size and workflow, with a gap each"):
        History(records, gaps)
