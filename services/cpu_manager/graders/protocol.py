"""Interface of a grader: one action's parameters in, one verdict out.

A grader turns an action into sandbox jobs and their exits into a verdict. It has no queue and no clock: cores are
granted before it is called, and it is called again from the start if an attempt was lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from services.cpu_manager.sandbox.protocol import Sandbox
from shared.policy.model.results import Evidence

P_contra = TypeVar("P_contra", bound=msgspec.Struct, contravariant=True)

Status = Literal["ok", "timeout", "lost", "refused"]
"""`ok`: a verdict (right or wrong). `timeout`: the action's own time limit was reached (a verdict: the task defines its
score). `lost`: our failure, to be retried, never a score. `refused`: this node cannot do it (language missing), or the
trainer's own part failed (malformed parameters, a scoring function that raised)."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of one action on a node."""

    status: Status
    passed: bool | None = None
    """None for kinds without a notion of passing (code.run, sleep)."""
    score: float | None = None
    """The reward, for kinds that have one. Always None with `lost` and `refused`."""
    output: dict[str, Any] = {}
    """Kind-specific public details, JSON-able (per-test verdicts, stdout tail, exception name ...)."""
    reason: str = ""
    """One sentence for people, unless it is `ok` and passed."""
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    evidence: Evidence = ""
    artifact: bytes | None = None
    """Bytes for later stages of the action. Only of a verdict that has passed."""


async def _no_artifact() -> bytes:
    raise ValueError("no earlier stage has left an artifact")


class GradingContext(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of one action: its grant and its limits."""

    sandbox: Sandbox
    cores: frozenset[int]
    """Granted, exclusive core ids; len >= 1 for kinds that need cores."""
    timeout_s: float
    """The stage's time limit; graders limit their own times by it."""
    tenant: str
    error_score: float = 0.0
    """Score of a sample that ended the process of a trainer's scoring function."""
    exception_score: float | None = None
    """Score if a trainer's scoring function raised an ordinary exception; None: the action is refused."""
    artifact: Callable[[], Awaitable[bytes]] = _no_artifact
    """Returns the artifact of an earlier stage. Its errors are left to the caller of the grader."""


class Grader(Protocol, Generic[P_contra]):
    """One action kind of `services.cpu_manager.kinds`. `params` is the type of its parameters."""

    kind: str
    params: type[Any]
    evidence: Evidence
    """Evidence of every verdict of this kind that has none itself."""

    async def grade(self, params: P_contra, context: GradingContext) -> Verdict:
        """Grade one action. Raise ValueError for malformed parameters (answered as refused)."""
        ...
