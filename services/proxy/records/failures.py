"""Masked answers counted by how they ended: of a batch's requests, and of actions in its trajectories (with usage)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from redis.asyncio import Redis

from shared.api.batches import EnvironmentProgress, FailureKind
from shared.bus import batches
from shared.bus.connection import with_retries
from shared.runtime.units import Seconds

MOST_REASON: Final = 500
"""Characters of a reason that a batch's view shows."""
RETRY_LIMIT_S: Final[Seconds] = 5.0


def share(count: int, answered: int) -> float:
    """Return `count` / `answered`; 0 if none is answered."""
    return count / answered if answered else 0.0


def kinds(masked: Mapping[str, tuple[int, str]], answered: int) -> list[FailureKind]:
    """Convert {ended: (count, newest reason)} to a batch view's list, largest count first."""
    return [
        FailureKind(ended=ended, count=count, share=share(count, answered), reason=reason)
        for ended, (count, reason) in sorted(masked.items(), key=lambda item: (-item[1][0], item[0]))
    ]


async def environments(redis: Redis, batch: str) -> EnvironmentProgress | None:
    """Return counts of actions in the batch's trajectories; None before the first answer. One Valkey read, O(kinds)."""

    async def read() -> batches.EnvironmentCounts | None:
        return await batches.read_environments(redis, batch)

    found = await with_retries(read, what="reading a batch", limit_s=RETRY_LIMIT_S)
    if found is None:
        return None
    answered, masked, used = found
    count = sum(each for each, _ in masked.values())
    return EnvironmentProgress(
        answered=answered,
        masked=count,
        masked_share=share(count, answered),
        failures=kinds(masked, answered),
        usage=dict(used),
    )
