"""Actions of absent replicas: cancelled at the second check, and only theirs."""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis

from services.proxy.leader.replicas import PROXY_GONE, AbsentReplicas, renew
from shared.bus import functions
from shared.bus.connection import command
from shared.bus.functions import Submission
from shared.messages.actions import ACTIONS, ActionSubmitted, CancelRequested
from tests.services.proxy.mesh import stage
from tests.shared.bus.soon import soon


async def submitted(valkey: Redis, action: str, held_by: str) -> ActionSubmitted:
    message = ActionSubmitted(action=action, tenant="t", stages=(stage(),), budget_s=60.0, held_by=held_by)
    await functions.journal_actions(valkey, [Submission(action, b"d", "", ACTIONS.encode(message))], max_journal=100)
    return message


async def cancelled(valkey: Redis) -> list[CancelRequested]:
    rows = await command(valkey, "XRANGE", ACTIONS.name, "-", "+")
    found = [ACTIONS.decode(fields[fields.index(b"m") + 1]) for _, fields in rows]
    return [one for one in found if isinstance(one, CancelRequested)]


async def test_actions_of_a_dead_replica_are_cancelled_at_the_second_check(valkey: Redis) -> None:
    unanswered = [await submitted(valkey, name, name.rstrip("0123456789")) for name in ("alive1", "dead1", "dead2")]
    unanswered.append(await submitted(valkey, "nobodys", ""))
    living = asyncio.create_task(renew(valkey, "alive"))

    async def is_held() -> bool:
        return bool(await command(valkey, "EXISTS", "replica:alive") == 1)

    await soon(is_held)
    absent = AbsentReplicas(valkey)

    assert await absent.check(unanswered) == 0, "Valkey may have been away"
    assert await absent.check(unanswered) == 2
    assert sorted((one.action, one.reason) for one in await cancelled(valkey)) == [
        ("dead1", PROXY_GONE),
        ("dead2", PROXY_GONE),
    ]
    living.cancel()


async def test_a_replica_that_is_back_at_the_second_check_keeps_its_calls(valkey: Redis) -> None:
    unanswered = [await submitted(valkey, "a1", "a")]
    absent = AbsentReplicas(valkey)

    assert await absent.check(unanswered) == 0
    await command(valkey, "SET", "replica:a", "a")
    assert await absent.check(unanswered) == 0
    await command(valkey, "DEL", "replica:a")
    assert await absent.check(unanswered) == 0, "absent once again, not twice in a row"
    assert await absent.check(unanswered) == 1
