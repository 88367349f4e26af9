"""From a file as read to the lines that can be submitted, or to what must be corrected first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.api.tasks import Task
from treadle.grading.agreement import expectations
from treadle.grading.check import check_lines
from treadle.grading.format import Complaint, Expected, GradingFile, Line


@dataclass(frozen=True, slots=True)
class Checked:
    """A file after all possible checks."""

    lines: Sequence[Line]
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
