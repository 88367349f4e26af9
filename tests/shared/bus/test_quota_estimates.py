"""Learned amounts in Valkey: read by the next leader, bounded, and written by the present leader only."""

from __future__ import annotations

import pytest

from shared.bus import quota_estimates
from shared.bus.connection import command
from shared.bus.functions import Deposed
from shared.bus.quota_estimates import read_estimates, store_estimates
from shared.policy.resources.quota_estimates import Estimate
from tests.shared.bus.journal import Journal


def key(name: str) -> tuple[str, str, str]:
    return ("ada", name, "judge-tokens")


async def test_what_was_stored_is_read(journal: Journal) -> None:
    await store_estimates(
        journal.redis, journal.epoch, {key("t"): Estimate(712.25, 9), key('a "task"'): Estimate(1, 1)}
    )
    await store_estimates(journal.redis, journal.epoch, {key("t"): Estimate(0.1 + 0.2, 10)})
    found = await read_estimates(journal.redis)
    assert found == {key("t"): Estimate(0.1 + 0.2, 10), key('a "task"'): Estimate(1.0, 1)}


async def test_the_number_of_fields_is_bounded(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_estimates, "MOST_KEYS", 3)
    for number in range(5):
        await store_estimates(journal.redis, journal.epoch, {key(f"t{number}"): Estimate(1.0, 1)})
    found = await read_estimates(journal.redis)
    assert len(found) == 3
    assert key("t4") in found, "the newest one stays"


async def test_a_deposed_leader_stores_nothing(journal: Journal) -> None:
    with pytest.raises(Deposed):
        await store_estimates(journal.redis, journal.epoch - 1, {key("t"): Estimate(1.0, 1)})
    assert await read_estimates(journal.redis) == {}


async def test_fields_of_another_version_are_left_out(journal: Journal) -> None:
    await store_estimates(journal.redis, journal.epoch, {key("t"): Estimate(2.0, 1)})
    await command(journal.redis, "HSET", "quotas:estimates", "other", "[1]")
    assert await read_estimates(journal.redis) == {key("t"): Estimate(2.0, 1)}
