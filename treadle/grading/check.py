"""Checks of a file before it is submitted: every error, and the lines that can be submitted.

The parameters of a line must fit its workflow; this is the proxy's rule, applied here first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shared.api.tasks import StageTemplate, Task
from treadle.grading.agreement import expectations
from treadle.grading.format import Complaint, Expected, GradingFile, GradingLine, explain


@dataclass(frozen=True, slots=True)
class Checked:
    """A file after all possible checks."""

    lines: Sequence[GradingLine]
    """Valid ones."""
    expected: dict[str, Expected]
    """Recorded verdicts by id."""
    complaints: Sequence[Complaint]
    """Sorted by line."""
    fatal: bool
    """The header is wrong, so leaving lines out does not help."""


def check_file(found: GradingFile, workflow: Task | None, expect: str) -> Checked:
    """Run all checks of a file.

    Args:
        found: the file.
        workflow: the workflow of its lines; None: not known yet, so only their form is checked.
        expect: field with the recorded verdict.
    """
    expected, odd = expectations(found.lines, expect)
    complaints = [*found.complaints, *odd]
    if workflow is not None:
        complaints += check_lines(found.lines, workflow.stages)
    bad = {complaint.line for complaint in complaints}
    return Checked(
        lines=[line for number, line in found.lines if number not in bad],
        expected=expected,
        complaints=sorted(complaints),
        fatal=found.header in bad,
    )


def check_lines(lines: Iterable[tuple[int, GradingLine]], stages: Sequence[StageTemplate]) -> Iterator[Complaint]:
    """Yield complaints, line by line, at most one per parameter and stage."""
    for number, line in lines:
        for where, what in _check(line, stages):
            yield Complaint(number, where, what)


def _check(line: GradingLine, stages: Sequence[StageTemplate]) -> Iterator[tuple[str, str]]:
    known = {name for stage in stages for name in stage.spec.fields}
    for name in sorted(line.params.keys() - known):
        yield f"params.{name}", f"no stage has this parameter; there are {', '.join(sorted(known))}"
    for name in sorted(line.stage_params.keys() - {stage.name for stage in stages}):
        yield f"stage_params.{name}", f"no such stage; there are {', '.join(stage.name for stage in stages)}"
    for stage in stages:
        problem = _parameter_error(line, stage)
        if problem is not None:
            yield problem


def _parameter_error(line: GradingLine, stage: StageTemplate) -> tuple[str, str] | None:
    kind = stage.spec.params
    own = line.stage_params.get(stage.name, {})
    try:
        msgspec.convert(stage.merged(line.params, own), kind)
    except msgspec.ValidationError as error:
        where, what = explain(error, kind)
        return _place(where, stage, own), f"{what} (stage {stage.name!r}, {stage.kind})"
    return None


def _place(where: str, stage: StageTemplate, own: Mapping[str, Any]) -> str:
    name = where.partition(".")[0].partition("[")[0]
    return f"stage_params.{stage.name}.{where}" if name in own else f"params.{where}"
