"""The planner with its real servers: its stored state, its messages, and its restarts."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from prometheus_client import REGISTRY

from services.scaling_planner.quotas import READ_S
from services.scaling_planner.terms import GROUP
from shared.bus import functions, keys
from shared.bus.connection import command, connect
from shared.bus.nodes import publish_hello
from shared.bus.quotas import set_quota
from shared.messages.batches import (
    BATCHES,
    BatchOpened,
    FirstArrival,
)
from shared.messages.nodes import NODES, Hello
from shared.messages.targets import TargetSet
from shared.policy.model.brakes import Brake
from shared.policy.model.quotas import QuotaLimits
from shared.store import database
from shared.store.answers import Answers
from shared.store.batches import BatchHistory
from shared.store.database import transaction
from shared.store.plans import Plans
from shared.store.records import KeptAnswer
from tests.services.scaling_planner.mesh import (
    FIRST,
    STAGES,
    Mesh,
    a_batch,
    all_acknowledged,
    an_answer,
    are,
    its_end,
    last_is,
    migrate,
    planner,
    running,
    soon,
)
from treadle.testing.servers import running_postgres, running_valkey, temporary_home


async def test_a_pool_is_not_scaled_up_for_work_that_a_quota_holds_back(
    mesh: Mesh, redis_url: str, database_url: str
) -> None:
    await set_quota(mesh.redis, "search", QuotaLimits((1.0,)))
    stages = [msgspec.structs.replace(stage, quotas={"search": 1.0}) for stage in STAGES]
    judging = msgspec.structs.replace(a_batch("b1"), stages=stages)
    async with running(planner(redis_url, database_url)):
        await soon(lambda: are(mesh, [0]))
        await command(mesh.redis, "HSET", "batch:b1", "state", "open", "submitted", 0, "answered", 0)
        await mesh.publish(judging)
        await soon(lambda: are(mesh, [0, 2]))  # one request in each of two stages, instead of three requests
        last = (await mesh.published())[-1]
    assert isinstance(last, TargetSet)
    assert last.reason.endswith("the quota 'search' (1 at once) limits stage run")


async def test_a_pool_is_not_scaled_up_for_a_provider_without_credit(
    mesh: Mesh, redis_url: str, database_url: str
) -> None:
    await set_quota(mesh.redis, "search", QuotaLimits((1.0,)))
    exhausted = msgspec.json.encode(Brake(mode="exhausted", reason="HTTP 402"))
    await command(mesh.redis, "HSET", keys.QUOTA_BRAKES, "search", exhausted)
    stages = [msgspec.structs.replace(stage, quotas={"search": 1.0}) for stage in STAGES]
    async with running(planner(redis_url, database_url)):
        await soon(lambda: are(mesh, [0]))
        await publish_open(mesh, msgspec.structs.replace(a_batch("b1"), stages=stages))
        await soon(lambda: are(mesh, [0, 0]))
        last = (await mesh.published())[-1]
        assert isinstance(last, TargetSet)
        assert last.reason.endswith("the quota 'search' (exhausted: HTTP 402) limits stage run")
        await command(mesh.redis, "DEL", keys.QUOTA_BRAKES)
        await asyncio.sleep(READ_S)
        await publish_open(mesh, msgspec.structs.replace(a_batch("b2"), stages=stages))
        await soon(lambda: last_is(mesh, 4))  # one request at once in each stage of each batch


async def publish_open(mesh: Mesh, batch: BatchOpened) -> None:
    await command(mesh.redis, "HSET", f"batch:{batch.batch}", "state", "open", "submitted", 0, "answered", 0)
    await mesh.publish(batch)


async def test_a_batch_is_kept_learned_from_and_the_next_one_gets_what_it_needs(
    mesh: Mesh, redis_url: str, database_url: str
) -> None:
    async with running(planner(redis_url, database_url)):
        await soon(lambda: are(mesh, [0]))
        await mesh.open("b1")
        await soon(lambda: are(mesh, [0, 3]))
        await mesh.end("b1")
        await soon(lambda: are(mesh, [0, 3, 0]))
        await mesh.open("b2")
        first = time.time()
        await mesh.publish(FirstArrival(batch="b2", arrived_at=first))
        await soon(lambda: are(mesh, [0, 3, 0, 2]))
        await soon(lambda: all_acknowledged(mesh, 5))
    assert (await mesh.completions("b2"))[0] == pytest.approx(first + 7.0, abs=1e-5)
    assert all(isinstance(message, TargetSet) for message in await mesh.published())
    async with transaction(mesh.sessions) as session:
        (past,) = await BatchHistory(session).recent("ada", "code", 3, 5)
        requests = await BatchHistory(session).requests("b1")
        plans = await Plans(session).newest()
    assert requests is not None
    assert past.gap_s == 10.0
    assert past.record.arrivals_s == requests.arrival_s == (0.0, 1.0, 2.0)
    assert repr(past.record.executions_s) == repr(requests.execution_s) == "((1.0, 2.0, 3.0), (1.0, nan, 2.0))"
    assert requests.units == ((1, 1, 1), (1, 0, 1))
    assert [(plan.previous, plan.target, plan.reason["why"]) for plan in plans] == [
        (0, 2, "searched"),
        (3, 0, "idle"),
        (0, 3, "no-history"),
        (None, 0, "idle"),
    ]
    assert (
        plans[0].reason["summary"].startswith("3 requests of batch b2: 2 cores suffice: extra delay 0.0 s <= D 1.5 s")
    )


async def test_a_planner_counts_nodes_whose_hellos_have_left_the_stream(
    mesh: Mesh, redis_url: str, database_url: str
) -> None:
    await command(mesh.redis, "DEL", NODES.name)
    await publish_hello(
        mesh.redis, Hello(node="n", incarnation="1", node_class="default", capacity={"cores": 8}, kinds=[])
    )
    await command(mesh.redis, "DEL", NODES.name)
    async with running(planner(redis_url, database_url)):
        await soon(lambda: last_is(mesh, 0))


async def test_a_killed_planner_continues_from_its_stored_state(mesh: Mesh, redis_url: str, database_url: str) -> None:
    async with running(planner(redis_url, database_url)):
        await mesh.open("b1")
        await soon(lambda: last_is(mesh, 3))
    await mesh.end("b1")  # no planner reads
    async with running(planner(redis_url, database_url)):
        await soon(lambda: last_is(mesh, 0))
        await soon(lambda: all_acknowledged(mesh, 3))
    async with transaction(mesh.sessions) as session:
        assert await BatchHistory(session).requests("b1") is not None


@pytest.mark.parametrize("expired", [False, True])
async def test_history_is_made_of_results_in_postgres_too(
    mesh: Mesh, redis_url: str, database_url: str, expired: bool
) -> None:
    """While no planner ran, the first results moved to Postgres, or all of them, and the batch expired in Valkey."""
    await mesh.open("b1")
    answers = [an_answer(2, 3.0, 2.0), an_answer(0, 1.0, 1.0), an_answer(1, 2.0)]
    moved = 3 if expired else 2
    async with transaction(mesh.sessions) as session:
        rows = [
            KeptAnswer(f"a{number}", "b1", "ada", (1000, number), answer, time.time() + 60)
            for number, answer in enumerate(answers[:moved])
        ]
        await Answers(session).add(rows)
    await command(mesh.redis, "HSET", "batch:b1", "archived", "1000-1")
    for answer in answers[moved:]:
        await command(mesh.redis, "XADD", "results:b1", "*", "a", answer)
    if expired:
        await command(mesh.redis, "DEL", "batch:b1")
    await mesh.publish(FirstArrival(batch="b1", arrived_at=FIRST), its_end("b1"))
    async with running(planner(redis_url, database_url)):
        await soon(lambda: all_acknowledged(mesh, 3))
    async with transaction(mesh.sessions) as session:
        requests = await BatchHistory(session).requests("b1")
    assert requests is not None
    assert repr(requests.execution_s) == "((1.0, 2.0, 3.0), (1.0, nan, 2.0))"


async def test_messages_delivered_twice_change_nothing(mesh: Mesh, redis_url: str, database_url: str) -> None:
    async with running(planner(redis_url, database_url)):
        await mesh.open("b1")
        await mesh.end("b1")
        await soon(lambda: all_acknowledged(mesh, 3))
    await command(mesh.redis, "XGROUP", "SETID", BATCHES.name, GROUP, "0")
    async with running(planner(redis_url, database_url)):
        await soon(lambda: all_acknowledged(mesh, 3))
        assert (await mesh.targets())[-1] == 0
    async with transaction(mesh.sessions) as session:
        assert await BatchHistory(session).still_open() == []


async def test_an_open_batch_learns_from_one_of_its_task_that_ends(
    mesh: Mesh, redis_url: str, database_url: str
) -> None:
    async with running(planner(redis_url, database_url)):
        await mesh.open("b1")
        await mesh.open("b2")
        await soon(lambda: last_is(mesh, 6))  # three requests of each
        await mesh.end("b1")
        await soon(lambda: last_is(mesh, 2))


async def test_a_batch_that_valkey_has_lost_holds_no_units(mesh: Mesh, redis_url: str, database_url: str) -> None:
    async with running(planner(redis_url, database_url)):
        await mesh.open("b1")
        await soon(lambda: last_is(mesh, 3))
    await command(mesh.redis, "DEL", "batch:b1")
    async with running(planner(redis_url, database_url)):
        await soon(lambda: last_is(mesh, 0))
    async with transaction(mesh.sessions) as session:
        assert await BatchHistory(session).still_open() == []


async def test_a_cancelled_batch_is_kept_and_not_learned_from(mesh: Mesh, redis_url: str, database_url: str) -> None:
    async with running(planner(redis_url, database_url)):
        await mesh.open("b1")
        await mesh.publish(its_end("b1", "cancelled"))
        await mesh.open("b2")
        await soon(lambda: all_acknowledged(mesh, 3))
    assert (await mesh.targets())[-1] == 3


async def test_an_end_that_contradicts_itself_is_not_kept(mesh: Mesh, redis_url: str, database_url: str) -> None:
    async with running(planner(redis_url, database_url)):
        await mesh.publish(its_end("b1", "sealed"))
        await mesh.open("b2")
        await soon(lambda: last_is(mesh, 3))
        assert await mesh.unacknowledged() == 1
    async with transaction(mesh.sessions) as session:
        assert [batch.batch for batch in await BatchHistory(session).still_open()] == ["b2"]


async def test_the_planner_reports_readiness_and_counts_its_decisions(
    mesh: Mesh, redis_url: str, database_url: str
) -> None:
    async with running(planner(redis_url, database_url)) as http:
        await soon(lambda: last_is(mesh, 0))
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).json() == {"status": "ready"}
        assert 'treadle_scaling_planner_target_units{pool="cores@default"} 0.0' in (await http.get("/metrics")).text


async def test_decisions_and_ended_batches_are_counted(mesh: Mesh, redis_url: str, database_url: str) -> None:
    def samples() -> list[float]:
        found = [
            REGISTRY.get_sample_value(f"treadle_scaling_planner_{name}", labels)
            for name, labels in (
                ("decisions_total", {"why": "no-history"}),
                ("batches_total", {"state": "complete"}),
                ("extra_delay_seconds_count", {}),
            )
        ]
        return [one or 0.0 for one in found]

    def deciding() -> float:
        return REGISTRY.get_sample_value("treadle_scaling_planner_deciding_seconds_count") or 0.0

    before, decided = samples(), deciding()
    async with running(planner(redis_url, database_url)):
        await soon(lambda: are(mesh, [0]))
        await mesh.open("b1")
        await soon(lambda: are(mesh, [0, 3]))
        await mesh.end("b1")
        await soon(lambda: are(mesh, [0, 3, 0]))
        await soon(lambda: all_acknowledged(mesh, 3))
    assert [now - one for now, one in zip(samples(), before, strict=True)] == [1, 1, 1]
    assert deciding() >= decided + 3


async def test_postgres_and_valkey_may_restart_and_no_end_of_a_batch_is_lost(stack_home: Path) -> None:
    with ExitStack() as at_end:
        valkey_home = at_end.enter_context(temporary_home())
        valkey, postgres = ExitStack(), ExitStack()
        redis_url = valkey.enter_context(running_valkey(valkey_home))
        at_end.callback(valkey.close)
        server = postgres.enter_context(running_postgres(stack_home, durable=True))
        at_end.callback(postgres.close)
        database_url = server.create("planner")
        await migrate(database_url)
        async with connect(redis_url, name="test") as redis, database.connect(database_url, name="test") as sessions:
            await functions.load(redis)
            mesh = Mesh(redis, sessions)
            await mesh.publish(Hello(node="n", incarnation="1", node_class="default", capacity={"cores": 8}, kinds=[]))
            async with running(planner(redis_url, database_url)) as http:
                await mesh.open("b1")
                await soon(lambda: last_is(mesh, 3))
                await asyncio.to_thread(postgres.close)
                await mesh.end("b1")
                assert (await http.get("/readyz")).status_code == 503
                await asyncio.to_thread(valkey.close)
                await asyncio.to_thread(valkey.enter_context, running_valkey(valkey_home))
                assert await mesh.unacknowledged() >= 1
                await asyncio.to_thread(postgres.enter_context, running_postgres(stack_home, durable=True))
                await soon(lambda: last_is(mesh, 0), within_s=60.0)
                await soon(lambda: all_acknowledged(mesh, 3), within_s=60.0)
            async with transaction(sessions) as session:
                assert await BatchHistory(session).requests("b1") is not None
