"""Counters of actions in a batch's trajectories, as its page shows them."""

from __future__ import annotations

from redis.asyncio import Redis

from services.proxy.records.failures import environments
from shared.bus.connection import command


async def test_counters_become_counts_shares_and_usage(valkey: Redis) -> None:
    counted = {
        "answered": "4", "count:refused": "1", "why:refused": "no image", "count:expired": "2", "why:expired": "late",
        "used:cpu_s": "1.75", "used:tokens": "7",
    }  # fmt: skip
    await command(valkey, "HSET", "environments:b", *(part for pair in counted.items() for part in pair))

    progress = await environments(valkey, "b")

    assert progress is not None
    assert (progress.answered, progress.masked, progress.masked_share) == (4, 3, 0.75)
    assert [(each.ended, each.count, each.reason) for each in progress.failures] == [
        ("expired", 2, "late"),
        ("refused", 1, "no image"),
    ]
    assert progress.usage == {"cpu_s": 1.75, "tokens": 7.0}


async def test_a_batch_without_trajectories_has_none(valkey: Redis) -> None:
    assert await environments(valkey, "b") is None
