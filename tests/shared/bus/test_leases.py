"""The lease and its epochs: a deposed leader writes nothing more."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis

from shared.bus import backlog, functions, keys
from shared.bus.connection import command
from shared.bus.functions import Advancing, Answering, Deposed, Granting
from shared.bus.keys import Role
from shared.bus.lease import RENEWED, Lease
from shared.policy.dispatch.backlog import Backlog
from shared.policy.model.waiting import WaitingReason, WaitingReasons
from tests.shared.bus.journal import KEEP_ACTION_S, Journal, lead, resign

NAMED = "from shared.runtime.process_names import process_name; print(process_name())"
REASONS = WaitingReasons({("a1", 0): WaitingReason("stuck", "why")})
Write = Callable[[Journal, str], Awaitable[object]]

WRITES: dict[str, Write] = {
    "finish": lambda journal, entry: journal.finish_all(Answering("a1", entry, "", b"{}", KEEP_ACTION_S)),
    "grant": lambda journal, _: functions.send_grants(
        journal.redis, journal.epoch, [Granting("grants.n.1", b"m", "a1", "1:n")]
    ),
    "advance": lambda journal, _: functions.advance_stages(journal.redis, journal.epoch, [Advancing("a1", 1, b"[]")]),
    "publish_backlog": lambda journal, _: backlog.publish_backlog(journal.redis, journal.epoch, Backlog()),
    "publish_reasons": lambda journal, _: backlog.publish_reasons(journal.redis, journal.epoch, REASONS),
    "discard": lambda journal, entry: functions.discard(journal.redis, journal.epoch, [entry]),
}


@pytest.mark.parametrize("name", WRITES)
async def test_a_deposed_leader_writes_nothing(journal: Journal, name: str) -> None:
    entry = await journal.entry("a1")
    before = await journal.fields("action:a1")
    await resign(journal.redis, "me")
    await lead(journal.redis, "you", 30.0)

    with pytest.raises(Deposed):
        await WRITES[name](journal, entry)

    assert await journal.fields("action:a1") == before
    assert await journal.unanswered() == ["a1"]
    assert await command(journal.redis, "EXISTS", "grants.n.1", "backlog", "backlog:reasons") == 0


@pytest.mark.parametrize("name", WRITES)
async def test_the_successor_may_write(journal: Journal, name: str) -> None:
    entry = await journal.entry("a1")
    await resign(journal.redis, "me")
    successor = Journal(journal.redis, await lead(journal.redis, "you", 30.0))

    await WRITES[name](successor, entry)


async def test_writes_before_the_first_leader_are_refused(valkey: Redis) -> None:
    with pytest.raises(Deposed):
        await functions.discard(valkey, 0, ["1-1"])


async def test_one_holder_leads_and_keeps_its_epoch(valkey: Redis) -> None:
    assert await lead(valkey, "me", 30.0) == 1
    assert await lead(valkey, "you", 30.0) == 0
    assert await lead(valkey, "me", 30.0) == 1


async def test_renewing_makes_the_lease_last_longer(valkey: Redis) -> None:
    await lead(valkey, "me", 5.0)
    await lead(valkey, "me", 30.0)

    assert int(await command(valkey, "PTTL", "leader:dispatcher")) > 20_000


async def test_a_resigning_leader_is_replaced_at_once(valkey: Redis) -> None:
    await lead(valkey, "me", 30.0)
    await resign(valkey, "me")

    assert await lead(valkey, "you", 30.0) == 2


async def test_only_the_holder_can_resign(valkey: Redis) -> None:
    await lead(valkey, "me", 30.0)
    await resign(valkey, "you")

    assert await lead(valkey, "you", 30.0) == 0


async def ended_holder(ttl_s: float, valkey: Redis) -> str:
    """Let a process of this machine hold the lease and end."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", NAMED, stdout=asyncio.subprocess.PIPE)
    name = (await process.communicate())[0].decode().strip()
    assert await lead(valkey, name, ttl_s) == 1
    return name


async def test_a_holder_that_has_ended_here_is_replaced_when_it_has_missed_a_renewal(valkey: Redis) -> None:
    await ended_holder(30.0, valkey)
    successor = Lease(valkey, Role.DISPATCHER, 30.0)

    assert await successor.hold() == 0, "a clone of this machine would renew it"
    assert not await successor.is_free()

    await command(valkey, "PEXPIRE", keys.leader(Role.DISPATCHER), round(1000 * 30 * RENEWED) - 100)
    assert await successor.hold() == 2
    assert await successor.hold() == 2
    assert not await successor.is_free()


async def test_a_living_holder_keeps_its_lease_until_it_expires(valkey: Redis) -> None:
    holder, other = (Lease(valkey, Role.DISPATCHER, 30.0) for _ in range(2))
    assert await other.is_free()
    assert await holder.hold() == 1

    await command(valkey, "PEXPIRE", keys.leader(Role.DISPATCHER), 2000)
    assert await other.hold() == 0
    assert await holder.hold() == 1


async def test_one_of_several_successors_replaces_an_ended_holder(valkey: Redis) -> None:
    await ended_holder(10.0, valkey)
    await command(valkey, "PEXPIRE", keys.leader(Role.DISPATCHER), 5000)

    epochs = await asyncio.gather(*(Lease(valkey, Role.DISPATCHER, 10.0).hold() for _ in range(8)))

    assert sorted(epochs) == [0] * 7 + [2]


async def test_after_its_lease_has_run_out_the_same_holder_gets_a_new_epoch(valkey: Redis) -> None:
    first = await lead(valkey, "me", 30.0)
    await command(valkey, "PEXPIRE", "leader:dispatcher", 0)

    assert await lead(valkey, "me", 30.0) == first + 1


async def test_a_grant_reaches_the_node_and_marks_its_action(journal: Journal) -> None:
    await journal.entry("a1")

    await functions.send_grants(
        journal.redis,
        journal.epoch,
        [Granting("grants.n.1", b"one", "a1", "1:n"), Granting("grants.n.1", b"two"), Granting("grants.m.1", b"three")],
    )

    assert [fields[1] for _, fields in await command(journal.redis, "XRANGE", "grants.n.1", "-", "+")] == [
        b"one",
        b"two",
    ]
    assert await command(journal.redis, "XLEN", "grants.m.1") == 1
    assert (await journal.fields("action:a1"))["grant"] == b"1:n"
    assert await journal.ttl_s("grants.n.1") > 0, "the stream of an ended node is deleted"


async def test_a_grant_of_an_unknown_action_is_not_sent(journal: Journal) -> None:
    await functions.send_grants(journal.redis, journal.epoch, [Granting("grants.n.1", b"m", "gone", "1:n")])

    assert await command(journal.redis, "EXISTS", "grants.n.1", "action:gone") == 0


async def test_advancing_keeps_what_was_measured_and_forgets_the_grant(journal: Journal) -> None:
    await journal.entry("a1")
    await functions.send_grants(journal.redis, journal.epoch, [Granting("grants.n.1", b"m", "a1", "1:n")])

    await functions.advance_stages(journal.redis, journal.epoch, [Advancing("a1", 1, b"[1]")])

    fields = await journal.fields("action:a1")
    assert (fields["stage"], fields["carried"], fields.get("grant")) == (b"1", b"[1]", None)


async def test_discarding_deletes_entries_of_the_journal_alone(journal: Journal) -> None:
    await journal.entry("a1")
    await functions.cancel(journal.redis, "a1", "asked")
    ((asked, _),) = (await command(journal.redis, "XREVRANGE", "actions", "+", "-", "COUNT", 1))[:1]

    await functions.cancel(journal.redis, "a1", "again")
    ((again, _),) = await command(journal.redis, "XREVRANGE", "actions", "+", "-", "COUNT", 1)

    await functions.discard(journal.redis, journal.epoch, ["1-1", asked.decode(), again.decode()])

    assert await journal.cancels() == []
    assert await journal.unanswered() == ["a1"]
