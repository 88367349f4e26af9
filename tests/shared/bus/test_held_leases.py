"""Leases of callers in Valkey: fenced, repeated safely, and reported to the leader once."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import Deposed
from shared.bus.held_leases import (
    LeaseEnd,
    LeaseGrant,
    LeaseRevocation,
    encoded_amounts,
    end_leases,
    expire_leases,
    grant_leases,
    list_leases,
    read_lease,
    renew_leases,
    revoke_leases,
)
from shared.bus.holds import Taking
from shared.bus.quotas import read_quotas
from shared.messages.leases import INCARNATION, NODE, GrantedLease, LeasesGranted
from shared.messages.outcomes import ANSWERED, OUTCOMES, Finished, InventoryTaken
from shared.policy.model.quotas import QuotaHold, Rate
from tests.shared.bus.journal import Journal

RATE = ("search", Rate(5.0, 2.0))


def granting(action: str, *, ttl_ms: int = 60_000, attempt: int = 1) -> LeaseGrant:
    hold = QuotaHold(action, 0, attempt, NODE, INCARNATION, 1000.0, {"search": 1.0})
    return LeaseGrant(action, f"{attempt}:{NODE}", ttl_ms, "policy\nlevel", Taking(hold, (RATE,)))


async def granted(journal: Journal, action: str, **rest: int) -> GrantedLease:
    await journal.entry(action)
    (lease,) = await grant_leases(journal.redis, journal.epoch, [granting(action, **rest)])
    return lease


async def ends(journal: Journal) -> list[tuple[str, str, dict[str, float]]]:
    messages = [one for one in await journal.messages(OUTCOMES) if isinstance(one, Finished)]
    assert all((one.node, one.incarnation, one.attempt) == (NODE, INCARNATION, 1) for one in messages)
    assert all(one.units == {"leases": 1} and one.execution_s >= 0 for one in messages)
    return [(one.action, one.result.status, one.result.quotas_used) for one in messages]


async def test_a_grant_takes_the_quota_and_wakes_replicas_and_its_repeat_changes_nothing(journal: Journal) -> None:
    first = await granted(journal, "a")
    (again,) = await grant_leases(journal.redis, journal.epoch, [granting("a")])
    assert again == first
    stored = await read_quotas(journal.redis)
    assert [(hold.key, hold.node, dict(hold.amounts)) for hold in stored.holds] == [("a/0/1", NODE, {"search": 1.0})]
    assert [level.used for level in stored.levels] == [1.0]
    messages = [one for one in await journal.messages(ANSWERED) if isinstance(one, LeasesGranted)]
    assert [one.leases for one in messages] == [[first], [first]]
    record = await read_lease(journal.redis, "a")
    assert record is not None
    assert (record.is_held, record.fence, record.ttl_s) == (True, first.fence, 60.0)
    assert (await granted(journal, "b")).fence > first.fence


async def test_an_action_that_is_gone_is_not_granted(journal: Journal) -> None:
    assert await grant_leases(journal.redis, journal.epoch, [granting("a")]) == []
    assert await journal.messages(ANSWERED) == []


async def test_a_release_needs_the_fence_and_is_reported_once(journal: Journal) -> None:
    redis, lease = journal.redis, await granted(journal, "a")
    await journal.entry("waits")
    asked = [LeaseEnd("a", lease.fence + 1), LeaseEnd("a", lease.fence, b'{"search": 0.5}'), LeaseEnd("a", lease.fence)]
    asked += [LeaseEnd("waits", 1), LeaseEnd("none", 1)]
    assert await end_leases(redis, asked) == ["fenced", "held", "released", "waits", "unknown"]
    assert await ends(journal) == [("a", "ok", {"search": 0.5})]
    assert (await renew_leases(redis, [("a", lease.fence)]))[0][0] == "released"
    assert await command(redis, "ZCARD", "leases:due") == 0


async def test_what_a_lease_ended_with_is_not_changed_by_a_later_settlement(journal: Journal) -> None:
    redis, settled, plain = journal.redis, await granted(journal, "a"), await granted(journal, "b")
    half, other = encoded_amounts({"search": 0.5}), encoded_amounts({"search": 0.25})
    asked = [LeaseEnd("a", settled.fence, used) for used in (half, half, other, b"")]
    asked += [LeaseEnd("b", plain.fence, used) for used in (b"", b"", half)]
    assert await end_leases(redis, asked) == [
        "held", "released", "other-amounts", "released", "held", "released", "other-amounts",
    ]  # fmt: skip
    assert await ends(journal) == [("a", "ok", {"search": 0.5}), ("b", "ok", {})]
    assert await command(redis, "HEXISTS", keys.action("b"), "used") == 0, "a release without amounts stores none"
    renewed = await renew_leases(redis, [("a", settled.fence)])
    assert renewed[0][0] == "released"


def test_equal_amounts_are_one_text() -> None:
    assert encoded_amounts({"b": 1, "a": -0.0}) == encoded_amounts({"a": 0, "b": 1.0}) == b'{"a":0.0,"b":1.0}'
    assert encoded_amounts({}) == b""


async def test_a_lease_that_has_expired_is_neither_renewed_nor_released(journal: Journal) -> None:
    redis, lease = journal.redis, await granted(journal, "a", ttl_ms=30)
    other = await granted(journal, "b")
    await asyncio.sleep(0.05)
    assert await end_leases(redis, [LeaseEnd("a", lease.fence)]) == ["over"], "also before the leader has looked"
    assert await renew_leases(redis, [("a", lease.fence)]) == [("over", 0.0)]
    assert await expire_leases(redis, journal.epoch, 16) == (1, other.expires_ms / 1000)
    assert await ends(journal) == [("a", "timeout", {})]
    assert (await expire_leases(redis, journal.epoch, 16))[0] == 0
    assert await end_leases(redis, [LeaseEnd("a", lease.fence)]) == ["over"]


async def test_a_renewal_begins_the_time_anew(journal: Journal) -> None:
    lease = await granted(journal, "a", ttl_ms=200)
    await asyncio.sleep(0.12)
    ((code, expires_s),) = await renew_leases(journal.redis, [("a", lease.fence)])
    assert (code, expires_s * 1000 >= lease.expires_ms + 100) == ("held", True)
    await asyncio.sleep(0.12)
    assert (await expire_leases(journal.redis, journal.epoch, 16))[0] == 0


async def test_a_revoked_lease_is_over_and_one_that_has_ended_stays(journal: Journal) -> None:
    redis, lease, other = journal.redis, await granted(journal, "a"), await granted(journal, "b")
    await end_leases(redis, [LeaseEnd("b", other.fence)])
    await revoke_leases(redis, journal.epoch, [LeaseRevocation(name, 1) for name in ("a", "b")])
    await revoke_leases(redis, journal.epoch, [LeaseRevocation("a", 2)])
    assert await ends(journal) == [("b", "ok", {}), ("a", "cancelled", {})]
    assert await end_leases(redis, [LeaseEnd("a", lease.fence)]) == ["over"]


async def test_a_revoked_lease_reports_whether_it_has_begun(journal: Journal) -> None:
    for name in ("a", "b", "c"):
        await granted(journal, name)
    revoked = [LeaseRevocation("a", 1), LeaseRevocation("b", 1, begun=False), LeaseRevocation("c", 1)]
    await revoke_leases(journal.redis, journal.epoch, revoked)
    reports = [one for one in await journal.messages(OUTCOMES) if isinstance(one, Finished)]
    assert [(one.action, one.result.environment_exists) for one in reports] == [("a", True), ("b", False), ("c", True)]


async def test_an_inventory_lists_what_is_held_after_what_has_ended(journal: Journal) -> None:
    redis = journal.redis
    await list_leases(redis, journal.epoch)
    lease = await granted(journal, "a")
    await granted(journal, "b")
    await end_leases(redis, [LeaseEnd("a", lease.fence)])
    await list_leases(redis, journal.epoch)
    empty, end, full = await journal.messages(OUTCOMES)
    assert isinstance(empty, InventoryTaken)
    assert isinstance(end, Finished)
    assert isinstance(full, InventoryTaken)
    assert (empty.held, full.node, full.epoch) == ([], NODE, journal.epoch)
    (held,) = full.held
    assert (held.action, held.attempt, held.stage, held.units) == ("b", 1, 0, {"leases": 1})
    assert 0 <= held.running_s < 60


async def test_an_answered_lease_is_known_and_its_release_is_repeated(journal: Journal) -> None:
    redis = journal.redis
    entry = await journal.entry("a")
    (lease,) = await grant_leases(redis, journal.epoch, [granting("a")])
    await end_leases(redis, [LeaseEnd("a", lease.fence)])
    assert await journal.finish("a", entry)
    assert await end_leases(redis, [LeaseEnd("a", lease.fence)]) == ["released"]
    assert len(await ends(journal)) == 1


async def test_a_deposed_leader_writes_nothing(journal: Journal, valkey: Redis) -> None:
    await journal.entry("a")
    old = journal.epoch - 1
    with pytest.raises(Deposed):
        await grant_leases(valkey, old, [granting("a")])
    with pytest.raises(Deposed):
        await expire_leases(valkey, old, 1)
    with pytest.raises(Deposed):
        await revoke_leases(valkey, old, [LeaseRevocation("a", 1)])
    with pytest.raises(Deposed):
        await list_leases(valkey, old)
    assert (await read_quotas(valkey)).holds == []
