"""Answers against recorded verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from treadle.client.answers import Answer
from treadle.client.verdicts import told_verdict, verdict_of
from treadle.grading.format import Complaint, Expected, Line

EXPECTED = ("passed", "failed", "error", "timeout", True, False)


class Disagreement(msgspec.Struct, frozen=True):
    """A line whose answer is not the recorded one."""

    id: str
    expected: Expected
    got: str
    reason: str


class Agreement(msgspec.Struct, frozen=True):
    """All lines that carry a recorded verdict."""

    compared: int
    agreed_on_passed: int
    """Passed against the rest."""
    agreed: int
    """Failed, error and timeout told apart too, where both sides do."""
    masked: int
    """Recorded, but without a verdict of ours. Not compared."""
    disagreements: list[Disagreement]


def expectations(lines: Iterable[tuple[int, Line]], field: str) -> tuple[dict[str, Expected], list[Complaint]]:
    """Recorded verdicts by id.

    Args:
        field: `expect`, or the name of a field in `meta` (`meta.` may stand before it).
    Returns:
        (verdicts of the lines that have one, what is no verdict)
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
    """Whether an answer is what was recorded.

    `error` and `failed` are told apart only by kinds that do so themselves (`output.verdict`); elsewhere they are one.
    """
    got = verdict_of(answer)
    if isinstance(expected, bool):
        return expected == (got == "passed")
    if expected == got:
        return True
    return {expected, got} == {"failed", "error"} and not told_verdict(answer)


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
