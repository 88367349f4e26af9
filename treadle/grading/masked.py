"""Reasons of requests without a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from treadle.client.answers import Answer, Ending
from treadle.client.verdicts import verdict_of

MESH_FAILED: Final[frozenset[Ending]] = frozenset({"sandbox-lost", "node-lost", "unknown-outcome", "environment-lost"})
"""Ends that are failures of the mesh. The others answer the request: refused (no node can do it, or the trainer's own
part failed), cancelled, expired (its budget had passed)."""


class Masked(msgspec.Struct, frozen=True):
    """Requests without a verdict that ended alike."""

    ended: str
    reason: str
    requests: int

    @property
    def is_failure(self) -> bool:
        """Whether it is a failure of the mesh."""
        return self.ended in MESH_FAILED


def masked_of(answers: Iterable[Answer]) -> list[Masked]:
    """Return each end and reason with its count, the most frequent first."""
    counts = Counter((answer.ended or "", answer.reason) for answer in answers if verdict_of(answer) == "masked")
    return [Masked(ended, reason, requests) for (ended, reason), requests in counts.most_common()]
