"""A batch's measurements as they are read back from its stored answers."""

from __future__ import annotations

import msgspec
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from shared.api.requests import Act, Answer, StageReport
from shared.bus.connection import command
from shared.bus.results import RequestRecord, read_record
from shared.store.results import ArchiveReader, Results


def stage(name: str, queue_s: float, execution_s: float, units: int) -> StageReport:
    return StageReport(name=name, queue_s=queue_s, execution_s=execution_s, node="n", attempts=1, units=units)


async def store(redis: Redis, *answers: Answer) -> None:
    for answer in answers:
        await command(redis, "XADD", "results:b", "*", "a", msgspec.json.encode(answer))


async def recorded(redis: Redis) -> list[RequestRecord]:
    await command(redis, "HSET", "batch:b", "state", "open")
    sessions = async_sessionmaker(create_async_engine("postgresql+asyncpg://nobody@127.0.0.1:1/nothing"))
    return await read_record(Results(redis, ArchiveReader(sessions)).pages("b"))


async def test_a_batch_without_answers_has_no_records(valkey: Redis) -> None:
    assert await recorded(valkey) == []


async def test_an_answer_becomes_a_record_of_its_stages(valkey: Redis) -> None:
    stages = [stage("compile", 0.5, 1.0, 2), stage("run", 0.25, 3.0, 1)]
    act = Act(queue_s=0.75, execution_s=4.0, overhead_s=0.125, total_s=4.875)
    await store(valkey, Answer(id="a", state="finished", index=7, arrived_at=12.5, ended="ok", act=act, stages=stages))

    assert await recorded(valkey) == [RequestRecord(7, 12.5, "ok", (0.5, 0.25), (1.0, 3.0), (2, 1), 0.125)]


async def test_an_answer_that_never_ran_has_no_stages(valkey: Redis) -> None:
    await store(valkey, Answer(id="a", state="finished", ended="cancelled"))

    assert await recorded(valkey) == [RequestRecord(-1, 0.0, "cancelled", (), (), (), 0.0)]


async def test_all_answers_come_once_in_order(valkey: Redis) -> None:
    async with valkey.pipeline(transaction=False) as pipe:
        for index in range(4001):
            answer = msgspec.json.encode(Answer(id="a", state="finished", index=index, ended="ok"))
            pipe.execute_command("XADD", "results:b", "*", "a", answer)
        await pipe.execute()

    assert [record.index for record in await recorded(valkey)] == list(range(4001))
