"""Planning in time: the leading planner, units held over time, and the replay of decisions."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path

from shared.bus import functions
from shared.bus.connection import command, connect
from shared.messages.batches import (
    FirstArrival,
    RolloutProgress,
)
from shared.messages.nodes import Hello
from shared.store import database
from shared.store.batches import BatchHistory
from shared.store.database import transaction
from shared.store.stimulus_log import read_log
from tests.services.scaling_planner.mesh import (
    FIRST,
    Mesh,
    a_planner_leads,
    all_acknowledged,
    an_answer,
    is_ready,
    its_end,
    last_is,
    migrate,
    no_planner_leads,
    our_planner_leads,
    planner,
    running,
    soon,
)
from treadle.lab.evaluations.planner_decisions import repeated
from treadle.testing.servers import running_postgres, running_valkey, temporary_home


async def test_of_two_planners_one_plans_and_the_other_takes_over(
    mesh: Mesh, redis_url: str, database_url: str
) -> None:
    async with running(planner(redis_url, database_url, lease_s=0.6)) as first:
        await soon(lambda: last_is(mesh, 0))
        async with running(planner(redis_url, database_url, lease_s=0.6)) as second:
            await soon(lambda: is_ready(second))
            await mesh.open("b1")
            await soon(lambda: last_is(mesh, 3))
            await asyncio.sleep(1.0)
            assert (await mesh.targets()).count(3) == 1, "both have planned"
            await command(mesh.redis, "SET", "leader:planner", "a third", "PX", 1500)
            await soon(lambda: our_planner_leads(mesh))
            await mesh.end("b1")
            await soon(lambda: last_is(mesh, 0))
            await soon(lambda: is_ready(first))
            await soon(lambda: is_ready(second))
    assert await command(mesh.redis, "EXISTS", "leader:planner") == 0, "given back at the end"


async def test_a_planner_that_cannot_keep_its_decisions_lets_its_lease_lapse(stack_home: Path) -> None:
    """The mesh must not wait for targets of a planner that waits for Postgres."""
    with ExitStack() as at_end:
        redis_url = at_end.enter_context(running_valkey(at_end.enter_context(temporary_home())))
        postgres = ExitStack()
        server = postgres.enter_context(running_postgres(stack_home, durable=True))
        at_end.callback(postgres.close)
        database_url = server.create("lapsing")
        await migrate(database_url)
        async with connect(redis_url, name="test") as redis, database.connect(database_url, name="test") as sessions:
            await functions.load(redis)
            mesh = Mesh(redis, sessions)
            await mesh.publish(Hello(node="n", incarnation="1", node_class="default", capacity={"cores": 8}, kinds=[]))
            async with running(planner(redis_url, database_url, lease_s=0.9, stuck_s=0.1)):
                await soon(lambda: last_is(mesh, 0))
                await asyncio.to_thread(postgres.close)
                await mesh.open("b1")
                await soon(lambda: no_planner_leads(mesh))
                await asyncio.to_thread(postgres.enter_context, running_postgres(stack_home, durable=True))
                await soon(lambda: last_is(mesh, 3), within_s=60.0)
                await soon(lambda: a_planner_leads(mesh))
            await asyncio.to_thread(postgres.close)
            async with running(planner(redis_url, database_url, lease_s=0.9, stuck_s=0.1)):  # it cannot even begin
                await soon(lambda: a_planner_leads(mesh))
                await soon(lambda: no_planner_leads(mesh))
                await asyncio.to_thread(postgres.enter_context, running_postgres(stack_home, durable=True))
                await soon(lambda: a_planner_leads(mesh), within_s=60.0)


async def test_units_fall_to_the_current_need_and_rise_before_they_are_needed(
    mesh: Mesh, redis_url: str, database_url: str
) -> None:
    """The batch before had a request at once and two together after 5 s."""
    async with running(planner(redis_url, database_url, review_s=1.0, look_ahead_s=2.0)):
        await mesh.open("b1")
        for answer in (an_answer(0, 0.5), an_answer(5, 2.0), an_answer(5, 2.0)):
            await command(mesh.redis, "XADD", "results:b1", "*", "a", answer)
        await mesh.publish(FirstArrival(batch="b1", arrived_at=FIRST), its_end("b1"))
        await soon(lambda: last_is(mesh, 0))
        await mesh.open("b2")
        await command(mesh.redis, "HSET", "batch:b2", "submitted", 1, "answered", 1)
        await mesh.publish(FirstArrival(batch="b2", arrived_at=time.time()))
        await soon(lambda: last_is(mesh, 2))
    assert (await mesh.targets())[-2:] == [0, 2], "nothing is needed between the first and the others"


async def test_progress_reports_of_a_trainer_are_used_and_its_pace_is_stored(
    mesh: Mesh, redis_url: str, database_url: str
) -> None:
    async with running(planner(redis_url, database_url, review_s=1.0)):
        await mesh.open("b1")
        await mesh.publish(RolloutProgress(batch="b1", at=FIRST, generating=2, tokens=500.0))
        await mesh.end("b1")
        await mesh.open("b2")
        await command(mesh.redis, "HSET", "batch:b2", "submitted", 1, "answered", 1)
        await mesh.publish(FirstArrival(batch="b2", arrived_at=time.time()))
        await soon(lambda: last_is(mesh, 2))  # a worker of each stage
        await mesh.publish(RolloutProgress(batch="b2", at=time.time(), generating=0))
        await soon(lambda: last_is(mesh, 0))  # samples that will never come are not waited for
    async with transaction(mesh.sessions) as session:
        (past,) = await BatchHistory(session).recent("ada", "code", 3, 5)
    assert past.tokens_per_s == 50.0


async def test_a_stimulus_log_holds_every_input_and_decision_of_the_planner(
    mesh: Mesh, redis_url: str, database_url: str, tmp_path: Path
) -> None:
    settings = {"stimulus_logs": tmp_path, "review_s": 1.0, "strictness": 1.0}
    async with running(planner(redis_url, database_url, **settings)):
        await mesh.open("b1")
        await soon(lambda: last_is(mesh, 3))
        await mesh.end("b1")
        await soon(lambda: last_is(mesh, 0))
        await mesh.open("b2")
    async with running(planner(redis_url, database_url, **settings)):
        await mesh.publish(FirstArrival(batch="b2", arrived_at=time.time()))
        await soon(lambda: last_is(mesh, 3))
        await mesh.open("b3")
        await soon(lambda: all_acknowledged(mesh, 6))
    logs = sorted(tmp_path.iterdir())  # noqa: ASYNC240  # two files
    assert len(logs) == 2
    for path in logs:
        header, log = read_log(path)
        decided = list(repeated(header.planner(), log))
        assert all(one.same for one in decided)
        assert sum(len(one.then) for one in decided) >= 2
