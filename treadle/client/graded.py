"""A batch that is graded whole: what came of it, and how a caller follows it meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from treadle.client.answers import BatchView, Rejection, Result


class Progress(Protocol):
    """Receives how a batch goes on. `ProgressBar` shows it on a terminal."""

    def submitted(self, requests: int) -> None:
        """So many more requests are in the journal."""

    def answered(self, results: Sequence[Result]) -> None:
        """These results are new."""


class Silence:
    """A progress that shows nothing."""

    def submitted(self, requests: int) -> None:
        """Nothing."""

    def answered(self, results: Sequence[Result]) -> None:
        """Nothing."""


@dataclass(slots=True)
class GradedBatch:
    """One batch when it has ended."""

    view: BatchView
    answers: dict[str, Result] = field(default_factory=dict)
    """By `request_id`, in the order of completion."""
    rejected: dict[str, Rejection] = field(default_factory=dict)
    """What the mesh did not accept, by `request_id`."""
    repeated: int = 0
    """Second answers to a request. The mesh promises 0."""

    @property
    def scores(self) -> dict[str, float | None]:
        """Reward by `request_id`; None where there is no verdict: leave these samples out."""
        return {name: None if answer.mask else answer.score for name, answer in self.answers.items()}

    def take(self, page: Sequence[Result]) -> None:
        """Add results."""
        for result in page:
            if result.request_id in self.answers:
                self.repeated += 1
            else:
                self.answers[result.request_id or result.id] = result
