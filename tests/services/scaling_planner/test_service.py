"""The planner with its real servers: what it keeps, what it publishes, what it survives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from redis.asyncio import Redis

from services.scaling_planner.app import GROUP, create_app
from services.scaling_planner.settings import ScalingPlannerSettings
from shared.api.requests import Act, Answer, StageReport
from shared.bus import functions
from shared.bus.connection import command, connect
from shared.messages.base import Message
from shared.messages.batches import (
    BATCHES,
    BatchEnded,
    BatchOpened,
    BatchState,
    FirstArrival,
    RolloutProgress,
    StagePlan,
)
from shared.messages.nodes import NODES, Hello
from shared.messages.targets import PLANNER_LEASE, TARGETS, CompletionExpected, TargetSet
from shared.replay.again import decide_again
from shared.settings import TreadleSettings
from shared.store import database
from shared.store.batches import BatchHistory
from shared.store.database import Sessions, transaction
from shared.store.plans import Plans
from shared.testing.servers import running_postgres, running_valkey, temporary_home
from shared.traces.planning import plain, read_log

POOL = "cores@default"
STAGES = [
    StagePlan(name="compile", pool=POOL, units=1, worker_cost=1.0, timeout_s=10.0),
    StagePlan(name="run", pool=POOL, units=1, worker_cost=1.0, timeout_s=5.0),
]
FIRST = float(int(time.time()))
"""Of the first request of a batch that opened ten seconds before."""


def a_batch(name: str) -> BatchOpened:
    return BatchOpened(
        batch=name,
        tenant="ada",
        task="code",
        size=3,
        opened_at=FIRST - 10,
        stages=STAGES,
        max_extra_delay_s=1.5,
        resources=8,
    )


def its_end(name: str, state: BatchState = "complete") -> BatchEnded:
    return BatchEnded(
        batch=name,
        tenant="ada",
        task="code",
        state=state,
        opened_at=FIRST - 10,
        first_at=FIRST,
        ended_at=FIRST + 9,
        size=3,
    )


def an_answer(index: int, *executions: float) -> bytes:
    names = ("compile", "run")
    return msgspec.json.encode(
        Answer(
            id=f"a{index}",
            state="finished",
            index=index,
            arrived_at=FIRST + index,
            ended="ok",
            act=Act(queue_s=0.5, execution_s=sum(executions), overhead_s=0.01, total_s=1.0),
            stages=[
                StageReport(name=names[j], queue_s=0.25, execution_s=seconds, node="n", attempts=1, units=1)
                for j, seconds in enumerate(executions)
            ],
        )
    )


class Mesh:
    """The other side of the bus, played by the test."""

    def __init__(self, redis: Redis, sessions: Sessions) -> None:
        self.redis = redis
        self.sessions = sessions

    async def say(self, *messages: Message) -> None:
        for message in messages:
            topic = NODES if isinstance(message, Hello) else BATCHES
            await functions.publish(self.redis, topic.name, 1000, [topic.encode(message)])  # type: ignore[arg-type]

    async def open(self, name: str) -> None:
        """As the server-side function does: the batch is in Valkey before its message is."""
        await command(self.redis, "HSET", f"batch:{name}", "state", "open", "submitted", 0, "answered", 0)
        await self.say(a_batch(name))

    async def end(self, name: str) -> None:
        for answer in (an_answer(2, 3.0, 2.0), an_answer(0, 1.0, 1.0), an_answer(1, 2.0)):
            await command(self.redis, "XADD", f"results:{name}", "*", "a", answer)
        await self.say(FirstArrival(batch=name, arrived_at=FIRST), its_end(name))

    async def published(self) -> list[TargetSet | CompletionExpected]:
        return [TARGETS.decode(fields[1]) for _, fields in await command(self.redis, "XRANGE", TARGETS.name, "-", "+")]

    async def targets(self) -> list[int]:
        return [message.units for message in await self.published() if isinstance(message, TargetSet)]

    async def unacknowledged(self) -> int:
        return int((await command(self.redis, "XPENDING", BATCHES.name, GROUP))[0])


async def soon(condition: Callable[[], Awaitable[bool]], *, within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110  # the other side is another process
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://planner") as http:
            yield http


def planner(redis_url: str, database_url: str, **settings: Any) -> FastAPI:
    treadle = TreadleSettings(redis_url=redis_url, database_url=database_url)
    settings = {"strictness": 0.0, "node_lost_s": 3600.0, "hold_s": 0.0, **settings}
    return create_app(ScalingPlannerSettings(treadle=treadle, **settings))


@pytest.fixture
async def mesh(redis_url: str, database_url: str) -> AsyncIterator[Mesh]:
    async with connect(redis_url, name="test") as redis, database.connect(database_url, name="test") as sessions:
        await functions.load(redis)
        mesh = Mesh(redis, sessions)
        await mesh.say(Hello(node="n", incarnation="1", node_class="default", capacity={"cores": 8}, kinds=[]))
        yield mesh


async def test_a_batch_is_kept_learnt_from_and_the_next_one_gets_what_it_needs(
    mesh: Mesh, redis_url: str, database_url: str
) -> None:
    async with running(planner(redis_url, database_url)):
        await soon(lambda: _are(mesh, [0]))
        await mesh.open("b1")
        await soon(lambda: _are(mesh, [0, 8]))
        await mesh.end("b1")
        await soon(lambda: _are(mesh, [0, 8, 0]))
        await mesh.open("b2")
        first = time.time()
        await mesh.say(FirstArrival(batch="b2", arrived_at=first))
        await soon(lambda: _are(mesh, [0, 8, 0, 2]))
        await soon(lambda: _all_acknowledged(mesh, 5))
    assert (await mesh.published())[-1] == CompletionExpected(batch="b2", at=first + 7.0)
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
        (8, 0, "idle"),
        (0, 8, "no-history"),
        (None, 0, "idle"),
    ]
    assert (
        plans[0].reason["summary"].startswith("3 requests of batch b2: 2 cores suffice: extra delay 0.0 s <= D 1.5 s")
    )


async def test_a_planner_that_was_killed_goes_on_where_it_stood(mesh: Mesh, redis_url: str, database_url: str) -> None:
    async with running(planner(redis_url, database_url)):
        await mesh.open("b1")
        await soon(lambda: _last_is(mesh, 8))
    await mesh.end("b1")  # nobody listens
    async with running(planner(redis_url, database_url)):
        await soon(lambda: _last_is(mesh, 0))
        await soon(lambda: _all_acknowledged(mesh, 3))
    async with transaction(mesh.sessions) as session:
        assert await BatchHistory(session).requests("b1") is not None


async def test_messages_delivered_twice_change_nothing(mesh: Mesh, redis_url: str, database_url: str) -> None:
    async with running(planner(redis_url, database_url)):
        await mesh.open("b1")
        await mesh.end("b1")
        await soon(lambda: _all_acknowledged(mesh, 3))
    await command(mesh.redis, "XGROUP", "SETID", BATCHES.name, GROUP, "0")
    async with running(planner(redis_url, database_url)):
        await soon(lambda: _all_acknowledged(mesh, 3))
        assert (await mesh.targets())[-1] == 0
    async with transaction(mesh.sessions) as session:
        assert await BatchHistory(session).still_open() == []


async def test_a_batch_that_valkey_has_lost_holds_no_units(mesh: Mesh, redis_url: str, database_url: str) -> None:
    async with running(planner(redis_url, database_url)):
        await mesh.open("b1")
        await soon(lambda: _last_is(mesh, 8))
    await command(mesh.redis, "DEL", "batch:b1")
    async with running(planner(redis_url, database_url)):
        await soon(lambda: _last_is(mesh, 0))
    async with transaction(mesh.sessions) as session:
        assert await BatchHistory(session).still_open() == []


async def test_a_cancelled_batch_is_kept_and_not_learnt_from(mesh: Mesh, redis_url: str, database_url: str) -> None:
    async with running(planner(redis_url, database_url)):
        await mesh.open("b1")
        await mesh.say(its_end("b1", "cancelled"))
        await mesh.open("b2")
        await soon(lambda: _all_acknowledged(mesh, 3))
    assert (await mesh.targets())[-1] == 8


async def test_an_end_that_contradicts_itself_is_not_kept(mesh: Mesh, redis_url: str, database_url: str) -> None:
    async with running(planner(redis_url, database_url)):
        await mesh.say(its_end("b1", "sealed"))
        await mesh.open("b2")
        await soon(lambda: _last_is(mesh, 8))
        assert await mesh.unacknowledged() == 1
    async with transaction(mesh.sessions) as session:
        assert [batch.batch for batch in await BatchHistory(session).still_open()] == ["b2"]


async def test_it_says_whether_it_is_ready_and_counts_what_it_decides(
    mesh: Mesh, redis_url: str, database_url: str
) -> None:
    async with running(planner(redis_url, database_url)) as http:
        await soon(lambda: _last_is(mesh, 0))
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).json() == {"status": "ready"}
        assert 'treadle_scaling_planner_target_units{pool="cores@default"} 0.0' in (await http.get("/metrics")).text


async def test_postgres_and_valkey_may_restart_and_no_end_of_a_batch_is_lost(stack_home: Path) -> None:
    with ExitStack() as at_end:
        valkey_home = at_end.enter_context(temporary_home())
        valkey, postgres = ExitStack(), ExitStack()
        redis_url = valkey.enter_context(running_valkey(valkey_home))
        at_end.callback(valkey.close)
        server = postgres.enter_context(running_postgres(stack_home, durable=True))
        at_end.callback(postgres.close)
        database_url = server.create("planner")
        await _migrate(database_url)
        async with connect(redis_url, name="test") as redis, database.connect(database_url, name="test") as sessions:
            await functions.load(redis)
            mesh = Mesh(redis, sessions)
            await mesh.say(Hello(node="n", incarnation="1", node_class="default", capacity={"cores": 8}, kinds=[]))
            async with running(planner(redis_url, database_url)) as http:
                await mesh.open("b1")
                await soon(lambda: _last_is(mesh, 8))
                await asyncio.to_thread(postgres.close)
                await mesh.end("b1")
                assert (await http.get("/readyz")).status_code == 503
                await asyncio.to_thread(valkey.close)
                await asyncio.to_thread(valkey.enter_context, running_valkey(valkey_home))
                assert await mesh.unacknowledged() >= 1
                await asyncio.to_thread(postgres.enter_context, running_postgres(stack_home, durable=True))
                await soon(lambda: _last_is(mesh, 0), within_s=60.0)
                await soon(lambda: _all_acknowledged(mesh, 3), within_s=60.0)
            async with transaction(sessions) as session:
                assert await BatchHistory(session).requests("b1") is not None


async def test_of_two_planners_one_plans_and_the_other_takes_over(
    mesh: Mesh, redis_url: str, database_url: str
) -> None:
    async with running(planner(redis_url, database_url, lease_s=0.6)) as first:
        await soon(lambda: _last_is(mesh, 0))
        async with running(planner(redis_url, database_url, lease_s=0.6)) as second:
            await soon(lambda: _is_ready(second))
            await mesh.open("b1")
            await soon(lambda: _last_is(mesh, 8))
            await asyncio.sleep(1.0)
            assert (await mesh.targets()).count(8) == 1, "both have planned"
            await command(mesh.redis, "SET", PLANNER_LEASE, "a third", "PX", 1500)
            await soon(lambda: _ours_plans(mesh))
            await mesh.end("b1")
            await soon(lambda: _last_is(mesh, 0))
            await soon(lambda: _is_ready(first))
            await soon(lambda: _is_ready(second))
    assert await command(mesh.redis, "EXISTS", PLANNER_LEASE) == 0, "given back at the end"


async def test_a_planner_that_cannot_keep_its_decisions_lets_its_lease_lapse(stack_home: Path) -> None:
    """So that the mesh does not wait for targets of a planner that waits for Postgres."""
    with ExitStack() as at_end:
        redis_url = at_end.enter_context(running_valkey(at_end.enter_context(temporary_home())))
        postgres = ExitStack()
        server = postgres.enter_context(running_postgres(stack_home, durable=True))
        at_end.callback(postgres.close)
        database_url = server.create("lapsing")
        await _migrate(database_url)
        async with connect(redis_url, name="test") as redis, database.connect(database_url, name="test") as sessions:
            await functions.load(redis)
            mesh = Mesh(redis, sessions)
            await mesh.say(Hello(node="n", incarnation="1", node_class="default", capacity={"cores": 8}, kinds=[]))
            async with running(planner(redis_url, database_url, lease_s=0.9, stuck_s=0.1)):
                await soon(lambda: _last_is(mesh, 0))
                await asyncio.to_thread(postgres.close)
                await mesh.open("b1")
                await soon(lambda: _nobody_plans(mesh))
                await asyncio.to_thread(postgres.enter_context, running_postgres(stack_home, durable=True))
                await soon(lambda: _last_is(mesh, 8), within_s=60.0)
                await soon(lambda: _somebody_plans(mesh))
            await asyncio.to_thread(postgres.close)
            async with running(planner(redis_url, database_url, lease_s=0.9, stuck_s=0.1)):  # it cannot even begin
                await soon(lambda: _somebody_plans(mesh))
                await soon(lambda: _nobody_plans(mesh))
                await asyncio.to_thread(postgres.enter_context, running_postgres(stack_home, durable=True))
                await soon(lambda: _somebody_plans(mesh), within_s=60.0)


async def test_units_fall_to_what_is_needed_soon_and_come_back_before_they_are_needed(
    mesh: Mesh, redis_url: str, database_url: str
) -> None:
    """The batch before had a request at once and two together after 5 s."""
    async with running(planner(redis_url, database_url, review_s=1.0, ahead_s=2.0)):
        await mesh.open("b1")
        for answer in (an_answer(0, 0.5), an_answer(5, 2.0), an_answer(5, 2.0)):
            await command(mesh.redis, "XADD", "results:b1", "*", "a", answer)
        await mesh.say(FirstArrival(batch="b1", arrived_at=FIRST), its_end("b1"))
        await soon(lambda: _last_is(mesh, 0))
        await mesh.open("b2")
        await command(mesh.redis, "HSET", "batch:b2", "submitted", 1, "answered", 1)
        await mesh.say(FirstArrival(batch="b2", arrived_at=time.time()))
        await soon(lambda: _last_is(mesh, 2))
    assert (await mesh.targets())[-2:] == [0, 2], "nothing is needed between the first and the others"


async def test_what_a_trainer_reports_of_its_rollout_is_heeded_and_its_pace_kept(
    mesh: Mesh, redis_url: str, database_url: str
) -> None:
    async with running(planner(redis_url, database_url, review_s=1.0)):
        await mesh.open("b1")
        await mesh.say(RolloutProgress(batch="b1", at=FIRST, generating=2, tokens=500.0))
        await mesh.end("b1")
        await mesh.open("b2")
        await command(mesh.redis, "HSET", "batch:b2", "submitted", 1, "answered", 1)
        await mesh.say(FirstArrival(batch="b2", arrived_at=time.time()))
        await soon(lambda: _last_is(mesh, 1))
        await mesh.say(RolloutProgress(batch="b2", at=time.time(), generating=0))
        await soon(lambda: _last_is(mesh, 0))  # samples that will never come are not waited for
    async with transaction(mesh.sessions) as session:
        (past,) = await BatchHistory(session).recent("ada", "code", 3, 5)
    assert past.tokens_per_s == 50.0


async def test_a_stimulus_log_holds_all_that_the_planner_was_told_and_answered(
    mesh: Mesh, redis_url: str, database_url: str, tmp_path: Path
) -> None:
    settings = {"stimulus_logs": tmp_path, "review_s": 1.0, "strictness": 1.0}
    async with running(planner(redis_url, database_url, **settings)):
        await mesh.open("b1")
        await soon(lambda: _last_is(mesh, 8))
        await mesh.end("b1")
        await soon(lambda: _last_is(mesh, 0))
        await mesh.open("b2")
    async with running(planner(redis_url, database_url, **settings)):
        await mesh.say(FirstArrival(batch="b2", arrived_at=time.time()))
        await soon(lambda: _planned_for(mesh, 3))
        await mesh.open("b3")
        await soon(lambda: _all_acknowledged(mesh, 6))
    logs = sorted(tmp_path.iterdir())  # noqa: ASYNC240  # two files
    assert len(logs) == 2
    for path in logs:
        header, log = read_log(path)
        decided = list(decide_again(header.planner(), log, plain))
        assert all(one.same for one in decided)
        assert sum(len(one.then) for one in decided) >= 2


async def _migrate(url: str) -> None:
    from shared.store.migrate import upgrade

    await upgrade(url)


async def _is_ready(http: httpx.AsyncClient) -> bool:
    return (await http.get("/readyz")).status_code == 200


async def _nobody_plans(mesh: Mesh) -> bool:
    return bool(await command(mesh.redis, "EXISTS", PLANNER_LEASE) == 0)


async def _ours_plans(mesh: Mesh) -> bool:
    return (await command(mesh.redis, "GET", PLANNER_LEASE)) not in (None, b"a third")


async def _somebody_plans(mesh: Mesh) -> bool:
    return not await _nobody_plans(mesh)


async def _planned_for(mesh: Mesh, units: int) -> bool:
    return units in await mesh.targets()


async def _are(mesh: Mesh, targets: list[int]) -> bool:
    return await mesh.targets() == targets


async def _last_is(mesh: Mesh, units: int) -> bool:
    targets = await mesh.targets()
    return bool(targets) and targets[-1] == units


async def _all_acknowledged(mesh: Mesh, messages: int) -> bool:
    """So many were written, and every one was delivered and acknowledged."""
    groups = await command(mesh.redis, "XINFO", "GROUPS", BATCHES.name)
    if not groups:
        return False
    facts = dict(zip(groups[0][::2], groups[0][1::2], strict=True))
    length = await command(mesh.redis, "XLEN", BATCHES.name)
    return bool(length == messages and facts[b"pending"] == 0 and facts[b"lag"] == 0)
