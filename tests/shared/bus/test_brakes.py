"""Brakes in the store: a new leader reads what the former one has published, and a deposed one writes nothing."""

from __future__ import annotations

import pytest

from shared.bus import keys
from shared.bus.brakes import publish_brakes, read_brakes
from shared.bus.connection import command
from shared.bus.functions import Deposed
from shared.policy.model.brakes import Brake
from tests.shared.bus.journal import Journal, lead, resign

BRAKES = {
    "search": Brake(12.5, 3, 7, 2, 1, 10.0, reason="HTTP 429"),
    "judge": Brake(mode="exhausted", since_s=5.0, probe="a/0/1", probe_s=35.0, probes=2, reason="no credit"),
}


async def test_all_brakes_are_replaced(journal: Journal) -> None:
    assert await read_brakes(journal.redis) == {}
    await publish_brakes(journal.redis, journal.epoch, BRAKES)
    assert await read_brakes(journal.redis) == BRAKES
    await publish_brakes(journal.redis, journal.epoch, {"search": Brake()})
    assert await read_brakes(journal.redis) == {"search": Brake()}
    await publish_brakes(journal.redis, journal.epoch, {})
    assert await command(journal.redis, "EXISTS", keys.QUOTA_BRAKES) == 0


async def test_a_brake_of_another_version_is_left_out(journal: Journal) -> None:
    await publish_brakes(journal.redis, journal.epoch, BRAKES)
    await command(journal.redis, "HSET", keys.QUOTA_BRAKES, "search", b'{"most": "many"}')
    assert await read_brakes(journal.redis) == {"judge": BRAKES["judge"]}


async def test_a_deposed_leader_publishes_nothing(journal: Journal) -> None:
    await resign(journal.redis, "me")
    await lead(journal.redis, "another", 30.0)
    with pytest.raises(Deposed):
        await publish_brakes(journal.redis, journal.epoch, BRAKES)
    assert await read_brakes(journal.redis) == {}
