"""Actions of absent replicas: found at the second check, of one that has ended on this machine at once, and only
theirs.
"""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis

from services.proxy.leader.replicas import MISSED_S, PRESENCE_S, AbsentReplicas, renew
from shared.bus import functions
from shared.bus.connection import command
from shared.bus.functions import Submission
from shared.messages.actions import ACTIONS, ActionSubmitted
from tests.services.proxy.mesh import stage
from tests.shared.bus.soon import soon


async def submitted(valkey: Redis, action: str, held_by: str) -> ActionSubmitted:
    message = ActionSubmitted(action=action, tenant="t", stages=(stage(),), budget_s=60.0, held_by=held_by)
    await functions.journal_actions(valkey, [Submission(action, b"d", "", ACTIONS.encode(message))], max_journal=100)
    return message


async def test_actions_of_a_dead_replica_are_found_at_the_second_check(valkey: Redis) -> None:
    unanswered = [await submitted(valkey, name, name.rstrip("0123456789")) for name in ("alive1", "dead1", "dead2")]
    unanswered.append(await submitted(valkey, "nobodys", ""))
    living = asyncio.create_task(renew(valkey, "alive"))

    async def is_held() -> bool:
        return bool(await command(valkey, "EXISTS", "replica:alive") == 1)

    await soon(is_held)
    absent = AbsentReplicas(valkey)

    assert await absent.check(unanswered) == [], "Valkey may have been away"
    assert await absent.check(unanswered) == ["dead1", "dead2"]
    assert await absent.check(unanswered) == [], "each is found once"
    late = await submitted(valkey, "dead3", "dead")
    assert await absent.check([*unanswered, late]) == ["dead3"]
    living.cancel()


async def test_a_replica_that_is_back_at_the_second_check_keeps_its_calls(valkey: Redis) -> None:
    unanswered = [await submitted(valkey, "a1", "a")]
    absent = AbsentReplicas(valkey)

    assert await absent.check(unanswered) == []
    await command(valkey, "SET", "replica:a", "a", "PX", 9000)
    assert await absent.check(unanswered) == []
    await command(valkey, "DEL", "replica:a")
    assert await absent.check(unanswered) == [], "absent once again, not twice in a row"
    assert await absent.check(unanswered) == ["a1"]


async def renewed_before(valkey: Redis, replica: str, ago_s: float) -> None:
    await command(valkey, "SET", f"replica:{replica}", 1, "PX", round(1000 * (PRESENCE_S - ago_s)))


async def test_a_replica_that_has_ended_here_is_absent_when_it_has_missed_a_renewal(valkey: Redis) -> None:
    unanswered = [await submitted(valkey, f"{name}1", name) for name in ("ended", "lives")]
    absent = AbsentReplicas(valkey, has_ended=lambda name: name == "ended")
    assert not absent.seem_ended(), "no check has seen a holder"

    await renewed_before(valkey, "ended", 0.1)
    await renewed_before(valkey, "lives", MISSED_S + 0.1)
    assert await absent.check(unanswered) == [], "a clone of this machine would renew it"
    assert absent.undecided
    assert absent.seem_ended()

    await renewed_before(valkey, "ended", MISSED_S + 0.1)
    assert await absent.check(unanswered) == ["ended1"]
    assert not absent.undecided


async def test_a_living_replica_is_never_ended(valkey: Redis) -> None:
    unanswered = [await submitted(valkey, "lives1", "lives")]
    absent = AbsentReplicas(valkey, has_ended=lambda _name: False)
    await renewed_before(valkey, "lives", MISSED_S + 5.0)

    assert await absent.check(unanswered) == []
    assert not absent.undecided
    assert not absent.seem_ended()
