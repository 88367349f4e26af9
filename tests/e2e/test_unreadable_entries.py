"""Journal entries that this version cannot read are answered, masked, and count in their batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from shared.bus import batches, functions
from shared.bus.connection import command, connect
from shared.bus.functions import Submission
from shared.bus.schema import check_schema
from shared.messages.batches import BatchOpened
from tests.e2e.replicas import running_mesh
from tests.e2e.trainer import trainer_at
from treadle.testing.servers import running_valkey, temporary_home

WORKFLOW = '{"stages": [{"name": "run", "kind": "noop", "units": {"cores": 1}}]}'
NO_MESSAGEPACK = b"\xc1\xff\x00"


def of_version_2(action: str, **fields: Any) -> bytes:
    return msgspec.msgpack.encode({"kind": "action.submitted.v2", "action": action, "work": [1, 2], **fields})


async def open_batch(redis: Redis, batch: str, size: int) -> None:
    opened = BatchOpened(
        batch=batch,
        tenant="default",
        task="t",
        size=size,
        opened_at=1.0,
        stages=[],
        max_extra_delay_s=1.0,
        resources=1.0,
    )
    fields = {"tenant": "default", "task": "t", "workflow": WORKFLOW}
    await batches.open_batch(redis, opened, idempotency_key="", asked=size, fields=fields)


async def submit(redis: Redis, action: str, batch: str, payload: bytes) -> None:
    submission = Submission(action=action, digest=b"d", batch=batch, payload=payload)
    (receipt,) = await functions.journal_actions(redis, [submission], max_journal=1000)
    assert receipt.code == "accepted"


async def append_without_envelope(redis: Redis, action: str, batch: str, index: int, payload: bytes) -> None:
    """Write an entry of a release before the envelope: counted in its batch, with message and index."""
    entry = await command(redis, "XADD", "actions", "*", "m", payload, "i", index)
    await command(redis, "HSET", f"action:{action}", "digest", "d", "entry", entry, "batch", batch)
    await command(redis, "HINCRBY", f"batch:{batch}", "submitted", 1)


@pytest.fixture
def url() -> Iterator[str]:
    with temporary_home() as root, running_valkey(root) as url:
        yield url


async def put_before_a_leader_comes(url: str) -> None:
    """It meets these when it takes over."""
    async with connect(url, name="test") as redis:
        await functions.load(redis)
        await check_schema(redis)
        await open_batch(redis, "bbefore", 3)
        await submit(redis, "aversion2", "bbefore", of_version_2("aversion2", request="r-1"))
        await submit(redis, "adamaged1", "bbefore", NO_MESSAGEPACK)
        plain = of_version_2("aplainold", batch="bbefore", request="r-2")
        await append_without_envelope(redis, "aplainold", "bbefore", 2, plain)
        cancel = msgspec.msgpack.encode({"kind": "action.cancel-asked.v9", "action": "aversion2"})
        await command(redis, "XADD", "actions", "*", "m", cancel)


async def put_while_it_leads(url: str, proxy: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """The answers of both batches, and of one action alone."""
    async with connect(url, name="test") as redis, trainer_at(proxy) as trainer:
        before = await trainer.follow("bbefore")
        await open_batch(redis, "bafter", 2)
        await submit(redis, "adamaged2", "bafter", NO_MESSAGEPACK)
        good = {"request_id": "good", "params": {}}
        assert (await trainer.call("POST", "/v1/rewards?batch=bafter", json=good))[0] in (200, 202)
        after = await trainer.follow("bafter")
        _, alone = await trainer.call("GET", "/v1/actions/adamaged2")
        assert await command(redis, "XLEN", "actions") == 0
        return before, after, alone


def test_unreadable_entries_are_refused_and_their_batches_end(url: str) -> None:
    asyncio.run(put_before_a_leader_comes(url))
    with running_mesh(url, proxies=1, managers=1, cores=1) as mesh:
        before, after, alone = asyncio.run(put_while_it_leads(url, mesh.proxies[0].url))
    assert {answer["id"]: answer["index"] for answer in before} == {"aversion2": 0, "adamaged1": 1, "aplainold": 2}
    assert {answer.get("request_id") for answer in before} == {"r-1", "r-2", None}
    refused = [*before, *(answer for answer in after if answer.get("request_id") != "good"), alone]
    assert len(refused) == 5
    for answer in refused:
        assert (answer["ended"], answer["mask"], answer.get("score")) == ("refused", True, None)
        assert "this version of treadle cannot read the request" in answer["reason"]
    assert [answer["ended"] for answer in after if answer.get("request_id") == "good"] == ["ok"]
