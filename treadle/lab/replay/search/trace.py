"""Search agents: think, call, think, call ... until the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SEARCH: Final = "search"
PAGES: Final = "pages"
UPSTREAMS: Final = (SEARCH, PAGES)
"""External services: searches, and pages that a search has found."""


@dataclass(frozen=True, slots=True)
class AgentCall:
    """One thought of the model and the call after it."""

    think_s: float
    """Seconds of generation before the call."""
    upstream: str
    """One of `UPSTREAMS`."""
    work: float = 1.0
    """Its latency relative to the service's median."""


@dataclass(frozen=True, slots=True)
class SearchTrajectory:
    """Calls of one sample, and the thought that becomes its answer."""

    name: str
    calls: tuple[AgentCall, ...]
    last_s: float = 0.0
    """Seconds of generation after the last call."""


SearchBatch = tuple[SearchTrajectory, ...]
"""Trajectories that begin together."""
