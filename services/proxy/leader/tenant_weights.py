"""Weights of tenants at the leader: read before it takes over, and again when they have changed."""

from __future__ import annotations

from redis.asyncio import Redis

from services.proxy.leader.leader import Leader
from shared.bus import tenants
from shared.policy.dispatch.stimuli import WeightsReceived
from shared.runtime import log

_log = log.get(__name__)


class TenantWeights:
    """Reader of one leader's term."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._changes = -1

    async def refresh(self, leader: Leader) -> None:
        """Pass the weights to the leader if they have changed since the last call. One small read if not."""
        changes = await tenants.count_changes(self._redis)
        if changes != self._changes:
            weights = await tenants.read_weights(self._redis)
            leader.handle(WeightsReceived(weights))
            _log.info("tenant_weights_read", tenants=len(weights))
            self._changes = changes
