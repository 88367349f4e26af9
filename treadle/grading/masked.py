"""Why requests have no verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from treadle.client.answers import Answer, Ending
from treadle.client.verdicts import verdict_of

MESH_FAILED: Final[frozenset[Ending]] = frozenset({"sandbox-lost", "node-lost", "unknown-outcome", "environment-lost"})
"""Endings that are failures of the mesh. The others are an answer to what was asked: refused (no node can do it, or the
trainer's own part failed), cancelled, expired (its budget had passed)."""


class Masked(msgspec.Struct, frozen=True):
    """Requests that ended alike without a verdict."""

    ended: str
    reason: str
    requests: int

    @property
    def is_failure(self) -> bool:
        """Of the mesh."""
        return self.ended in MESH_FAILED


def masked_of(answers: Iterable[Answer]) -> list[Masked]:
    """Each ending and reason with its count, the commonest first."""
    counts = Counter((answer.ended or "", answer.reason) for answer in answers if verdict_of(answer) == "masked")
    return [Masked(ended, reason, requests) for (ended, reason), requests in counts.most_common()]
