"""A batch's progress, computed from its answers: delays and their distribution."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from services.proxy.records.failures import MOST_REASON, kinds, share
from shared.api.batches import BatchView, EnvironmentProgress, Spread, StageProgress
from shared.api.requests import Act, StageReport
from shared.bus.batches import StoredBatch
from shared.policy.model.results import Usage, added


class _Measured(msgspec.Struct, frozen=True):
    """The fields of an answer that progress needs."""

    arrived_at: float = 0.0
    act: Act | None = None
    stages: list[StageReport] = []
    mask: bool = False
    ended: str = ""
    reason: str = ""
    usage: dict[str, float] = {}


_decoder = msgspec.json.Decoder(_Measured)


class Progress:
    """Collects answers. O(1) memory per answer (a few floats)."""

    def __init__(self) -> None:
        self._queue: dict[str, list[float]] = defaultdict(list)
        self._execution: dict[str, list[float]] = defaultdict(list)
        self._overhead: list[float] = []
        self._answered = 0
        self._masked: dict[str, tuple[int, str]] = {}
        self._ideal_s = 0.0
        self._actual_s = 0.0
        self._usage: Usage = {}

    def add(self, answer: bytes) -> None:
        """Add one stored answer."""
        measured = _decoder.decode(answer)
        self._answered += 1
        self._usage = added(self._usage, measured.usage)
        if measured.mask:
            count, _ = self._masked.get(measured.ended, (0, ""))
            self._masked[measured.ended] = count + 1, measured.reason[:MOST_REASON]
        for stage in measured.stages:
            self._queue[stage.name].append(stage.queue_s)
            self._execution[stage.name].append(stage.execution_s)
        if measured.act is not None and measured.stages:
            self._overhead.append(measured.act.overhead_s)
            self._ideal_s = max(self._ideal_s, measured.arrived_at + measured.act.execution_s)
            self._actual_s = max(self._actual_s, measured.arrived_at + measured.act.total_s)

    def view(
        self,
        batch: StoredBatch,
        expected_s: float | None,
        stuck: int = 0,
        environments: EnvironmentProgress | None = None,
    ) -> BatchView:
        """Return the batch as callers see it.

        Args:
            batch: its stored record.
            expected_s: estimated T of a running batch (Unix seconds). A later time in its answers replaces it.
            stuck: requests that no present node can execute.
            environments: counts of the actions in its trajectories.
        """
        masked = sum(count for count, _ in self._masked.values())
        return BatchView(
            id=batch.id,
            task=batch.task,
            tenant=batch.tenant,
            state=batch.state,
            size=batch.size,
            submitted=batch.submitted,
            answered=batch.answered,
            stuck=stuck,
            masked=masked,
            masked_share=share(masked, self._answered),
            failures=kinds(self._masked, self._answered),
            usage=dict(self._usage),
            environments=environments,
            opened_at=batch.opened_at,
            first_arrival_at=batch.first_at,
            ended_at=batch.ended_at,
            expected_completion_at=max(self._ideal_s, expected_s or 0.0) or None,
            extra_delay_s=self._actual_s - self._ideal_s if self._ideal_s else None,
            overhead_s=spread_of(self._overhead),
            stages=[
                StageProgress(
                    name=name,
                    finished=len(values),
                    queue_s=spread_of(self._queue[name]),
                    execution_s=spread_of(values),
                )
                for name, values in self._execution.items()
            ],
        )


def spread_of(values: list[float]) -> Spread | None:
    """Return mean, median, 99th percentile (nearest rank) and maximum; None for an empty list."""
    if not values:
        return None
    ordered = sorted(values)
    last = len(ordered) - 1
    return Spread(
        mean=sum(ordered) / len(ordered),
        p50=ordered[last // 2],
        p99=ordered[min(last, round(last * 0.99))],
        max=ordered[-1],
    )
