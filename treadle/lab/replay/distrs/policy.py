"""Interface of a scaling policy in the simulated cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from shared.policy.scaling.collection import CollectionInput
from shared.policy.scaling.list_scheduling import Counts
from shared.policy.scaling.workload import BatchRecord, Requests

Event = str
"""`opened`, `arrived` (the first request), `complete`, or `timer` (requested by the policy)."""


class RolloutReport(NamedTuple):
    """Progress of a rollout."""

    generating: int
    """Samples that have not arrived."""
    tokens: float | None
    """Median length of those whose length is known, so far."""


@dataclass(frozen=True)
class OpenBatchView:
    """State of an open batch for a policy."""

    task: int
    index: int
    seen: CollectionInput
    report: RolloutReport | None
    """Progress that the trainer would report; None if lengths are unknown or all samples have arrived."""
    past: Sequence[BatchRecord]
    """Records of the task's complete batches, the newest last."""
    gaps_s: Sequence[float]
    """Seconds from the opening to the first arrival of the same batches."""
    truth: Requests | None
    """Actual remaining work, on a clock that begins now; only for a policy with `knows_all`."""


class Policy(Protocol):
    """Policy that decides the numbers of workers."""

    name: str
    dedicated: bool
    """Pools are separate for each task."""
    by_arrival: bool
    """FCFS instead of EBF."""

    knows_all: bool
    """It receives the actual remaining work."""

    def decide(self, now: float, event: Event, open_batches: Sequence[OpenBatchView], busy: Counts) -> Decision:
        """Return the targets at `event`; `busy`: units in use by pool."""
        ...


@dataclass(frozen=True)
class Decision:
    """Targets by pool number (stage, or task * stages + stage if dedicated); other pools keep theirs."""

    targets: Mapping[int, int]
    wake_s: float = math.inf
    """Time of the next `timer` event, instead of any earlier one; infinite: none."""
    due_s: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(task, index of the batch) -> T, absolute: the key of its requests from now on. Others keep theirs."""
