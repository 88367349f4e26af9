"""Learned amounts in Valkey: read by the next leader, bounded, and written by the present leader only."""

from __future__ import annotations

import pytest

from shared.bus import quota_estimates
from shared.bus.connection import command
from shared.bus.functions import Deposed
from shared.bus.quota_estimates import expected_amounts, read_estimates, store_estimates
from shared.bus.quotas import set_quota
from shared.policy.model.quotas import QuotaLimits
from shared.policy.resources.quota_estimates import Estimate
from tests.shared.bus.journal import Journal


def key(name: str) -> tuple[str, str, str]:
    return ("ada", name, "judge-tokens")


async def test_what_was_stored_is_read(journal: Journal) -> None:
    await store_estimates(
        journal.redis, journal.epoch, {key("t"): Estimate.of((712.25, 9.0)), key('a "task"'): Estimate.of((1.0,))}
    )
    await store_estimates(journal.redis, journal.epoch, {key("t"): Estimate.of((9.0, 0.1 + 0.2))})
    found = await read_estimates(journal.redis)
    assert found == {key("t"): Estimate.of((9.0, 0.1 + 0.2)), key('a "task"'): Estimate.of((1.0,))}


async def test_the_number_of_fields_is_bounded(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_estimates, "MOST_KEYS", 3)
    for number in range(5):
        await store_estimates(journal.redis, journal.epoch, {key(f"t{number}"): Estimate.of((1.0,))})
    found = await read_estimates(journal.redis)
    assert len(found) == 3
    assert key("t4") in found, "the newest one stays"


async def test_a_deposed_leader_stores_nothing(journal: Journal) -> None:
    with pytest.raises(Deposed):
        await store_estimates(journal.redis, journal.epoch - 1, {key("t"): Estimate.of((1.0,))})
    assert await read_estimates(journal.redis) == {}


async def test_fields_of_another_version_are_left_out(journal: Journal) -> None:
    await store_estimates(journal.redis, journal.epoch, {key("t"): Estimate.of((2.0,))})
    await command(journal.redis, "HSET", "quotas:estimates", "other", "[1]")
    assert await read_estimates(journal.redis) == {key("t"): Estimate.of((2.0,))}


async def test_amounts_that_an_action_would_reserve_now(journal: Journal) -> None:
    """As the dispatcher's own: 1 before anything is known, and at most the smallest limit."""
    await store_estimates(
        journal.redis, journal.epoch, {key("t"): Estimate.of((900.0,)), key("u"): Estimate.of((5.0,))}
    )
    assert await expected_amounts(journal.redis, "ada", "t", ["judge-tokens", "search"]) == {
        "judge-tokens": 900.0,
        "search": 1.0,
    }
    await set_quota(journal.redis, "judge-tokens", QuotaLimits(concurrency=(600.0,)))
    assert await expected_amounts(journal.redis, "ada", "t", ["judge-tokens"]) == {"judge-tokens": 600.0}
    assert await expected_amounts(journal.redis, "bob", "t", ["judge-tokens"]) == {"judge-tokens": 1.0}
    assert await expected_amounts(journal.redis, "ada", "t", []) == {}
