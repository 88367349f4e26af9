"""What an answer says of a program, in one word."""

from __future__ import annotations

from typing import Final, Literal

from treadle.client.answers import Answer

Verdict = Literal["passed", "failed", "error", "timeout", "scored", "masked"]

VERDICTS: Final[tuple[Verdict, ...]] = ("passed", "failed", "error", "timeout", "scored", "masked")
"""passed, failed: the tests' word. error: it raised, crashed or met a limit other than time, where the kind tells that
apart from failing. timeout: it met its time limit. scored: the kind gives a score and no verdict. masked: refused,
cancelled, expired or a failure of ours, which is no statement: leave the sample out."""


def verdict_of(answer: Answer) -> Verdict:
    """The verdict of a finished answer."""
    if answer.mask or answer.ended not in ("ok", "timeout"):
        return "masked"
    if answer.ended == "timeout":
        return "timeout"
    if answer.passed is None:
        return "scored"
    if answer.passed:
        return "passed"
    return "error" if told_verdict(answer) == "error" else "failed"


def told_verdict(answer: Answer) -> str:
    """The kind's own word for it, where it has one (`output.verdict`); else empty."""
    verdict = answer.output.get("verdict") if isinstance(answer.output, dict) else None
    return verdict if isinstance(verdict, str) else ""
