"""Weights of tenants at the leader: read before it takes over, and again when they have changed."""

from __future__ import annotations

from redis.asyncio import Redis

from services.proxy.leader.leader import Leader
from shared.bus import tenants


class TenantWeights:
    """Reader of one leader's term."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._changes = -1

    async def refresh(self, leader: Leader) -> None:
        """Pass the weights to the leader if they have changed since the last call. One small read if not."""
        changes = await tenants.count_changes(self._redis)
        if changes != self._changes:
            leader.weigh(await tenants.read_weights(self._redis))
            self._changes = changes
