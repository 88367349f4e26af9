"""Quotas of open batches' stages, as the store has them, for the planner."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from redis.asyncio import Redis

from shared.bus.brakes import read_brakes
from shared.bus.connection import with_retries
from shared.bus.quotas import QuotaStatus, read_statuses
from shared.policy.model.brakes import Brake
from shared.policy.model.quotas import Level
from shared.policy.scaling.quota_supply import ObservedQuota
from shared.policy.scaling.stimuli import BatchAdded, QuotasObserved, Stimulus
from shared.runtime.units import Seconds

READ_S: Seconds = 0.5
"""Least interval between two reads of the same quotas."""


class QuotaReader:
    """Reads quotas before stimuli; nothing if no stage of an open batch names one."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._names: AbstractSet[str] = frozenset()
        self._read_s: Seconds = -math.inf

    async def observe(self, names: AbstractSet[str]) -> list[QuotasObserved]:
        """Read the quotas of these names, unless they were read within `READ_S`. Two calls to the store, whose cost is
        that of `read_statuses` and `read_brakes`. Waits while the store is away.
        """
        now = time.monotonic()
        if not names or (names <= self._names and now - self._read_s < READ_S):
            return []

        async def read() -> tuple[dict[str, QuotaStatus], dict[str, Brake]]:
            return await read_statuses(self._redis, *names), await read_brakes(self._redis)

        statuses, brakes = await with_retries(read, what="reading quotas", limit_s=None)
        self._names, self._read_s = names, now
        return [QuotasObserved(observed_quotas(names, statuses, brakes))]


def quotas_of(stimulus: Stimulus) -> frozenset[str]:
    """Return the names of the quotas of a batch that opens."""
    stages = stimulus.batch.stages if isinstance(stimulus, BatchAdded) else ()
    return frozenset(name for stage in stages for name in stage.quotas)


def observed_quotas(
    names: Iterable[str], statuses: Mapping[str, QuotaStatus], brakes: Mapping[str, Brake]
) -> dict[str, ObservedQuota | None]:
    """Return the quotas of these names for the planner; None for one that does not exist."""
    found: dict[str, ObservedQuota | None] = {}
    for name in sorted(names):
        status, found[name] = statuses.get(name), None
        if status is not None:
            levels = tuple(status.levels.get(rate.period_s, Level()) for rate in status.limits.rates)
            found[name] = ObservedQuota(status.limits, levels, _closed(brakes.get(name)))
    return found


def _closed(brake: Brake | None) -> str:
    """Return why a provider gives nothing. One that fails is asked again within seconds, so its limits count."""
    if brake is None or brake.mode != "exhausted":
        return ""
    return f"exhausted: {brake.reason}" if brake.reason else "exhausted"
