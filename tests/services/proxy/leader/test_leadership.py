"""The lease during a takeover, which may outlast it; what a term removes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from services.proxy.leader import leadership, maintenance
from services.proxy.leader.leadership import Leadership
from services.proxy.leader.takeover import take_over
from services.proxy.records.waiters import Waiters
from services.proxy.settings import ProxySettings
from shared.bus import keys, nodes, quotas
from shared.bus.connection import command
from shared.bus.functions import Submission, journal_actions
from shared.bus.holds import Taking
from shared.messages.actions import ACTIONS
from shared.messages.grants import Granted, grants_topic
from shared.messages.nodes import NODES, Heartbeat
from shared.messages.outcomes import OUTCOMES
from shared.policy.model.quotas import QuotaHold, Rate, Settled
from shared.runtime.background import Background
from tests.services.proxy.mesh import hello, inventory, submitted
from tests.services.proxy.stores import store_over
from tests.shared.bus.journal import Journal, resign
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


async def test_a_present_node_is_used_although_its_hello_is_old(
    valkey: Redis, reader: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Valkey was away for more than an hour; the node's heartbeats have arrived, and its next hello has not."""
    monkeypatch.setattr(maintenance, "SWEEP_S", 0.0)
    for name in ("n", "silent"):
        await nodes.publish_hello(valkey, hello(name))
        await command(valkey, "ZINCRBY", keys.HELLOS_AT, -3_700_000, name)
    await command(valkey, "DEL", NODES.name)
    await nodes.publish_heartbeat(valkey, Heartbeat(node="n", incarnation="1", owned={}, used={}))
    settings = ProxySettings.model_validate({"lease_s": LEASE_S})
    async with Background() as background:
        candidate = Leadership(valkey, reader, Waiters(store_over(valkey).answers), settings, background)
        background.start(candidate.run(), name="leadership")

        async def swept() -> bool:
            return [one.hello.node for one in await nodes.read_hellos(valkey)] == ["n"]

        await soon(swept)
        await command(valkey, "XADD", OUTCOMES.name, "*", "m", OUTCOMES.encode(inventory(epoch=candidate.epoch)))
        request = Submission("a", b"", "", ACTIONS.encode(submitted("a")))
        await journal_actions(valkey, [request], max_journal=9)
        topic = grants_topic("n", "1")

        async def is_granted() -> bool:
            sent = [topic.decode(fields[1]) for _, fields in await command(valkey, "XRANGE", topic.name, "-", "+")]
            return any(isinstance(one, Granted) for one in sent)

        await soon(is_granted)
        await candidate.stop()


async def test_a_term_expires_levels_of_deleted_quotas(
    valkey: Redis, reader: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SWEEP_S", 0.0)
    rate, hold = Rate(5.0, 1.0), QuotaHold("a", 0, 1, "n", "1", 1000.0, {"search": 1.0})
    former = (await Journal.led(valkey)).epoch
    await quotas.change_holds(valkey, former, [Taking(hold, (("search", rate),)), Settled(hold.key, "a")])
    await resign(valkey, "me")
    assert len((await quotas.read_quotas(valkey)).levels) == 1
    settings = ProxySettings.model_validate({"lease_s": LEASE_S})
    async with Background() as background:
        candidate = Leadership(valkey, reader, Waiters(store_over(valkey).answers), settings, background)
        background.start(candidate.run(), name="leadership")

        async def expired() -> bool:
            return not (await quotas.read_quotas(valkey)).levels

        await soon(expired)
        await candidate.stop()
