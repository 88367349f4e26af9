"""What the demo counts, and its result."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import msgspec

from treadle.model_demo.cases import SERVICES, Service


class ServiceCounts(msgspec.Struct):
    """Counts of one service."""

    judged: int = 0
    """Answers that were compared with their reference."""
    wrong: int = 0
    """Answers that differ from it."""
    masked: int = 0
    """Actions that ended without an answer: failures of ours, never scored."""
    repeated: int = 0
    """Actions that were executed more than once, because an engine was killed."""
    kills: int = 0
    references: int = 0
    seconds: list[float] = []
    """Time of each answer from its request."""

    def median_s(self) -> float:
        return statistics.median(self.seconds) if self.seconds else 0.0

    def p99_s(self) -> float:
        return sorted(self.seconds)[int(0.99 * (len(self.seconds) - 1))] if self.seconds else 0.0


class EngineCounts(msgspec.Struct):
    """Steps of engines, from the metrics of the GPU manager."""

    evictions: dict[str, int] = {}
    """Level -> evictions. `cold` is a stop."""
    steps: dict[str, int] = {}
    """Step (`load`, `restore`, `evict` ...) -> number with success."""
    failed: dict[str, int] = {}
    """Step -> number that failed, most because their engine was killed."""
    out_of_memory: int = 0
    """Steps that ended for lack of memory."""

    @property
    def swaps(self) -> int:
        """Evictions in all: each made room for another service."""
        return sum(self.evictions.values())


class DemoProgress(msgspec.Struct):
    """Counts of a run so far."""

    minutes: float
    budget_gb: float
    together_gb: float
    services: dict[Service, ServiceCounts]
    engines: EngineCounts = msgspec.field(default_factory=EngineCounts)
    elapsed_s: float = 0.0
    used_gb: float = 0.0
    """Resident memory of all engines now."""
    peak_gb: float = 0.0
    states: dict[str, str] = {}
    """Service -> state of its engine, as the mesh shows it."""
    masked_reasons: dict[str, int] = {}
    """Ends of masked actions, with their reasons."""
    wrong_answers: list[str] = []
    """The first wrong answers, for people."""

    @property
    def judged(self) -> int:
        return sum(one.judged for one in self.services.values())

    @property
    def wrong(self) -> int:
        return sum(one.wrong for one in self.services.values())

    @property
    def masked(self) -> int:
        return sum(one.masked for one in self.services.values())

    @property
    def kills(self) -> int:
        return sum(one.kills for one in self.services.values())

    @property
    def exceeded(self) -> bool:
        """True if the engines have had more memory than the budget at some time."""
        return self.peak_gb > self.budget_gb

    @property
    def succeeded(self) -> bool:
        """True if no answer is wrong, no memory was lacking, and each service has answered."""
        return (
            self.wrong == 0
            and not self.exceeded
            and self.engines.out_of_memory == 0
            and all(one.judged > 0 for one in self.services.values())
        )


def new_progress(
    minutes: float, budget_gb: float, together_gb: float, references: Mapping[Service, int]
) -> DemoProgress:
    """Return the counts at the beginning."""
    counts = {service: ServiceCounts(references=references[service]) for service in SERVICES}
    return DemoProgress(minutes, budget_gb, together_gb, counts)
