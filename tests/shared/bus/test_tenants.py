"""Weights of tenants in Valkey."""

from __future__ import annotations

from redis.asyncio import Redis

from shared.bus import tenants


async def test_weights_are_set_read_and_deleted(valkey: Redis) -> None:
    assert await tenants.read_weights(valkey) == {}
    assert await tenants.count_changes(valkey) == 0
    await tenants.set_weight(valkey, "ada", 0.1)
    await tenants.set_weight(valkey, "bob", 2.0)
    await tenants.set_weight(valkey, "ada", 3.0)
    assert await tenants.read_weights(valkey) == {"ada": 3.0, "bob": 2.0}
    assert await tenants.read_weight(valkey, "bob") == 2.0
    assert await tenants.count_weights(valkey) == 2
    await tenants.delete_weight(valkey, "bob")
    assert await tenants.read_weight(valkey, "bob") is None
    assert await tenants.count_changes(valkey) == 4, "each change raises the counter"
