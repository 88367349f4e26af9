"""Learned amounts of quotas in the store: written by the leader as they change, read by the next one."""

from __future__ import annotations

import asyncio
from typing import Final

from redis.asyncio import Redis

from shared.bus.connection import TRANSIENT
from shared.bus.functions import Deposed
from shared.bus.quota_estimates import store_estimates
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.runtime import log
from shared.runtime.units import Epoch, Seconds

_log = log.get(__name__)

STORE_EVERY_S: Final[Seconds] = 1.0
"""What was learned in the last second is lost with a killed leader: then amounts are a little older."""


async def store_learned_amounts(redis: Redis, epoch: Epoch, dispatcher: Dispatcher) -> None:
    """Loop: store the estimates that have changed, until another leader has taken over. O(changed) each second."""
    stored = 0
    while True:
        await asyncio.sleep(STORE_EVERY_S)
        version, changed = dispatcher.learned_amounts(stored)
        if not changed:
            continue
        try:
            await store_estimates(redis, epoch, changed)
            stored = version
        except Deposed:
            return
        except TRANSIENT as error:
            _log.warning("valkey_unavailable", what="storing learned amounts", error=str(error))
