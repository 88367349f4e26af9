"""What the manager asks of a grader: one action's parameters in, one verdict out.

A grader turns an action into sandbox jobs and their exits into a verdict. It holds no queue and no clock of its own:
cores were granted before it is called, and it is called again from the start when an attempt was lost.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from services.cpu_manager.sandbox.protocol import Sandbox
from shared.messages.outcomes import Evidence

P_contra = TypeVar("P_contra", bound=msgspec.Struct, contravariant=True)

Status = Literal["ok", "timeout", "lost", "refused"]
"""`ok`: a verdict stands (right or wrong). `timeout`: the action's own time limit was met (a verdict: the task says its
score). `lost`: our failure, to be tried again, never a score. `refused`: this node cannot do it (language missing), or
the trainer's own part failed (parameters without meaning, a scoring function that raised)."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of one action on a node."""

    status: Status
    passed: bool | None = None
    """None where the kind has no notion of passing (code.run, sleep)."""
    score: float | None = None
    """The reward, where the kind gives one. None with `lost` and `refused`, always."""
    output: dict[str, Any] = {}
    """Kind-specific public details, JSON-able (per-test verdicts, stdout tail, exception name ...)."""
    reason: str = ""
    """One sentence for people, when it is not `ok` and passed."""
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    evidence: Evidence = ""


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """Where an action works: what it was granted."""

    sandbox: Sandbox
    cores: frozenset[int]
    """Granted, exclusive core ids; len >= 1 for kinds that need cores."""
    timeout_s: float
    """The stage's time limit; graders cap their own limits by it."""
    tenant: str
    error_score: float = 0.0
    """Score of a sample that ended a trainer's scoring function."""
    exception_score: float | None = None
    """Score where a trainer's scoring function raised an ordinary exception; None: such an action is refused."""


class Grader(Protocol, Generic[P_contra]):
    """One action kind. `params` is a msgspec Struct type; unknown fields in a request are refused at the door."""

    kind: str
    params: type[Any]
    repeatable: bool
    """True when running it twice changes nothing outside (programs in a sandbox leave nothing: true)."""
    evidence: Evidence
    """Of every verdict of this kind that names none itself."""

    async def grade(self, params: P_contra, bench: Bench) -> Verdict:
        """Grade one action. Raises ValueError for parameters that cannot mean anything (answered as refused)."""
        ...
