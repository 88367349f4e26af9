"""Answers move from Valkey to Postgres without a visible change: same order, same ids, no second execution, deletion.

One stack whose Valkey has 16 MiB, an eighth of what the largest batch here would take in it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
import redis

from tests.e2e.trainer import Trainer, trainer_at
from tests.shared.bus.soon import soon
from treadle.stack.services import PROXY
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

MANY = 50_000
LINES = 500
WITHIN_S = 240.0
SETTINGS = {
    "STACK_VALKEY_MAXMEMORY_MIB": "16",
    "PROXY_ARCHIVE_AFTER_S": "1",
    "PROXY_KEEP_DELETED_S": "6",
    "CPU_MANAGER_CORES": "2",
    "CPU_MANAGER_ENGINE": "none",
}
NOTHING = {"stages": [{"name": "noop", "kind": "noop"}]}

Json = dict[str, Any]


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with temporary_home() as root, running_stack(root, environ=SETTINGS) as running:
        yield running


@pytest.fixture
async def trainer(stack: RunningStack) -> AsyncIterator[Trainer]:
    async with trainer_at(stack.urls[PROXY], timeout_s=WITHIN_S) as one:
        await one.declare("nothing", NOTHING)
        yield one


@pytest.fixture
async def http(stack: RunningStack) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(stack.urls[PROXY], timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session


async def send(trainer: Trainer, batch: str, count: int) -> Json:
    """Requests 0 to `count`, repeated while the proxy rejects some. Totals of the receipts."""
    totals = {"accepted": 0, "repeated": 0}
    for start in range(0, count, LINES):
        left = [b'{"request_id":"r%d"}' % number for number in range(start, min(count, start + LINES))]
        async with asyncio.timeout(WITHIN_S):
            while left:
                status, receipt = await trainer.call("POST", f"/v1/rewards/bulk?batch={batch}", data=b"\n".join(left))
                assert status == 200, receipt
                for name in totals:
                    totals[name] += receipt[name]
                assert all(each["problem"]["status"] == 503 for each in receipt["rejected"]), receipt["rejected"][:2]
                left = [left[each["line"] - 1] for each in receipt["rejected"]]
                if left:
                    await asyncio.sleep(0.2)
    return totals


async def read(http: aiohttp.ClientSession, batch: str, after: str = "") -> list[tuple[str, str]]:
    """(cursor, request id) of every result behind a cursor, without following."""
    async with http.get(f"/v1/batches/{batch}/results", params={"after": after}) as response:
        assert response.status == 200, await response.text()
        lines = [json.loads(line) async for line in response.content]
    return [(line["cursor"], line["request_id"]) for line in lines]


def place(cursor: str) -> tuple[int, int]:
    ms, _, seq = cursor.partition("-")
    return int(ms), int(seq)


def in_valkey(stack: RunningStack, batch: str) -> int:
    with redis.Redis.from_url(stack.redis_url) as client:
        return int(client.xlen(f"results:{batch}"))


async def in_postgres(stack: RunningStack, batch: str) -> int:
    connection = await asyncpg.connect(stack.database_url.replace("+asyncpg", ""))
    try:
        return int(await connection.fetchval("SELECT count(*) FROM answers WHERE batch = $1", batch))
    finally:
        await connection.close()


async def archived(stack: RunningStack, batch: str) -> None:
    """Wait until nothing of the batch is in Valkey but compact ids."""

    async def gone() -> bool:
        return in_valkey(stack, batch) == 0

    await soon(gone, within_s=WITHIN_S)


@contextmanager
def frozen_postgres(stack: RunningStack) -> Iterator[None]:
    """The server and its backends hold their connections and answer nothing."""
    postmaster = stack.pids["postgres"]
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children")
    stopped = [postmaster]
    os.kill(postmaster, signal.SIGSTOP)
    try:
        for pid in map(int, children.read_text().split()):
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)
        yield
    finally:
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGCONT)


async def finished_batch(trainer: Trainer, key: str, count: int) -> str:
    batch = await trainer.open("nothing", key, count)
    assert (await send(trainer, batch, count))["accepted"] == count
    assert len(await trainer.follow(batch)) == count
    return batch


async def test_fifty_thousand_results_pass_through_sixteen_mebibytes(
    stack: RunningStack, trainer: Trainer, http: aiohttp.ClientSession
) -> None:
    batch = await trainer.open("nothing", "many", MANY)
    followed = asyncio.create_task(trainer.follow(batch))
    assert (await send(trainer, batch, MANY))["accepted"] == MANY
    results = [(answer["cursor"], answer["request_id"]) for answer in await followed]
    assert sorted(name for _, name in results) == sorted(f"r{number}" for number in range(MANY))

    assert await in_postgres(stack, batch) > MANY // 2
    again = await read(http, batch)  # across both stores, while the rest moves
    assert again == results
    assert all(place(one) < place(other) for (one, _), (other, _) in itertools.pairwise(again))
    assert await read(http, batch, results[MANY // 3][0]) == results[MANY // 3 + 1 :]

    await archived(stack, batch)
    assert await in_postgres(stack, batch) == MANY
    assert await read(http, batch) == results
    with redis.Redis.from_url(stack.redis_url) as client:
        assert client.hlen(f"archived:{batch}") == MANY
        assert client.memory_usage(f"archived:{batch}", samples=0) < 100 * MANY


async def test_the_usage_of_a_batch_is_the_same_after_its_answers_have_moved(
    stack: RunningStack, trainer: Trainer, http: aiohttp.ClientSession
) -> None:
    await trainer.declare("programs", {"stages": [{"name": "run", "kind": "code.run", "params": {"code": "1"}}]})
    batch = await trainer.open("programs", "used", 3)
    await send(trainer, batch, 3)
    answers = await trainer.follow(batch)
    await archived(stack, batch)

    used = [answer["usage"] for answer in answers]
    assert all(usage == answer["stages"][0]["usage"] for usage, answer in zip(used, answers, strict=True))
    assert all(usage["cpu_s"] > 0 for usage in used)
    assert (await trainer.view(batch))["usage"] == pytest.approx({"cpu_s": sum(usage["cpu_s"] for usage in used)})


async def test_an_archived_answer_is_given_again_and_never_made_again(
    stack: RunningStack, trainer: Trainer, http: aiohttp.ClientSession
) -> None:
    batch = await trainer.open("nothing", "open", 200)
    await send(trainer, batch, 100)  # it stays open: a repeat could be accepted anew

    async def answered() -> bool:
        return bool((await trainer.view(batch))["answered"] == 100)

    await soon(answered, within_s=60)
    first = {answer["request_id"]: answer for answer in await lines(http, batch)}
    await archived(stack, batch)

    assert await send(trainer, batch, 100) == {"accepted": 0, "repeated": 100}
    assert (await trainer.view(batch))["submitted"] == 100
    body = {"batch": batch, "request_id": "r7"}
    async with http.post("/v1/rewards?wait=5", json=body) as response:
        assert response.status == 200
        repeated = await response.json()
    assert repeated == {name: value for name, value in first["r7"].items() if name != "cursor"}
    async with http.get(f"/v1/actions/{repeated['id']}") as response:
        assert (response.status, await response.json()) == (200, repeated)
    async with http.delete(f"/v1/actions/{repeated['id']}") as response:
        assert (response.status, await response.json()) == (200, repeated)
    async with http.post("/v1/rewards", json={**body, "params": {"echo": "other"}}) as response:
        assert response.status == 409, await response.text()


async def lines(http: aiohttp.ClientSession, batch: str) -> list[Json]:
    async with http.get(f"/v1/batches/{batch}/results") as response:
        return [json.loads(line) async for line in response.content]


async def test_an_archived_answer_outside_batches_is_given_again_and_never_made_again(
    stack: RunningStack, http: aiohttp.ClientSession
) -> None:
    body = {"kind": "noop", "request_id": "alone"}
    async with http.post("/v1/actions?wait=30", json=body) as response:
        first = await response.json()

    async def gone() -> bool:
        with redis.Redis.from_url(stack.redis_url) as client:
            kept = client.hgetall(f"action:{first['id']}")
            return bool(kept.get(b"archived")) and b"answer" not in kept

    await soon(gone, within_s=60)
    for _ in range(2):
        async with http.post("/v1/actions?wait=5", json=body) as response:
            assert (response.status, await response.json()) == (200, first)
    async with http.get(f"/v1/actions/{first['id']}?wait=5") as response:
        assert (response.status, await response.json()) == (200, first)
    async with http.post("/v1/actions", json={**body, "params": {"echo": "other"}}) as response:
        assert response.status == 409
    async with http.get("/v1/actions/r0123456789abcdef") as response:
        assert response.status == 404


async def test_while_postgres_is_away_archived_answers_are_unavailable_and_not_unknown(
    stack: RunningStack, trainer: Trainer, http: aiohttp.ClientSession
) -> None:
    batch = await finished_batch(trainer, "away", 50)
    await archived(stack, batch)
    (action, *_) = [answer["id"] for answer in await lines(http, batch)]
    with frozen_postgres(stack):
        for path in (
            f"/v1/actions/{action}",
            f"/v1/actions/{action}?wait=1",
            f"/v1/batches/{batch}",
            f"/v1/batches/{batch}/results",
            f"/v1/batches/{batch}/results?follow=true",
        ):
            async with http.get(path) as response:
                problem = await response.json(content_type="application/problem+json")
                assert (path, response.status, problem["status"]) == (path, 503, 503)
                assert int(response.headers["Retry-After"]) >= 1
        status, fresh = await trainer.call("POST", "/v1/actions?wait=30", json={"kind": "noop"})
        assert (status, fresh["ended"]) == (200, "ok")  # what is new needs no Postgres
        assert (await send(trainer, batch, 50))["repeated"] == 50

    async def back() -> bool:
        async with http.get(f"/v1/actions/{action}") as response:
            return response.status == 200

    await soon(back, within_s=60)
    assert len(await read(http, batch)) == 50


async def test_deleting_a_batch_frees_both_stores_after_its_last_readers(
    stack: RunningStack, trainer: Trainer, http: aiohttp.ClientSession
) -> None:
    batch = await finished_batch(trainer, "deleted", 300)
    await archived(stack, batch)
    for _ in range(2):  # a repeat changes nothing
        async with http.delete(f"/v1/batches/{batch}") as response:
            assert response.status == 200
    assert len(await read(http, batch)) == 300

    async def freed() -> bool:
        with redis.Redis.from_url(stack.redis_url) as client:
            left = client.exists(f"batch:{batch}", f"results:{batch}", f"archived:{batch}")
            member = f"default/{batch}"
            left += any(client.zscore(index, member) is not None for index in ("archived", "unarchived"))
            left += client.hexists("kept:batches", member)
        return not left and await in_postgres(stack, batch) == 0

    await soon(freed, within_s=90)
    async with http.get(f"/v1/batches/{batch}/results") as response:
        assert response.status == 404


async def test_a_tenant_whose_answers_cannot_move_leaves_room_for_the_others(
    stack: RunningStack, http: aiohttp.ClientSession
) -> None:
    echo = "x" * 4000
    beside_accounts = 2 << 20
    with frozen_postgres(stack):
        refused = await fill(http, "greedy", echo)
        assert refused["status"] == 503
        assert "tenant 'greedy'" in refused["detail"]
        assert bytes_of_streams(stack) < beside_accounts
        modest = {"Treadle-Tenant": "modest"}
        for number in range(20):
            body = {"kind": "noop", "request_id": f"m{number}", "params": {"echo": echo}}
            async with http.post("/v1/actions?wait=30", json=body, headers=modest) as response:
                assert response.status == 200, await response.text()
                assert (await response.json())["ended"] == "ok"

    async def taken_again() -> bool:
        body = {"kind": "noop", "request_id": "greedy again"}
        async with http.post("/v1/actions", json=body, headers={"Treadle-Tenant": "greedy"}) as response:
            return response.status in (200, 202)

    await soon(taken_again, within_s=90)


def bytes_of_streams(stack: RunningStack) -> int:
    """Bytes of Valkey's memory that the streams of grants and outcomes take."""
    with redis.Redis.from_url(stack.redis_url) as client:
        return sum(client.memory_usage(key, samples=0) or 0 for key in ("outcomes", *client.keys("grants.*")))


async def fill(http: aiohttp.ClientSession, tenant: str, echo: str) -> Json:
    """Small answers, eight callers at a time, until the tenant is refused. Its problem."""
    for start in range(0, 16000, 8):
        bodies = [{"kind": "noop", "request_id": f"g{start + n}", "params": {"echo": echo}} for n in range(8)]
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(act(http, tenant, body)) for body in bodies]
        for status, answer in (call.result() for call in calls):
            if status != 200:
                return answer
    raise AssertionError("16,000 answers fit in 16 MiB")


async def act(http: aiohttp.ClientSession, tenant: str, body: Json) -> tuple[int, Json]:
    async with http.post("/v1/actions?wait=30", json=body, headers={"Treadle-Tenant": tenant}) as response:
        return response.status, await response.json(content_type=None)
