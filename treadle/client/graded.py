"""A batch that is graded whole: its answers, and the listener of its progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from treadle.client.answers import BatchView, Rejection, Result


class ProgressListener(Protocol):
    """Receiver of a batch's progress. `ProgressBar` shows it on a terminal."""

    def submitted(self, requests: int) -> None:
        """Receive the number of newly accepted requests."""

    def answered(self, results: Sequence[Result]) -> None:
        """Receive new results."""


class NoProgress:
    """A listener that does nothing."""

    def submitted(self, requests: int) -> None:
        pass

    def answered(self, results: Sequence[Result]) -> None:
        pass


@dataclass(slots=True)
class GradedBatch:
    """One ended batch."""

    view: BatchView
    answers: dict[str, Result] = field(default_factory=dict)
    """By `request_id`, in the order of completion."""
    rejected: dict[str, Rejection] = field(default_factory=dict)
    """Requests that the mesh did not accept, by `request_id`."""
    repeated: int = 0
    """Second answers to a request. The mesh promises 0."""

    @property
    def scores(self) -> dict[str, float | None]:
        """Reward by `request_id`. None: there is no verdict, leave the sample out."""
        return {name: None if answer.mask else answer.score for name, answer in self.answers.items()}

    def add(self, page: Sequence[Result]) -> None:
        """Add results."""
        for result in page:
            if result.request_id in self.answers:
                self.repeated += 1
            else:
                self.answers[result.request_id or result.id] = result
