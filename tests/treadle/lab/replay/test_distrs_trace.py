"""Trace files of DistRS workloads: written ones are read back, wrong ones are refused by line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.scaling.workload import UNREACHED, Stage
from treadle.lab.replay.distrs.trace import RewardTrace, TracedBatch, TracedTask
from treadle.lab.traces.rewards import TraceError, read_trace, write_trace

STAGES = (Stage("compile", 4.0, 120.0), Stage("run", 40.0, 60.0))
HEADER: dict[str, object] = {
    "stages": [
        {"name": "compile", "worker_cost": 4, "timeout_s": 120},
        {"name": "run", "worker_cost": 40, "timeout_s": 60},
    ],
    "max_extra_delay_s": 3,
}


def request(index: float = 0, **fields: object) -> dict[str, object]:
    return {"task": "a", "batch": 0, "index": index, "arrival_s": 1.0, "stages": [50.0, 4.0], **fields}


def written(folder: Path, *lines: object) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def seen(trace: RewardTrace) -> object:
    """A trace as values that compare; NaN as None."""

    def plain(times: Sequence[float]) -> list[float | None]:
        return [None if time != time else time for time in times]

    return trace.stages, trace.cold_starts_s, trace.max_extra_delay_s, [
        (task.task, [
            (plain(batch.arrivals_s.tolist()), [plain(row) for row in batch.executions_s.tolist()], batch.start_s,
             batch.gap_s, None if batch.lengths is None else plain(batch.lengths.tolist()))
            for batch in task.batches
        ])
        for task in trace.tasks
    ]  # fmt: skip


seconds = st.floats(0, 1e6)


@st.composite
def traced_batches(draw: st.DrawFn, stages: Sequence[Stage]) -> TracedBatch:
    size = draw(st.integers(1, 5))

    def of_each(times: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(times, min_size=size, max_size=size))

    rows = [of_each(st.one_of(st.just(UNREACHED), st.floats(0, stage.timeout_s))) for stage in stages]
    start_s = draw(st.none() | seconds)
    lengths = np.array(of_each(st.integers(1, 16_384).map(float)))
    return TracedBatch(
        arrivals_s=np.array(sorted(of_each(seconds))),
        executions_s=np.array(rows),
        start_s=start_s,
        gap_s=0.0 if start_s is not None else draw(st.sampled_from([0.0, 5.0, 7.5])),
        lengths=draw(st.sampled_from([None, lengths])),
    )


@st.composite
def traces(draw: st.DrawFn) -> RewardTrace:
    names = draw(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=3, unique=True))
    stages = tuple(Stage(name, draw(seconds), draw(seconds)) for name in names)
    tasks = draw(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=3, unique=True))
    batches = st.lists(traced_batches(stages), min_size=1, max_size=4).map(tuple)
    cold_starts_s = tuple(draw(st.just(0.0) | seconds) for _ in stages)
    return RewardTrace(stages, draw(seconds), tuple(TracedTask(task, draw(batches)) for task in tasks), cold_starts_s)


@given(traces(), st.sampled_from(["trace.jsonl", "trace.jsonl.gz"]))
def test_a_written_trace_is_read_back(trace: RewardTrace, name: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        write_trace(trace, path)
        assert seen(read_trace(path)) == seen(trace)


def test_the_given_form_is_written_where_it_is_complete(tmp_path: Path) -> None:
    batch = TracedBatch(np.array([1.0, 2.0]), np.array([[50.0, UNREACHED], [UNREACHED, UNREACHED]]))
    later = TracedBatch(np.array([1.0]), np.array([[UNREACHED], [4.0]]), gap_s=200.0)
    trace = RewardTrace(STAGES, 3.0, (TracedTask("a", (batch, later)),))
    write_trace(trace, tmp_path / "trace.jsonl")
    header, *lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert header == {**HEADER, "batch_gap_s": 200.0}
    assert lines == [
        {"task": "a", "batch": 0, "index": 0, "arrival_s": 1.0, "stages": [50.0]},
        {"task": "a", "batch": 0, "index": 1, "arrival_s": 2.0, "stages": []},
        {"task": "a", "batch": 1, "index": 0, "arrival_s": 1.0, "stages": [None, 4.0]},
    ]


def test_workers_start_at_once_by_default_of_the_header(tmp_path: Path) -> None:
    assert read_trace(written(tmp_path, HEADER, request(0))).cold_starts_s == (0.0, 0.0)
    header = {**HEADER, "stages": [{"name": "a", "worker_cost": 1, "timeout_s": 9, "cold_start_s": 4.5}]}
    assert read_trace(written(tmp_path, header, request(0, stages=[1.0]))).cold_starts_s == (4.5,)


def test_cold_starts_are_of_all_stages_or_of_none() -> None:
    with pytest.raises(ValueError, match="2 stages need as many cold starts, not 1"):
        RewardTrace(STAGES, 3.0, (), (4.5,))


def test_requests_are_sorted_by_arrival_then_index(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        HEADER,
        request(7, arrival_s=2.0, stages=[1.0]),
        request(3, arrival_s=2.0, stages=[2.0]),
        request(9, arrival_s=0.5, stages=[3.0]),
    )
    (batch,) = read_trace(path).tasks[0].batches
    assert batch.arrivals_s.tolist() == [0.5, 2.0, 2.0]
    assert batch.executions_s[0].tolist() == [3.0, 2.0, 1.0]


def test_tasks_and_batches_keep_the_order_of_their_first_line(tmp_path: Path) -> None:
    places = [("b", 9), ("a", 1), ("b", 2), ("b", 9), ("a", 0)]
    lines = (
        request(number, task=task, batch=batch, arrival_s=float(batch)) for number, (task, batch) in enumerate(places)
    )
    trace = read_trace(written(tmp_path, HEADER, *lines))
    assert [(task.task, [batch.arrivals_s.tolist() for batch in task.batches]) for task in trace.tasks] == [
        ("b", [[9.0, 9.0], [2.0]]),
        ("a", [[1.0], [0.0]]),
    ]


def test_a_stage_that_is_null_or_missing_was_not_reached(tmp_path: Path) -> None:
    lines = [request(0, stages=[]), request(1, stages=[50.0]), request(2, stages=[50.0, None]), request(3)]
    unsaid = request(4)
    del unsaid["stages"]
    (batch,) = read_trace(written(tmp_path, HEADER, *lines, unsaid)).tasks[0].batches
    assert batch.reached(0).tolist() == [False, True, True, True, False]
    assert batch.reached(1).tolist() == [False, False, False, True, False]


def test_execution_is_clipped_to_the_timeout(tmp_path: Path) -> None:
    (batch,) = read_trace(written(tmp_path, HEADER, request(stages=[121.0, 1e9]))).tasks[0].batches
    assert batch.executions_s.tolist() == [[120.0], [60.0]]


def test_closed_loop_batches_take_the_headers_gap_after_the_first(tmp_path: Path) -> None:
    lines = [request(batch=0), request(batch=1), request(batch=2, batch_gap_s=7)]
    trace = read_trace(written(tmp_path, {**HEADER, "batch_gap_s": 200}, *lines))
    assert [(batch.start_s, batch.gap_s) for batch in trace.tasks[0].batches] == [(None, 0.0), (None, 200.0), (None, 7)]


def test_open_loop_batches_start_at_their_moment(tmp_path: Path) -> None:
    lines = [request(batch=0, batch_start_s=5), request(batch=1, batch_start_s=605.5)]
    trace = read_trace(written(tmp_path, {**HEADER, "batch_gap_s": 200}, *lines))
    assert [(batch.start_s, batch.gap_s) for batch in trace.tasks[0].batches] == [(5.0, 0.0), (605.5, 0.0)]


def test_blank_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    path = written(tmp_path, "", HEADER, "  ", request(), "", "{")
    with pytest.raises(TraceError, match=r"trace\.jsonl:6: is no JSON"):
        read_trace(path)


@pytest.mark.parametrize(
    ("lines", "number", "message"),
    [
        ([], 1, "no header: begin the file with the line that has stages"),
        ([request()], 1, "no header"),
        ([{**HEADER, "stages": []}], 1, "no stages: list objects"),
        ([{**HEADER, "stages": [{"worker_cost": 1, "timeout_s": 1}]}], 1, "needs a name of its own"),
        ([{**HEADER, "stages": [{"name": "a", "worker_cost": 1, "timeout_s": 1}] * 2}], 1, "needs a name of its own"),
        ([{**HEADER, "stages": [{"name": "a", "worker_cost": -1, "timeout_s": 1}]}], 1, "worker_cost of a is -1"),
        ([{**HEADER, "stages": [{"name": "a", "worker_cost": 1}]}], 1, "timeout_s of a is None"),
        ([{**HEADER, "max_extra_delay_s": "3"}], 1, "max_extra_delay_s is '3'"),
        ([{**HEADER, "batch_gap_s": -5}], 1, "batch_gap_s is -5"),
        ([HEADER], 1, "no requests: put one a line after the header"),
        ([HEADER, request(), "["], 3, "is no JSON"),
        ([HEADER, [1]], 2, "is no JSON object: write one object a line"),
        ([HEADER, request(), request(1, arrival_s=-1.0)], 3, r"arrival_s is -1\.0: give a finite number"),
        ([HEADER, request(arrival_s=float("nan"))], 2, "arrival_s is nan"),
        ([HEADER, request(arrival_s=None)], 2, "arrival_s is None"),
        ([HEADER, request(arrival_s=True)], 2, "arrival_s is True"),
        ([HEADER, request(arrival_s=10**400)], 2, "give a finite number"),
        ([HEADER, request(stages=[float("inf")])], 2, "compile is inf"),
        ([HEADER, request(stages=[1.0, -1.0])], 2, r"run is -1\.0"),
        ([HEADER, request(stages=[1.0, 2.0, None])], 2, "3 stages, but the header names 2: name the others there"),
        ([HEADER, request(stages=5)], 2, "stages must be a list of seconds"),
        ([HEADER, request(task=None)], 2, "give task and batch"),
        ([HEADER, request(batch=True)], 2, "give task and batch"),
        ([HEADER, request(index=0.5)], 2, "give index as a whole number"),
        ([HEADER, request(index=2**63)], 2, "give index as a whole number"),
        ([HEADER, request(4), request(4, batch=1), request(4)], 4, "index 4 of batch 0 of a is on line 2 already"),
        ([HEADER, request(), request(1, batch_start_s=5)], 3, "batch 0 of a began otherwise on line 2: give the same"),
        ([HEADER, request(batch_start_s=5), request(1)], 3, "began otherwise on line 2"),
        ([HEADER, request(batch_start_s=5), request(1, batch_start_s=6)], 3, "began otherwise on line 2"),
        ([HEADER, request(batch_start_s=-5)], 2, "batch_start_s is -5"),
        ([HEADER, request(batch_gap_s="x")], 2, "batch_gap_s is 'x'"),
        ([HEADER, request(length=-1)], 2, "length is -1"),
    ],
)
def test_a_file_is_refused_by_its_line(tmp_path: Path, lines: list[object], number: int, message: str) -> None:
    with pytest.raises(TraceError, match=rf"trace\.jsonl:{number}: .*{message}"):
        read_trace(written(tmp_path, *lines))


def test_a_gzip_file_that_is_none_or_ends_early_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_text(json.dumps(HEADER))
    with pytest.raises(TraceError, match="is no whole gzip file"):
        read_trace(path)
    whole = gzip.compress((json.dumps(HEADER) + "\n" + json.dumps(request()) + "\n").encode())
    path.write_bytes(whole[:-9])
    with pytest.raises(TraceError, match="is no whole gzip file"):
        read_trace(path)


def test_the_ideal_span_ends_with_the_critical_request() -> None:
    batch = TracedBatch(np.array([0.0, 10.0, 70.0]), np.array([[50.0, 60.0, UNREACHED], [4.0, 5.0, UNREACHED]]))
    assert batch.ideal_span_s == 75.0
    assert TracedBatch(np.empty(0), np.empty((2, 0))).ideal_span_s == 0.0


def test_shapes_that_do_not_fit_are_refused() -> None:
    two = np.array([0.0, 1.0])
    with pytest.raises(ValueError, match=r"shape \(stages, 2\)"):
        TracedBatch(two, np.zeros((1, 3)))
    with pytest.raises(ValueError, match="arrivals must ascend"):
        TracedBatch(two[::-1], np.zeros((1, 2)))
    with pytest.raises(ValueError, match="lengths must have the shape"):
        TracedBatch(two, np.zeros((1, 2)), lengths=np.zeros(3))
    with pytest.raises(ValueError, match="2 rows of executions"):
        RewardTrace(STAGES, 3.0, (TracedTask("a", (TracedBatch(two, np.zeros((1, 2))),)),))
    with pytest.raises(ValueError, match="a pool of its own"):
        RewardTrace((Stage("run", 1.0, 60.0, pool="gpu"),), 3.0, ())
