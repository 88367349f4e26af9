"""Rewards of a batch and of each group as GRPO compares them; reasons of requests without a verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from treadle.client.answers import Answer, Ending
from treadle.client.verdicts import VERDICTS, verdict_of

MESH_FAILED: Final[frozenset[Ending]] = frozenset(
    {"sandbox-lost", "node-lost", "unknown-outcome", "environment-lost", "upstream-failed"}
)
"""Ends that are failures of the mesh, or of an external service that it called. The others answer the request: refused
(no node can do it, or the trainer's own part failed), cancelled, expired (its budget had passed)."""


class GroupRewards(msgspec.Struct, frozen=True):
    """Rewards of one prompt's samples."""

    group: str
    requests: int
    scored: int
    """Number with a score. Masked answers are left out."""
    mean: float | None
    std: float | None
    """Standard deviation of the whole population. 0: every advantage is 0, so the group does not change the policy."""


class Rewards(msgspec.Struct, frozen=True):
    """Rewards of all requests."""

    requests: int
    scored: int
    mean: float | None
    verdicts: dict[str, int]
    """Count of each of `VERDICTS`. Their sum is `requests` without unanswered ones."""
    groups: list[GroupRewards]
    """In the order of the file; empty if lines name no groups."""
    informative_groups: int
    """Groups whose rewards differ. Only these change a policy (an advantage is reward less group mean)."""


class Masked(msgspec.Struct, frozen=True):
    """Requests without a verdict that ended alike."""

    ended: str
    reason: str
    requests: int

    @property
    def is_failure(self) -> bool:
        """True if it is a failure of the mesh."""
        return self.ended in MESH_FAILED


def rewards_of(answers: Sequence[Answer], groups: Mapping[str, str]) -> Rewards:
    """Summarise rewards.

    Args:
        answers: finished ones.
        groups: request_id -> group, in the order of the report. Other requests have no group.
    """
    by_group: dict[str, list[Answer]] = {group: [] for group in groups.values()}
    for answer in answers:
        if (group := groups.get(answer.request_id or "")) is not None:
            by_group[group].append(answer)
    summed = [_group(group, members) for group, members in by_group.items()]
    scores = _scores(answers)
    counts = Counter(verdict_of(answer) for answer in answers)
    return Rewards(
        requests=len(answers),
        scored=len(scores),
        mean=_mean(scores),
        verdicts={verdict: counts[verdict] for verdict in VERDICTS},
        groups=summed,
        informative_groups=sum(1 for group in summed if group.std),
    )


def masked_of(answers: Iterable[Answer]) -> list[Masked]:
    """Return each end and reason with its count, the most frequent first."""
    counts = Counter((answer.ended or "", answer.reason) for answer in answers if verdict_of(answer) == "masked")
    return [Masked(ended, reason, requests) for (ended, reason), requests in counts.most_common()]


def _group(group: str, members: Sequence[Answer]) -> GroupRewards:
    scores = _scores(members)
    mean = _mean(scores)
    std = None
    if mean is not None:
        alike = min(scores) == max(scores)  # so that rounding does not make equal rewards differ
        std = 0.0 if alike else math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
    return GroupRewards(group=group, requests=len(members), scored=len(scores), mean=mean, std=std)


def _scores(answers: Iterable[Answer]) -> list[float]:
    return [answer.score for answer in answers if answer.score is not None and not answer.mask]


def _mean(scores: Sequence[float]) -> float | None:
    return math.fsum(scores) / len(scores) if scores else None
