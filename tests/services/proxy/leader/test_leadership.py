"""The lease during a takeover, which may outlast it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from services.proxy.leader import leadership
from services.proxy.leader.leadership import Leadership
from services.proxy.leader.takeover import take_over
from services.proxy.records.waiters import Waiters
from services.proxy.settings import ProxySettings
from shared.bus.connection import command
from shared.runtime.background import Background
from tests.services.proxy.stores import store_over
from tests.shared.bus.soon import soon

LEASE_S = 0.6


async def test_a_leader_keeps_its_lease_during_a_long_takeover(
    valkey: Redis, reader: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = 0

    async def slow(*proxy: Any) -> Any:
        nonlocal taken
        taken += 1
        await asyncio.sleep(3 * LEASE_S)
        return await take_over(*proxy)

    monkeypatch.setattr(leadership, "take_over", slow)
    settings = ProxySettings.model_validate({"lease_s": LEASE_S})
    async with Background() as background:
        candidate = Leadership(valkey, reader, Waiters(store_over(valkey).answers), settings, background)
        background.start(candidate.run(), name="leadership")

        async def leads() -> bool:
            return candidate.epoch > 0

        await soon(leads)
        await asyncio.sleep(2 * LEASE_S)  # a lease that had lapsed would be seen by now
        assert (taken, candidate.epoch) == (1, 1)
        assert await command(valkey, "GET", "epoch:dispatcher") == b"1"
        await candidate.stop()
