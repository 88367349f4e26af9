"""The laws of Algorithm 2 (DistRS §5.2), and the history that it draws from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.scaling.collection import CollectionInput, ReportedProgress, collect, expected
from shared.policy.scaling.history import DECAY, WINDOW, History
from shared.policy.scaling.list_scheduling import Floats
from shared.policy.scaling.workload import UNREACHED, BatchRecord, Requests, Stage

STAGES = (Stage("compile", 4.0, 120.0), Stage("run", 40.0, 60.0))
NOW = 1000.0

Row = tuple[float | None, ...]
"""Times by stage; None where there is none."""


def record(*requests: tuple[float, float, float]) -> BatchRecord:
    """Record of requests (arrival, compile, run)."""
    arrivals, *rows = zip(*requests, strict=True)
    return BatchRecord(arrivals, tuple(rows))


def rows_of(requests: Requests) -> list[Row]:
    return [tuple(None if time != time else time for time in column) for column in requests.executions_s.T.tolist()]


def none_for_nan(times: Floats) -> Row:
    return tuple(None if time != time else time for time in times.tolist())


@st.composite
def histories(draw: st.DrawFn, *, least: int = 1, most: int = WINDOW) -> History:
    size = draw(st.integers(1, 6))
    records = []
    for _ in range(draw(st.integers(least, most))):
        arrivals = [0.0, *(float(draw(st.integers(0, 50))) for _ in range(size - 1))]
        reached = [draw(st.integers(0, 2)) for _ in range(size)]
        rows = [
            [float(draw(st.integers(0, 30))) if stage < last else UNREACHED for last in reached] for stage in (0, 1)
        ]
        records.append(BatchRecord(tuple(arrivals), tuple(map(tuple, rows))))
    return History(records, [float(draw(st.integers(0, 30))) for _ in records])


@st.composite
def seen_in(draw: st.DrawFn, history: History, *, size: int | None = None) -> CollectionInput:
    """A batch in its midst; who has come and neither waits nor runs is answered."""
    size = history.records[0].size if size is None else size
    opened = NOW - draw(st.integers(0, 60))
    first = draw(st.none() | st.integers(int(opened), int(NOW)))
    arrived = 0 if first is None else draw(st.integers(1, size))
    places = [draw(st.sampled_from(["queuing 0", "queuing 1", "running 0", "running 1", "answered"]))
              for _ in range(arrived)]  # fmt: skip
    arrivals = [float(draw(st.integers(int(opened), int(NOW)))) for _ in range(arrived)]
    lately = st.integers(0, 40).map(lambda ago: NOW - ago)

    def at(place: str) -> list[tuple[float, float]]:
        """Arrival, and when it would have been here: not before, and not after it came."""
        came = [arrival for arrival, where in zip(arrivals, places, strict=True) if where == place]
        return [(one, draw(st.integers(int(one), int(NOW)).map(float))) for one in came]

    return CollectionInput(
        size=size,
        opened_s=opened,
        first_arrival_s=None if first is None else float(first),
        arrived=arrived,
        queuing=[np.array(at(f"queuing {stage}")).reshape(-1, 2) for stage in (0, 1)],
        running=[
            np.array([(*one, max(one[1], draw(lately))) for one in at(f"running {stage}")]).reshape(-1, 3)
            for stage in (0, 1)
        ],
    )


histories_and_seen = histories().flatmap(lambda history: st.tuples(st.just(history), seen_in(history)))


def drawable(history: History, stage: int, longer_than: float) -> set[Row]:
    """Possible draws of Algorithm 2 for a request at a stage, directly from the records."""
    found = set()
    for batch in history.records:
        for times in zip(*batch.executions_s, strict=True):
            if times[stage] > longer_than:
                here = [None] * stage + [times[stage] - max(longer_than, 0.0)]
                found.add((*here, *(None if time != time else time for time in times[stage + 1 :])))
    nothing_after = (None,) * (len(STAGES) - stage - 1)
    left = max(0.0, STAGES[stage].timeout_s - max(longer_than, 0.0))
    return found or {((None,) * stage + (left,) + nothing_after)}


@given(histories_and_seen, st.integers(0, 99))
@settings(deadline=None)
def test_every_request_is_of_its_kind(case: tuple[History, CollectionInput], seed: int) -> None:
    history, seen = case
    requests = collect(NOW, STAGES, history, seen, Random(seed))
    rows = rows_of(requests)
    future = seen.size - seen.arrived
    place = future
    queued = np.broadcast_to(requests.queued_s, requests.size)
    assert not requests.running[:future].any()
    assert not queued[:future].any()
    kinds = [(stage, waits, False) for stage, waits in enumerate(seen.queuing)]
    kinds += [(stage, runs, True) for stage, runs in enumerate(seen.running)]
    for stage, ones, running in kinds:
        for one in ones:
            arrival, unqueued, began = one if running else (*one, NOW)
            assert rows[place] in drawable(history, stage, NOW - began if running else -1.0)
            assert requests.arrivals_s[place] == arrival - NOW
            assert queued[place] == began - unqueued
            assert (requests.ready_s[place], requests.running[place]) == (0.0, running)
            place += 1
    assert place == requests.size


@given(histories_and_seen, st.integers(0, 99))
@settings(deadline=None)
def test_future_are_exactly_those_that_have_not_come_and_late_ones_come_now(
    case: tuple[History, CollectionInput], seed: int
) -> None:
    history, seen = case
    requests = collect(NOW, STAGES, history, seen, Random(seed))
    ranks = range(seen.arrived, seen.size)
    first = max(NOW, seen.opened_s + history.gap_s) if seen.first_arrival_s is None else seen.first_arrival_s
    at = [max(0.0, first + history.arrivals_s[rank] - NOW) for rank in ranks]
    assert requests.arrivals_s[: len(at)].tolist() == requests.ready_s[: len(at)].tolist() == pytest.approx(at)
    for row, rank in zip(rows_of(requests)[: len(at)], ranks, strict=True):
        assert row in [none_for_nan(batch[:, rank]) for batch in history.executions_s]


@given(histories_and_seen, st.integers(0, 99))
@settings(deadline=None)
def test_a_seed_always_draws_the_same(case: tuple[History, CollectionInput], seed: int) -> None:
    one, other = (collect(NOW, STAGES, *case, Random(seed)) for _ in range(2))
    for name in ("arrivals_s", "ready_s", "executions_s", "running"):
        assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=name == "executions_s")


@given(histories_and_seen, st.integers(0, 99), st.floats(0.2, 5.0), st.data())
@settings(deadline=None)
def test_with_progress_as_many_come_as_are_generated_and_none_before_now(
    case: tuple[History, CollectionInput], seed: int, pace: float, data: st.DataObject
) -> None:
    history, seen = case
    here = sum(map(len, [*seen.queuing, *seen.running]))
    generating = data.draw(st.integers(0, seen.size - seen.arrived))
    reported = CollectionInput(**{**vars(seen), "progress": ReportedProgress(generating, pace)})
    requests = collect(NOW, STAGES, history, reported, Random(seed))
    assert requests.size == generating + here
    coming = requests.arrivals_s[:generating]
    assert (coming >= 0).all()
    assert (np.diff(coming) >= 0).all()


@given(histories_and_seen, st.integers(0, 99))
@settings(deadline=None)
def test_t_is_when_the_last_would_be_done_had_none_queued(case: tuple[History, CollectionInput], seed: int) -> None:
    batch = expected(NOW, "b", STAGES, *case, 3.0, Random(seed))
    queued = np.broadcast_to(batch.requests.queued_s, batch.requests.size).tolist()
    ends = [ready + sum(time or 0.0 for time in row)
            for ready, row in zip(batch.requests.ready_s.tolist(), rows_of(batch.requests), strict=True)]  # fmt: skip
    undelayed = max((end - wait for end, wait in zip(ends, queued, strict=True)), default=0.0)
    assert batch.completion_s == pytest.approx(undelayed)
    assert batch.max_extra_delay_s == pytest.approx(max(3.0, max(ends, default=undelayed) - undelayed))
    assert (batch.batch, batch.stages) == ("b", STAGES)


PAST = record((0.0, 5.0, 1.0), (10.0, 6.0, UNREACHED), (40.0, 50.0, 2.0))


def only(seen: CollectionInput, seed: int = 1) -> tuple[list[float], list[Row]]:
    requests = collect(NOW, STAGES, History([PAST], [7.0]), seen, Random(seed))
    return requests.arrivals_s.tolist(), rows_of(requests)


def test_the_gap_from_the_hint_to_the_first_arrival_is_kept_apart() -> None:
    hinted = CollectionInput(size=3, opened_s=NOW - 2.0)
    assert only(hinted)[0] == [5.0, 15.0, 45.0]
    assert only(CollectionInput(size=3, opened_s=NOW - 20.0))[0] == [
        0.0,
        10.0,
        40.0,
    ]  # late: the first is thought to come now
    assert only(CollectionInput(size=3, opened_s=NOW - 9.0, first_arrival_s=NOW - 1.0, arrived=1))[0] == [9.0, 39.0]


def test_progress_moves_arrivals_by_the_pace_and_counts_the_gap() -> None:
    """Half as fast, so 34 s after the hint this rollout stands where the past one stood after 17: 10 s after its first
    arrival, with 30 s of its own to go to the last."""
    seen = CollectionInput(3, NOW - 34.0, NOW - 14.0, 2, progress=ReportedProgress(1, pace=2.0))
    assert only(seen)[0] == [60.0]


def test_without_a_request_that_lasted_so_long_the_timeout_is_taken() -> None:
    runs = [np.empty((0, 3)), np.array([[NOW - 20.0, NOW - 15.0, NOW - 15.0], [NOW - 99.0, NOW - 70.0, NOW - 70.0]])]
    seen = CollectionInput(3, NOW - 100.0, NOW - 99.0, 3, running=runs)
    assert only(seen)[1] == [(None, 45.0), (None, 0.0)]
    nobody = History([record((0.0, 1.0, UNREACHED))], [0.0])
    waits = CollectionInput(1, NOW - 5.0, NOW - 5.0, 1, queuing=[np.empty((0, 2)), np.full((1, 2), NOW - 5.0)])
    assert rows_of(collect(NOW, STAGES, nobody, waits, Random(1))) == [(None, 60.0)]


def test_requests_running_in_a_snapshot_may_have_ended_since() -> None:
    """Each lasts a second and a timeout is far: one that began 0.8 s before a look 0.5 s ago is over, and the next
    stage has it; nothing is left of the last stage. A request that began later is expected to continue."""
    past = History([record((0.0, 1.0, 1.0))], [0.0])
    run = [[NOW - 9.0, NOW - 1.3, NOW - 1.3], [NOW - 9.0, NOW - 0.75, NOW - 0.75]]
    seen = CollectionInput(4, NOW - 9.0, NOW - 9.0, 4, running=[np.array(run), np.array(run)], observed_s=NOW - 0.5)
    requests = collect(NOW, STAGES, past, seen, Random(1))
    assert rows_of(requests) == [(None, 1.0), (0.25, 1.0), (None, 0.25)]
    assert requests.running.tolist() == [False, True, True]


def test_a_current_snapshot_and_none_are_the_same() -> None:
    runs = [np.array([[NOW - 20.0, NOW - 15.0, NOW - 15.0]]), np.empty((0, 3))]
    seen = CollectionInput(3, NOW - 100.0, NOW - 99.0, 3, running=runs)
    assert only(seen) == only(replace(seen, observed_s=NOW)) == only(replace(seen, observed_s=NOW + 1.0))


def test_an_arrived_unseen_request_waits_for_the_first_stage() -> None:
    """Also if as many requests were answered meanwhile: their number is known independently of the snapshot."""
    past = History([record((0.0, 1.0, 1.0))], [0.0])
    ended = np.array([[NOW - 9.0, NOW - 1.3, NOW - 1.3]])
    seen = CollectionInput(
        3, NOW - 9.0, NOW - 9.0, 3, running=[np.empty((0, 3)), ended], unanswered=2, observed_s=NOW - 0.5
    )
    requests = collect(NOW, STAGES, past, seen, Random(1))
    assert rows_of(requests) == [(1.0, 1.0)] * 2
    assert not requests.running.any()


def test_what_has_just_begun_will_last() -> None:
    """A request of 0 s is not drawn for a bound of 0 s."""
    past = History([record((0.0, 0.0, 1.0), (1.0, 4.0, 1.0))], [0.0])
    seen = CollectionInput(2, NOW, NOW, 2, running=[np.full((1, 3), NOW)])
    rows = {row for seed in range(50) for row in rows_of(collect(NOW, STAGES, past, seen, Random(seed)))}
    assert rows == {(4.0, 1.0)}


def test_a_batch_larger_than_its_history_ends_like_it() -> None:
    arrivals, rows = only(CollectionInput(size=5, opened_s=NOW))
    assert arrivals == [7.0, 17.0, 47.0, 47.0, 47.0]
    assert rows[2:] == [(50.0, 2.0)] * 3


def test_draws_follow_the_weights_of_the_batches() -> None:
    """Three of four standard errors of 20,000 draws are some 1 %."""
    past = [record((0.0, float(number), 0.0)) for number in range(1, WINDOW + 1)]
    count = 20_000
    weights = [DECAY ** (WINDOW - number) for number in range(1, WINDOW + 1)]
    waiting = CollectionInput(count, NOW, NOW, count, queuing=[np.full((count, 2), NOW)])
    running = CollectionInput(count, NOW, NOW, count, running=[np.full((count, 3), NOW - 2.5)])
    coming = History(past, [0.0] * WINDOW).rows(Random(3), np.zeros(count, int))[0].tolist()
    for kind, first, elapsed in ((waiting, 1, 0.0), (running, 3, 2.5)):
        times = collect(NOW, STAGES, History(past, [0.0] * WINDOW), kind, Random(7)).executions_s[0].tolist()
        check = Counter(time + elapsed for time in times)
        whole = sum(weights[first - 1 :])
        shares = {float(number): weights[number - 1] / whole for number in range(first, WINDOW + 1)}
        assert {time: drawn / count for time, drawn in check.items()} == pytest.approx(shares, abs=0.012)
    shares = {float(number): weights[number - 1] / sum(weights) for number in range(1, WINDOW + 1)}
    assert {time: drawn / count for time, drawn in Counter(coming).items()} == pytest.approx(shares, abs=0.012)


def test_a_rollout_twice_as_fast_is_expected_to_continue_so() -> None:
    """After ten seconds of it two have come; the second came after twenty in the past. After two arrivals the pace
    counts a fifth: 0.5 ** 0.2."""
    past = History([BatchRecord((0.0, 10.0, 20.0, 30.0), ((1.0,) * 4,))], [10.0])
    stages = (Stage("run", 1.0, 10.0),)
    for paced, coming in ((False, [15.0, 25.0]), (True, [10 * 0.5**0.2, 20 * 0.5**0.2])):
        seen = CollectionInput(4, 0.0, 5.0, 2, unanswered=0, paced=paced)
        assert collect(10.0, stages, past, seen, Random(1)).ready_s.tolist() == pytest.approx(coming)


def test_a_late_request_comes_now_and_those_behind_it_at_the_pace_of_a_slow_rollout() -> None:
    """The third came 30 s after the opening in the past, and is not here after 60: the pace is 2 ** 0.2."""
    past = History([BatchRecord((0.0, 10.0, 20.0, 30.0), ((1.0,) * 4,))], [10.0])
    seen = CollectionInput(4, 0.0, 20.0, 2, unanswered=0, paced=True)
    found = collect(60.0, (Stage("run", 1.0, 10.0),), past, seen, Random(1))
    assert found.ready_s.tolist() == pytest.approx([0.0, 10 * 2**0.2])


def test_the_earliest_prediction_of_the_window_counts() -> None:
    records = [BatchRecord((0.0, 10.0, last), ((1.0,) * 3,)) for last in (100.0, 20.0, 60.0)]
    seen = CollectionInput(3, 0.0, 10.0, 2, unanswered=0, paced=True)
    found = collect(20.0, (Stage("run", 1.0, 10.0),), History(records, [10.0] * 3), seen, Random(1))
    assert found.ready_s.tolist() == pytest.approx([10.0])


def test_a_pace_is_no_reason_to_expect_more_requests_than_there_are() -> None:
    past = History([BatchRecord((0.0,), ((1.0,),))], [0.0])
    for arrived in (1, 2):
        seen = CollectionInput(1, 0.0, 0.0, arrived, unanswered=0, paced=True)
        assert not collect(5.0, (Stage("run", 1.0, 10.0),), past, seen, Random(1)).size
