"""Files of reward workloads (DistRS).

A trace file is JSON Lines, gzipped where its name ends in `.gz`; blank lines are passed over. The header comes first::

    {"stages": [{"name", "worker_cost", "timeout_s", "cold_start_s"?}, ...], "max_extra_delay_s", "batch_gap_s"?}

then one request a line, in any order::

    {"task", "batch", "index", "arrival_s", "stages": [seconds, ...], "batch_start_s"?}

`arrival_s` counts from the batch's start. A stage that is null or missing was not reached. With `batch_start_s` the
batch is *open loop* and starts at that moment; without it, *closed loop*: it starts `batch_gap_s` (0 where the header
has none) after the completion of the task's previous batch, and at time 0 when it is the task's first. Execution beyond
a stage's timeout is clipped to the timeout, as a reward service does (§3.1). A worker is usable
`cold_start_s` (0 if the stage has none) after its request.

Generated traces have more information, so `write_trace` adds two fields to a line if needed: `batch_gap_s`, the batch's
own gap if it differs from the one above, and `length`, the tokens of the sample's output.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from shared.policy.scaling.workload import UNREACHED, Stage
from treadle.lab.replay.distrs.trace import RewardTrace, TracedBatch, TracedTask

MOST = float(np.finfo(np.float64).max)
NAMES = (str, int)
"""Types of names of tasks and batches; not bool, which is an int in Python."""


class TraceError(ValueError):
    """A trace file cannot be read. The message has the line, the reason and the remedy."""


def read_trace(path: Path) -> RewardTrace:
    """Return the trace of a file.

    Raises:
        TraceError: the file has another format.
        OSError: it cannot be opened.
    """
    reader = _Reader(path)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            return reader.read(lines)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise reader.refusal(f"is no whole gzip file ({error}): write it again, or drop the .gz") from error


def write_trace(trace: RewardTrace, path: Path) -> None:
    """Write a trace; batches and requests are numbered from 0."""
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in _lines(trace))


def _lines(trace: RewardTrace) -> Iterator[dict[str, object]]:
    gaps = Counter(batch.gap_s for task in trace.tasks for batch in task.batches[1:] if batch.start_s is None)
    usual = max(gaps, key=gaps.__getitem__, default=0.0)
    yield {
        "stages": [
            {"name": stage.name, "worker_cost": stage.worker_cost, "timeout_s": stage.timeout_s}
            | ({"cold_start_s": cold_start_s} if cold_start_s else {})
            for stage, cold_start_s in zip(trace.stages, trace.cold_starts_s, strict=True)
        ],
        "max_extra_delay_s": trace.max_extra_delay_s,
        "batch_gap_s": usual,
    }
    for task in trace.tasks:
        for number, batch in enumerate(task.batches):
            opening: dict[str, float] = {}
            if batch.start_s is not None:
                opening = {"batch_start_s": batch.start_s}
            elif batch.gap_s != (usual if number else 0.0):
                opening = {"batch_gap_s": batch.gap_s}
            for request in _requests(batch):
                yield {"task": task.task, "batch": number, **request, **opening}


def _requests(batch: TracedBatch) -> Iterator[dict[str, object]]:
    lengths = np.full(batch.size, UNREACHED) if batch.lengths is None else batch.lengths
    rows = zip(batch.arrivals_s.tolist(), batch.executions_s.T.tolist(), lengths.tolist(), strict=True)
    for index, (arrival, executions, length) in enumerate(rows):
        while executions and math.isnan(executions[-1]):
            executions.pop()
        stages = [None if math.isnan(seconds) else seconds for seconds in executions]
        known = {} if math.isnan(length) else {"length": length}
        yield {"index": index, "arrival_s": arrival, "stages": stages, **known}


@dataclass(slots=True)
class _Gathered:
    """A batch during reading; the columns are parallel."""

    opening: tuple[float | None, float | None]
    """Start and gap, from the first line."""
    lines: dict[int, int] = field(default_factory=dict)
    """Line by the request's index."""
    arrivals: array[float] = field(default_factory=lambda: array("d"))
    executions: array[float] = field(default_factory=lambda: array("d"))
    """By request, then stage."""
    lengths: array[float] = field(default_factory=lambda: array("d"))

    def sealed(self, stages: int, gap_s: float) -> TracedBatch:
        """Return the batch with its requests sorted by arrival, then index.

        Args:
            stages: number of stages of the trace.
            gap_s: seconds before the batch, unless its lines have others.
        """
        arrivals = np.array(self.arrivals)
        order = np.lexsort((np.fromiter(self.lines, np.int64, len(arrivals)), arrivals))
        lengths = np.array(self.lengths)[order]
        start_s, own_gap_s = self.opening
        if start_s is not None:
            gap_s = 0.0
        elif own_gap_s is not None:
            gap_s = own_gap_s
        return TracedBatch(
            arrivals_s=arrivals[order],
            executions_s=np.ascontiguousarray(np.array(self.executions).reshape(-1, stages)[order].T),
            start_s=start_s,
            gap_s=gap_s,
            lengths=None if np.isnan(lengths).all() else lengths,
        )


class _Reader:
    """Reader of one file, with its present line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self.stages: tuple[Stage, ...] = ()
        self.tasks: dict[str, dict[int | str, _Gathered]] = {}

    def refusal(self, what: str) -> TraceError:
        return TraceError(f"{self.path}:{max(self.number, 1)}: {what}")

    def read(self, lines: Iterable[bytes]) -> RewardTrace:
        objects = self._objects(lines)
        header = next(objects, {})
        if "stages" not in header or "max_extra_delay_s" not in header:
            raise self.refusal("no header: begin the file with the line that has stages and max_extra_delay_s")
        self.stages = tuple(self._stages(header["stages"]))
        cold_starts_s = tuple(
            self._seconds(stage.get("cold_start_s", 0.0), f"cold_start_s of {stage['name']}")
            for stage in header["stages"]
        )
        max_extra_delay_s = self._seconds(header["max_extra_delay_s"], "max_extra_delay_s")
        gap_s = self._seconds(header.get("batch_gap_s", 0.0), "batch_gap_s")
        for line in objects:
            self._request(line)
        if not self.tasks:
            raise self.refusal("no requests: put one a line after the header")
        tasks = (
            TracedTask(
                task,
                tuple(
                    batch.sealed(len(self.stages), gap_s if number else 0.0)
                    for number, batch in enumerate(batches.values())
                ),
            )
            for task, batches in self.tasks.items()
        )
        return RewardTrace(self.stages, max_extra_delay_s, tuple(tasks), cold_starts_s)

    def _objects(self, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        for self.number, line in enumerate(lines, 1):
            if line.isspace():
                continue
            try:
                found = json.loads(line)
            except ValueError as error:
                raise self.refusal(f"is no JSON ({error}): write one object a line") from None
            if not isinstance(found, dict):
                raise self.refusal("is no JSON object: write one object a line")
            yield found

    def _stages(self, found: object) -> Iterator[Stage]:
        if not isinstance(found, list) or not found or not all(isinstance(stage, dict) for stage in found):
            raise self.refusal("no stages: list objects with name, worker_cost and timeout_s")
        names = [stage.get("name") for stage in found]
        if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
            raise self.refusal("each stage needs a name of its own: a text that is not empty")
        for stage in found:
            cost = self._seconds(stage.get("worker_cost"), f"worker_cost of {stage['name']}")
            timeout_s = self._seconds(stage.get("timeout_s"), f"timeout_s of {stage['name']}")
            yield Stage(stage["name"], cost, timeout_s)

    def _request(self, line: dict[str, Any]) -> None:
        task, number, index = line.get("task", ""), line.get("batch", ""), line.get("index", "")
        if type(task) not in NAMES or type(number) not in NAMES or "" in (task, number):
            raise self.refusal("give task and batch, each as a text or a whole number")
        if type(index) is not int or not 0 <= index < 2**63:
            raise self.refusal("give index as a whole number, 0 for the batch's first request")
        batch = self._batch(line, str(task), number)
        earlier = batch.lines.setdefault(index, self.number)
        if earlier != self.number:
            raise self.refusal(
                f"index {index} of batch {number} of {task} is on line {earlier} already: use another number"
            )
        batch.arrivals.append(self._seconds(line.get("arrival_s"), "arrival_s"))
        batch.executions.extend(self._executions(line.get("stages", [])))
        length = self._given(line.get("length"), "length")
        batch.lengths.append(math.nan if length is None else length)

    def _batch(self, line: dict[str, Any], task: str, number: int | str) -> _Gathered:
        start_s = self._given(line.get("batch_start_s"), "batch_start_s")
        gap_s = self._given(line.get("batch_gap_s"), "batch_gap_s")
        batches = self.tasks.setdefault(task, {})
        batch = batches.get(number)
        if batch is None:
            batch = batches[number] = _Gathered((start_s, gap_s))
        if batch.opening != (start_s, gap_s):
            raise self.refusal(
                f"batch {number} of {task} began otherwise on line {next(iter(batch.lines.values()))}: "
                "give the same batch_start_s (and batch_gap_s) on all of its lines, or on none"
            )
        return batch

    def _executions(self, found: object) -> Iterator[float]:
        """Seconds in each of the trace's stages, clipped to its timeout."""
        if not isinstance(found, list):
            raise self.refusal("stages must be a list of seconds, null where a stage was not reached")
        if len(found) > len(self.stages):
            raise self.refusal(f"{len(found)} stages, but the header names {len(self.stages)}: name the others there")
        for stage, value in zip_longest(self.stages, found):
            seconds = self._given(value, stage.name)
            yield UNREACHED if seconds is None else min(seconds, stage.timeout_s)

    def _given(self, found: Any, what: str) -> float | None:
        return None if found is None else self._seconds(found, what)

    def _seconds(self, found: Any, what: str) -> float:
        if type(found) not in (int, float) or not 0 <= found <= MOST:
            raise self.refusal(f"{what} is {found!r}: give a finite number that is not negative")
        return float(found)
