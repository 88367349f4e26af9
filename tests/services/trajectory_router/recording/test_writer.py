"""Writing of records to a real Postgres: several writers, servers that are killed, and calls that it rejects."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from services.trajectory_router.recording import writer as writing
from services.trajectory_router.recording.writer import TokenWriter
from shared.bus.connection import ValkeyClock, connect
from shared.runtime.errors import Conflict, Unavailable
from shared.store import database
from shared.store.database import Sessions, transaction
from shared.store.migrate import upgrade
from shared.store.token_calls import TokenCalls
from shared.tokens.calls import CallRecord, VersionSpan
from shared.tokens.rows import rows_of
from treadle.testing.servers import running_postgres

T = "t" + "0" * 24


@asynccontextmanager
async def running_writer(
    sessions: Sessions, redis: Redis, *, keep_s: float = 60.0, most_ids: int = 1000
) -> AsyncIterator[TokenWriter]:
    writer = TokenWriter(sessions, await ValkeyClock.measure(redis), keep_s=keep_s, most_ids=most_ids)
    running = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        running.cancel()
        await asyncio.wait({running})


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with connect(redis_url, name="test") as client:
        yield client


@pytest.fixture
async def sessions(database_url: str) -> AsyncIterator[Sessions]:
    async with database.connect(database_url, name="test", connections=8) as opened:
        yield opened


def called(name: str, prompt: list[int], output: list[int], **more: Any) -> CallRecord:
    logprobs = tuple(-0.5 for _ in output)
    return CallRecord(serial=0, call=name, prompt=tuple(prompt), output=tuple(output), logprobs=logprobs, **more)


async def stored(sessions: Sessions, trajectory: str = T) -> list[CallRecord]:
    async with sessions() as session:
        return [one async for one in TokenCalls(session).of(trajectory)]


async def test_a_call_is_read_as_it_was_written_and_has_only_new_ids(redis: Redis, sessions: Sessions) -> None:
    first = called(
        "a",
        [1, 2],
        [3],
        versions=(VersionSpan("v1", 0, 1),),
        temperature=0.7,
        finish_reason="stop",
        route="/v1/chat/completions",
        model="m",
        worker="w",
        logprobs_of="raw",
        created_s=1.5,
    )
    async with running_writer(sessions, redis) as writer:
        await writer.ready(T)
        await writer.append(T, "team", [first])
        await writer.append(T, "team", [called("b", [1, 2, 3, 9], [4])])
        await writer.append(T, "team", [called("c", [7], [])])
    one, two, three = await stored(sessions)
    assert one == first
    assert (two.serial, two.extends, two.kept, two.prompt, two.output) == (1, 0, 3, (9,), (4,))
    assert (three.serial, three.extends, three.prompt) == (2, None, (7,))
    (row, _) = rows_of(T, [one, two, three])
    assert (row.token_ids, row.loss_mask) == ([1, 2, 3, 9, 4], [0, 0, 1, 0, 1])


async def test_a_writer_that_begins_later_continues_the_chains(redis: Redis, sessions: Sessions) -> None:
    async with running_writer(sessions, redis) as writer:
        await writer.append(T, "team", [called("a", [1, 2], [3])])
    async with running_writer(sessions, redis) as other:
        await other.append(T, "team", [called("b", [1, 2, 3, 9], [4])])
    assert [(one.serial, one.kept) for one in await stored(sessions)] == [(0, 0), (1, 3)]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=30))
async def test_several_writers_lose_and_double_no_call(
    redis: Redis, sessions: Sessions, plan: list[tuple[int, int]]
) -> None:
    """Three replicas record calls of four trajectories at once, each with an old view of the chains."""
    async with transaction(sessions) as session:
        for number in range(4):
            await TokenCalls(session).delete(f"{T}{number}")
    async with AsyncExitStack() as stack:
        writers = [await stack.enter_async_context(running_writer(sessions, redis)) for _ in range(3)]
        calls = [
            (writer, number, called(f"c{index}", [number], [index])) for index, (writer, number) in enumerate(plan)
        ]
        await asyncio.gather(
            *(writers[writer].append(f"{T}{number}", "team", [call]) for writer, number, call in calls)
        )
    for number in range(4):
        found = await stored(sessions, f"{T}{number}")
        assert [one.serial for one in found] == list(range(len(found)))
        assert sorted(one.call for one in found) == sorted(call.call for _, at, call in calls if at == number)
        assert all((number, *one.output) == (*one.prompt, *one.output) for one in found)


async def test_a_call_that_is_rejected_fails_alone(redis: Redis, sessions: Sessions) -> None:
    too_large = called("a", [1 << 40], [1])
    async with running_writer(sessions, redis) as writer:
        results = await asyncio.gather(
            writer.append(T, "team", [called("b", [1], [2])]),
            writer.append(T, "team", [too_large]),
            writer.append(T, "team", [called("c", [5], [6])]),
            return_exceptions=True,
        )
        assert [type(one) for one in results] == [type(None), Unavailable, type(None)]
        await writer.append(T, "team", [called("d", [7], [8])])
    assert [one.call for one in await stored(sessions)] == ["b", "c", "d"]


async def test_a_full_record_takes_no_call_until_it_is_deleted(redis: Redis, sessions: Sessions) -> None:
    async with running_writer(sessions, redis, most_ids=3) as writer:
        await writer.append(T, "team", [called("a", [1, 2], [3])])
        with pytest.raises(Conflict, match="3 of 3 ids"):
            await writer.ready(T)
        async with transaction(sessions) as session:
            assert await TokenCalls(session).delete(T)
        with pytest.raises(Conflict):
            await writer.ready(T)  # as far as this replica knows
    async with running_writer(sessions, redis, most_ids=3) as writer:
        await writer.ready(T)


async def test_a_record_that_was_deleted_begins_anew(redis: Redis, sessions: Sessions) -> None:
    """This replica extends a call that is gone."""
    async with running_writer(sessions, redis) as writer:
        await writer.append(T, "team", [called("a", [1, 2], [3])])
        async with transaction(sessions) as session:
            await TokenCalls(session).delete(T)
        await writer.append(T, "team", [called("b", [1, 2, 3, 9], [4])])
    (one,) = await stored(sessions)
    assert (one.serial, one.extends, one.prompt) == (0, None, (1, 2, 3, 9))


async def test_records_expire_after_their_last_call(redis: Redis, sessions: Sessions) -> None:
    async with running_writer(sessions, redis, keep_s=0.2) as short, running_writer(sessions, redis) as long:
        await short.append(T, "team", [called("a", [1], [2]), called("b", [1], [3])])
        await short.append(T + "x", "team", [called("c", [1], [2])])
        await long.append(T + "x", "team", [called("d", [4], [5])])
        await asyncio.sleep(0.5)
        async with transaction(sessions) as session:
            assert await TokenCalls(session).expire(10) == 1
    assert [len(await stored(sessions, name)) for name in (T, T + "x")] == [0, 2]


async def test_calls_wait_while_postgres_is_killed_and_are_stored_once(
    redis: Redis, stack_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers append while the server is killed with SIGKILL and started again, several times."""
    monkeypatch.setattr(writing, "FRESH_S", 0.0)
    done: set[str] = set()
    root = stack_home
    with running_postgres(root, durable=True) as server:
        url = server.create("tokens")
        await upgrade(url)
        pid = _pid(root)
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(database.connect(url, name=f"w{n}")) for n in range(2)]
        writers = [await stack.enter_async_context(running_writer(one, redis, most_ids=10**9)) for one in opened]
        with pytest.raises(Unavailable, match="Postgres does not answer"):
            await writers[0].ready(T)

        async def append(worker: int, until: asyncio.Event) -> None:
            number = 0
            while not until.is_set():
                name = f"{worker}-{number}"
                number += 1
                try:
                    await writers[worker % 2].append(T, "team", [called(name, [worker], [number])])
                except Unavailable:
                    continue
                done.add(name)

        until = asyncio.Event()
        tasks = [asyncio.create_task(append(worker, until)) for worker in range(4)]
        for _ in range(3):
            with running_postgres(root, durable=True):
                await asyncio.sleep(0.8)
                pid = _pid(root)
                os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(0.3)
        with running_postgres(root, durable=True):
            before = len(done)
            async with asyncio.timeout(20):
                while len(done) < before + 8:  # noqa: ASYNC110  # the writers go on
                    await asyncio.sleep(0.02)
            until.set()
            await asyncio.wait(tasks)
            await writers[0].ready(T)
            found = await stored(opened[0])
    assert len(done) > 20
    names = [one.call for one in found]
    assert len(names) == len(set(names)), "none is doubled"
    assert done <= set(names), "what was reported durable is there"
    assert [one.serial for one in found] == list(range(len(found)))
    assert all(len(one.prompt) == len(one.output) == 1 for one in found), "none is half"


def _pid(root: Path) -> int:
    (path,) = root.rglob("postmaster.pid")
    return int(path.read_text().splitlines()[0])
