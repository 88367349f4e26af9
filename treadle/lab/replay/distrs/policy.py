"""What a policy of the virtual mesh sees, and what it answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from shared.policy.scaling.collection import CollectionInput
from shared.policy.scaling.list_scheduling import Counts
from shared.policy.scaling.workload import BatchRecord, Requests

Event = str
"""`opened`, `arrived` (the first request), `complete`, `again` (the policy asked for it)."""


class RolloutReport(NamedTuple):
    """How far a rollout is."""

    generating: int
    """Samples that will still come."""
    tokens: float | None
    """Median length of those whose length is known, so far."""


@dataclass(frozen=True)
class OpenBatchView:
    """An open batch as a policy may see it; `truth` only as the ideal one may."""

    task: int
    index: int
    seen: CollectionInput
    report: RolloutReport | None
    """What the trainer would say of the rollout; None where lengths are not known, or all samples have come."""
    past: Sequence[BatchRecord]
    """Of the task's complete batches, the newest last."""
    gaps_s: Sequence[float]
    """Of the same: seconds from the opening to the first arrival."""
    truth: Requests | None
    """What its requests will really need, on a clock that begins now; only for a policy that knows all."""


class Policy(Protocol):
    """Decides how many workers there are."""

    name: str
    dedicated: bool
    """Every task has pools of its own."""
    by_arrival: bool
    """FCFS instead of EBF."""

    knows_all: bool
    """It sees what will happen."""

    def decide(self, now: float, event: Event, open_batches: Sequence[OpenBatchView], busy: Counts) -> Decision:
        """Targets, asked at `event`; `busy` are units in use by pool."""
        ...


@dataclass(frozen=True)
class Decision:
    """Targets by pool number (stage, or task * stages + stage where dedicated); pools not named stay as they are."""

    targets: Mapping[int, int]
    wake_s: float = math.inf
    """Ask again at this moment, whatever earlier answers said; infinite: at the next turn of a batch."""
    due_s: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(task, index of the batch) -> T, absolute: the key of its requests from now on. Others keep theirs."""
