"""Comparison of answers with recorded verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from treadle.client.answers import Answer
from treadle.client.verdicts import reported_verdict, verdict_of
from treadle.grading.format import Complaint, Expected, GradingLine

EXPECTED = ("passed", "failed", "error", "timeout", True, False)


class Disagreement(msgspec.Struct, frozen=True):
    """A line whose answer differs from the recorded one."""

    id: str
    expected: Expected
    got: str
    reason: str


class Agreement(msgspec.Struct, frozen=True):
    """Comparison of all lines with a recorded verdict."""

    compared: int
    agreed_on_passed: int
    """Agreement on passed against all others."""
    agreed: int
    """Agreement that also distinguishes failed, error and timeout, if both sides do."""
    masked: int
    """Recorded, but our answer is masked. Not compared."""
    disagreements: list[Disagreement]


def expectations(lines: Iterable[tuple[int, GradingLine]], field: str) -> tuple[dict[str, Expected], list[Complaint]]:
    """Return the recorded verdicts by id.

    Args:
        field: `expect`, or the name of a field in `meta` (with or without `meta.` before it).
    Returns:
        (verdicts of the lines that have one, complaints about invalid ones)
    """
    found: dict[str, Expected] = {}
    complaints: list[Complaint] = []
    name = field.removeprefix("meta.")
    for number, line in lines:
        value = line.expect if field == "expect" else line.meta.get(name)
        if value is None:
            continue
        if isinstance(value, (str, bool)) and value in EXPECTED:
            found[line.id] = value  # type: ignore[assignment]  # one of the literals
        else:
            where = field if field == "expect" else f"meta.{name}"
            complaints.append(
                Complaint(
                    number, where, f"{value!r} is no verdict; write passed, failed, error, timeout, true or false"
                )
            )
    return found, complaints


def agrees(expected: Expected, answer: Answer) -> bool:
    """Return whether an answer is the recorded one.

    Only kinds with `output.verdict` distinguish `error` and `failed`; for others they are the same.
    """
    got = verdict_of(answer)
    if isinstance(expected, bool):
        return expected == (got == "passed")
    if expected == got:
        return True
    return {expected, got} == {"failed", "error"} and not reported_verdict(answer)


def compare(expected: Mapping[str, Expected], answers: Iterable[Answer]) -> Agreement:
    """Compare every answer that has a recorded verdict."""
    compared = on_passed = masked = 0
    disagreements = []
    for answer in answers:
        recorded = expected.get(answer.request_id or "")
        if recorded is None:
            continue
        got = verdict_of(answer)
        if got == "masked":
            masked += 1
            continue
        compared += 1
        on_passed += (recorded in ("passed", True)) == (got == "passed")
        if not agrees(recorded, answer):
            disagreements.append(Disagreement(answer.request_id or "", recorded, got, answer.reason))
    return Agreement(compared, on_passed, compared - len(disagreements), masked, disagreements)
