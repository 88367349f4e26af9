"""Table from the end of a job to a verdict.

| the job ended by | verdict |
| --- | --- |
| `lost`, `cancelled` | `lost`: our failure, retried, never a score |
| `wall-limit`, `cpu-limit` | `timeout`: not passed; the task defines its score |
| `memory-limit`, `output-limit` | `ok`, not passed, score 0, the limit's name in `output.error_class` |
| `exit`, `signal` | the grader reads the program's results |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from services.cpu_manager.graders.protocol import Verdict
from services.cpu_manager.sandbox.protocol import EndedBy, Exit

ERROR_CLASSES: Final[Mapping[EndedBy, str]] = {
    "wall-limit": "TimeLimitExceeded",
    "cpu-limit": "TimeLimitExceeded",
    "memory-limit": "MemoryLimitExceeded",
    "output-limit": "OutputLimitExceeded",
    "signal": "KilledBySignal",
}
"""Public name of each way to end other than an ordinary exit (`output.error_class`)."""

TIMED_OUT: Final[frozenset[EndedBy]] = frozenset({"wall-limit", "cpu-limit"})
LOST: Final[frozenset[EndedBy]] = frozenset({"lost", "cancelled"})
TAIL_CHARS: Final = 2000
"""Characters kept of a program's output in a result: the end, which contains tracebacks."""


def verdict_of_end(end: Exit) -> Verdict | None:
    """Return the verdict if the end of the job alone decides it; None if the program ended by itself."""
    if end.ended_by in LOST:
        return lost(end)
    if end.ended_by in TIMED_OUT:
        return Verdict(
            status="timeout",
            passed=False,
            output={"error_class": ERROR_CLASSES[end.ended_by]},
            reason=end.detail or f"The program met its time limit after {end.wall_s:.2f} s.",
            cpu_s=end.cpu_s,
            peak_memory_bytes=end.peak_memory_bytes,
        )
    if end.ended_by in ("memory-limit", "output-limit"):
        return wrong(end, ERROR_CLASSES[end.ended_by], end.detail or f"The program met its {end.ended_by}.")
    return None


def lost(end: Exit) -> Verdict:
    """Return a failure of ours: no verdict on the program, to be retried."""
    return Verdict(
        status="lost",
        reason=end.detail or f"The sandbox gave no verdict (job {end.ended_by}).",
        cpu_s=end.cpu_s,
        peak_memory_bytes=end.peak_memory_bytes,
    )


def wrong(end: Exit, error_class: str, reason: str, **details: object) -> Verdict:
    """Return a verdict against the program: not passed, score 0, with the kind of fault for people and counters."""
    return Verdict(
        status="ok",
        passed=False,
        score=0.0,
        output={"error_class": error_class, **details},
        reason=reason,
        cpu_s=end.cpu_s,
        peak_memory_bytes=end.peak_memory_bytes,
    )


def refused(reason: str, output: Mapping[str, Any] | None = None) -> Verdict:
    """Return a refusal: this node cannot do it, or the trainer's part failed. No score; the reason says what to do."""
    return Verdict(status="refused", output=dict(output or {}), reason=reason)


def charged(verdict: Verdict, ends: Iterable[Exit]) -> Verdict:
    """Return the verdict with the usage of all its jobs: the sum of CPU seconds, the peak of memory."""
    all_ends = list(ends)
    return msgspec.structs.replace(
        verdict,
        cpu_s=sum(end.cpu_s for end in all_ends),
        peak_memory_bytes=max((end.peak_memory_bytes for end in all_ends), default=0),
    )


def tail(data: bytes, chars: int = TAIL_CHARS) -> str:
    """Return the last characters of an output as text; invalid UTF-8 is shown as U+FFFD."""
    return data[-4 * chars :].decode("utf-8", "replace")[-chars:]


def how_it_ended(end: Exit) -> str:
    """Return one clause for people: `exited with 3`, `was killed by signal 11`."""
    if end.ended_by == "signal":
        return f"was killed by signal {end.signal}"
    return f"exited with {end.exit_code}"
