"""The verdict of an answer, in one word."""

from __future__ import annotations

from typing import Final, Literal

from treadle.client.answers import Answer

Verdict = Literal["passed", "failed", "error", "timeout", "scored", "masked"]

VERDICTS: Final[tuple[Verdict, ...]] = ("passed", "failed", "error", "timeout", "scored", "masked")
"""passed, failed: verdict of the tests. error: it raised, crashed or met a limit other than time, if the kind separates
that from a failed test. timeout: it met its time limit. scored: the kind gives a score and no verdict. masked: refused,
cancelled, expired or a failure of the mesh; leave the sample out."""


def verdict_of(answer: Answer) -> Verdict:
    """Return the verdict of a finished answer."""
    if answer.mask or answer.ended not in ("ok", "timeout"):
        return "masked"
    if answer.ended == "timeout":
        return "timeout"
    if answer.passed is None:
        return "scored"
    if answer.passed:
        return "passed"
    return "error" if reported_verdict(answer) == "error" else "failed"


def reported_verdict(answer: Answer) -> str:
    """Return the verdict in the kind's output (`output.verdict`); empty if there is none."""
    verdict = answer.output.get("verdict") if isinstance(answer.output, dict) else None
    return verdict if isinstance(verdict, str) else ""
