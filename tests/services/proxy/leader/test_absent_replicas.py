"""Actions of absent replicas, and only theirs: found after checks for some seconds, or when a process has ended."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from typing import cast

import pytest
import redis.exceptions
from redis.asyncio import Redis

from services.proxy.leader.leader import Leader
from services.proxy.leader.replicas import CHECK_S, MISSED_S, PRESENCE_S, AbsentReplicas, cancel_held, renew
from services.proxy.leader.unanswered import Unanswered
from shared.bus import functions, replicas
from shared.bus.connection import command
from shared.bus.functions import Submission
from shared.messages.actions import ACTIONS, ActionSubmitted
from shared.policy.dispatch.stimuli import ActionCancelled
from tests.services.proxy.mesh import stage
from tests.shared.bus.soon import soon


async def submitted(valkey: Redis, action: str, held_by: str) -> ActionSubmitted:
    message = ActionSubmitted(action=action, tenant="t", stages=(stage(),), budget_s=60.0, held_by=held_by)
    await functions.journal_actions(valkey, [Submission(action, b"d", "", ACTIONS.encode(message))], max_journal=100)
    return message


async def test_actions_of_a_dead_replica_are_found_after_checks_for_some_seconds(valkey: Redis) -> None:
    unanswered = [await submitted(valkey, name, name.rstrip("0123456789")) for name in ("alive1", "dead1", "dead2")]
    unanswered.append(await submitted(valkey, "nobodys", ""))
    living = asyncio.create_task(renew(valkey, "alive"))

    async def is_held() -> bool:
        return bool(await command(valkey, "EXISTS", "replica:alive") == 1)

    await soon(is_held)
    absent = AbsentReplicas(valkey)

    assert await absent.check(0.0, unanswered) == [], "Valkey may have been away"
    assert await absent.check(CHECK_S - 0.1, unanswered) == [], "another replica may have ended meanwhile"
    assert await absent.check(CHECK_S, unanswered) == ["dead1", "dead2"]
    assert await absent.check(CHECK_S, unanswered) == [], "each is found once"
    late = await submitted(valkey, "dead3", "dead")
    assert await absent.check(CHECK_S + 0.1, [*unanswered, late]) == ["dead3"]
    living.cancel()


async def test_a_replica_that_is_back_at_the_second_check_keeps_its_calls(valkey: Redis) -> None:
    unanswered = [await submitted(valkey, "a1", "a")]
    absent = AbsentReplicas(valkey)

    assert await absent.check(0.0, unanswered) == []
    await command(valkey, "SET", "replica:a", "a", "PX", 9000)
    assert await absent.check(CHECK_S, unanswered) == []
    await command(valkey, "DEL", "replica:a")
    assert await absent.check(2 * CHECK_S, unanswered) == [], "absent once again, not twice in a row"
    assert await absent.check(3 * CHECK_S, unanswered) == ["a1"]


async def renewed_before(valkey: Redis, replica: str, ago_s: float) -> None:
    await command(valkey, "SET", f"replica:{replica}", 1, "PX", round(1000 * (PRESENCE_S - ago_s)))


async def test_a_replica_that_has_ended_here_is_absent_when_it_has_missed_a_renewal(valkey: Redis) -> None:
    unanswered = [await submitted(valkey, f"{name}1", name) for name in ("ended", "lives")]
    absent = AbsentReplicas(valkey, has_ended=lambda name: name == "ended")
    assert not absent.seem_ended(), "no check has seen a holder"

    await renewed_before(valkey, "ended", 0.1)
    await renewed_before(valkey, "lives", MISSED_S + 0.1)
    assert await absent.check(0.0, unanswered) == [], "a clone of this machine would renew it"
    assert absent.undecided
    assert absent.seem_ended()

    await renewed_before(valkey, "ended", MISSED_S + 0.1)
    assert await absent.check(0.0, unanswered) == ["ended1"]
    assert not absent.undecided


async def test_a_living_replica_is_never_ended(valkey: Redis) -> None:
    unanswered = [await submitted(valkey, "lives1", "lives")]
    absent = AbsentReplicas(valkey, has_ended=lambda _name: False)
    await renewed_before(valkey, "lives", MISSED_S + 5.0)

    assert await absent.check(0.0, unanswered) == []
    assert not absent.undecided
    assert not absent.seem_ended()


NAMED = "from shared.runtime.process_names import process_name; print(process_name())"


class _Leader:
    """Records the cancellations and when leases are granted."""

    def __init__(self, unanswered: list[ActionSubmitted]) -> None:
        self.unanswered = {one.action: Unanswered("1-1", 0.0, one, -1) for one in unanswered}
        self.done: list[str] = []

    def handle(self, cancelled: ActionCancelled) -> None:
        self.done.append(cancelled.action)
        del self.unanswered[cancelled.action]

    def serve_leases(self) -> None:
        self.done.append("leases")


async def test_leases_are_granted_after_a_check_although_the_first_one_fails(
    valkey: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", NAMED, stdout=asyncio.subprocess.PIPE)
    ended = (await process.communicate())[0].decode().strip()
    leader = _Leader([await submitted(valkey, name, held_by) for name, held_by in (("dead1", ended), ("nobodys", ""))])
    await renewed_before(valkey, ended, 0.2)  # it has not missed a renewal
    answers, left_s = iter([redis.exceptions.ConnectionError("away")]), replicas.left_s

    async def fails_first(store: Redis, named: Iterable[str]) -> dict[str, float]:
        for error in answers:
            raise error
        return await left_s(store, named)

    monkeypatch.setattr(replicas, "left_s", fails_first)

    async def served() -> bool:
        return "leases" in leader.done

    watching = asyncio.create_task(cancel_held(valkey, cast("Leader", leader), lambda: False))
    await soon(served)
    watching.cancel()
    assert leader.done == ["dead1", "leases"]
