"""Cancellation of a batch that takes longer than the lease: its leader stays, and others' work goes on."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from redis.asyncio import Redis

from services.proxy.app import create_app
from services.proxy.settings import ProxySettings
from shared.bus import functions
from shared.bus.connection import command, connect
from shared.messages.actions import ACTIONS, CancelRequested
from shared.messages.grants import Granted
from tests.services.proxy.in_process import SimulatedNode, serving
from tests.shared.bus.soon import soon
from treadle.stack.collector import settle_collector

LARGE = 100_000
"""With 33 us each, all at once would block the leader for longer than `LEASE_S`."""
LEASE_S = 3.0
LINES = 2_000
TASK = {"stages": [{"name": "run", "kind": "noop", "units": {"cores": 1}}]}


class Trainer:
    """Calls of one tenant."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http

    async def ask(self, method: str, path: str, body: Any = None, data: bytes | None = None) -> dict[str, Any]:
        async with self.http.request(method, path, json=body, data=data) as reply:
            assert reply.status < 300, await reply.text()
            answer: dict[str, Any] = await reply.json()
            return answer

    async def submit(self, count: int) -> str:
        """Open a batch and submit this many requests. Returns the batch."""
        await self.ask("PUT", "/v1/tasks/t", TASK)
        batch = (await self.ask("POST", "/v1/tasks/t/batches", {}))["id"]
        for start in range(0, count, LINES):
            lines = [json.dumps({"request_id": f"r{at}", "params": {}}).encode() for at in range(start, start + LINES)]
            receipt = await self.ask("POST", f"/v1/rewards/bulk?batch={batch}", data=b"\n".join(lines))
            assert receipt["accepted"] == LINES, receipt["rejected"][:1]
        return str(batch)


@asynccontextmanager
async def trainers(redis_url: str, *names: str) -> AsyncIterator[list[Trainer]]:
    settings = ProxySettings.model_validate({"treadle": {"redis_url": redis_url}, "lease_s": LEASE_S, "max_wait_s": 30})
    async with serving(create_app(settings)) as url:
        https = [aiohttp.ClientSession(url, headers={"Treadle-Tenant": name}) for name in names]
        try:
            yield [Trainer(http) for http in https]
        finally:
            for http in https:
                await http.close()


async def journal(redis: Redis) -> tuple[int, bool]:
    """Number of entries, and whether the cancellation of a batch is one of them. It is the last but for what comes
    after it.
    """
    newest = await command(redis, "XREVRANGE", ACTIONS.name, "+", "-", "COUNT", 64)
    messages = [ACTIONS.decode(fields[fields.index(b"m") + 1]) for _, fields in newest]
    asked = any(isinstance(one, CancelRequested) and one.batch for one in messages)
    return int(await redis.xlen(ACTIONS.name)), asked


async def is_cancelled(redis: Redis) -> bool:
    return (await journal(redis))[1]


async def handled(redis: Redis) -> None:
    """Wait until the journal is empty. The cancellation is never its only missing entry."""
    async with asyncio.timeout(180):
        while True:
            entries, asked = await journal(redis)
            if not entries:
                return
            assert asked or entries < 64, f"the cancellation is discarded, and {entries} entries are left"
            await asyncio.sleep(0.05)


def runs_on(grant: Granted, _: dict[str, Any]) -> dict[str, Any] | None:
    """Ada's work runs until it is revoked; Bob's ends at once."""
    return None if grant.tenant == "ada" else {"score": 1.0}


async def epoch(redis: Redis) -> bytes | str | None:
    return await redis.get("epoch:dispatcher")


@pytest.fixture
def collector_of_a_service() -> Iterator[None]:
    """Collect garbage as `treadle serve` does: with CPython's thresholds, each collection of the test process's heap
    holds the loop for up to a second, and the leader loses its lease to that.
    """
    before = gc.get_threshold()
    settle_collector()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@pytest.mark.usefixtures("collector_of_a_service")
async def test_a_large_batch_is_cancelled_by_one_leader_while_others_are_served(redis_url: str) -> None:
    async with (
        connect(redis_url, name="test") as redis,
        trainers(redis_url, "ada", "bob") as (ada, bob),
        SimulatedNode.up(redis_url, runs_on) as node,
    ):
        batch = await ada.submit(LARGE)
        term = await epoch(redis)

        cancelled = asyncio.create_task(ada.ask("DELETE", f"/v1/batches/{batch}"))
        await soon(lambda: is_cancelled(redis))
        answer = await bob.ask("POST", "/v1/actions?wait=30", {"kind": "noop", "units": {"cores": 1}})
        assert answer["ended"] == "ok"
        assert (await journal(redis))[1], "Bob's action is answered before the cancellation has ended"

        await handled(redis)
        assert (await cancelled)["state"] == "cancelled"
        assert await redis.xlen(f"results:{batch}") == LARGE
        assert await epoch(redis) == term
        assert sum(grant.tenant == "ada" for grant in node.granted) <= 4, "nothing of the batch begins meanwhile"


@pytest.mark.usefixtures("collector_of_a_service")
async def test_a_successor_ends_the_cancellation_of_a_leader_that_stops(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, answer_actions = 5 * LINES, functions.answer_actions

    async def answer_slowly(*args: Any, **named: Any) -> list[bool]:
        await asyncio.sleep(0.2)
        return await answer_actions(*args, **named)

    async with connect(redis_url, name="test") as redis:
        with monkeypatch.context() as slow:
            slow.setattr(functions, "answer_actions", answer_slowly)
            async with trainers(redis_url, "ada") as (ada,):
                batch = await ada.submit(count)
                cancelled = asyncio.create_task(ada.ask("DELETE", f"/v1/batches/{batch}"))
                await soon(lambda: is_cancelled(redis))
            await asyncio.gather(cancelled, return_exceptions=True)
        left, asked = await journal(redis)
        assert asked, "the cancellation has not ended"
        assert left > 1

        async with trainers(redis_url, "ada") as (ada,):
            await handled(redis)
            assert (await ada.ask("GET", f"/v1/batches/{batch}"))["state"] == "cancelled"
            assert await redis.xlen(f"results:{batch}") == count, "each is answered once"
