"""What an answer says of a program, in one word."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from shared.api.requests import Answer

Verdict = Literal["passed", "failed", "error", "timeout", "scored", "masked"]

VERDICTS: Final[tuple[Verdict, ...]] = ("passed", "failed", "error", "timeout", "scored", "masked")
"""passed, failed: the tests' word. error: it raised, crashed or met a limit other than time, where the kind tells that
apart from failing. timeout: it met its time limit. scored: the kind gives a score and no verdict. masked: refused,
cancelled, expired or a failure of ours, which is no statement: leave the sample out."""


class _Told(msgspec.Struct, frozen=True):
    """The part of an output that tells an error from a failure."""

    verdict: str = ""


_told = msgspec.json.Decoder(_Told)


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
    if answer.output is None:
        return ""
    try:
        return _told.decode(answer.output).verdict
    except msgspec.ValidationError:
        return ""
