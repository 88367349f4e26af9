"""The hot routes over HTTP, through the whole proxy: long polls within their bound, and bulk calls line by line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from services.proxy.app import create_app
from services.proxy.http import bulk
from services.proxy.settings import ProxySettings
from shared.messages.grants import Granted
from tests.services.proxy.in_process import SimulatedNode, serving
from tests.shared.bus.soon import soon

TASK = {"stages": [{"name": "run", "kind": "noop", "units": {"cores": 1}}]}
BODY_LIMIT = 100_000
SUBMITTED = 'treadle_proxy_submitted_total{outcome="accepted"}'


class Caller:
    """A caller of a proxy without nodes, unless the test starts one: accepted actions stay queued."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        data = body if isinstance(body, bytes) else None
        async with self.http.request(method, path, json=body if data is None else None, data=data) as reply:
            return reply.status, await reply.json()

    async def bulk(self, *lines: bytes, batch: str | None = None) -> tuple[int, dict[str, Any]]:
        query = "" if batch is None else f"?batch={batch}"
        return await self.ask("POST", f"/v1/rewards/bulk{query}", b"\n".join(lines))

    async def sample(self, name: str) -> float:
        """Value of one line of `/metrics`; 0 without it."""
        async with self.http.get("/metrics") as reply:
            lines = [one.rsplit(" ", 1) for one in (await reply.text()).splitlines()]
        return next((float(one[1]) for one in lines if one[0] == name), 0.0)

    async def open(self, size: int | None = None) -> str:
        """Id of a new batch of task `t`."""
        assert (await self.ask("PUT", "/v1/tasks/t", TASK))[0] < 300
        status, view = await self.ask("POST", "/v1/tasks/t/batches", {"size": size} if size else {})
        assert status == 201, view
        return str(view["id"])


@asynccontextmanager
async def calling(redis_url: str, **settings: Any) -> AsyncIterator[Caller]:
    checked = ProxySettings.model_validate({"treadle": {"redis_url": redis_url}, "max_wait_s": 30.0, **settings})
    async with serving(create_app(checked)) as url, aiohttp.ClientSession(url) as http:
        yield Caller(http)


@pytest.fixture
async def caller(redis_url: str) -> AsyncIterator[Caller]:
    async with calling(redis_url, max_bulk_bytes=BODY_LIMIT) as caller:
        yield caller


def line(request_id: str | None, **fields: Any) -> bytes:
    return json.dumps({"params": {}, **({"request_id": request_id} if request_id else {}), **fields}).encode()


# ---- long polls --------------------------------------------------------------------------------------------------


async def test_long_polls_beyond_the_bound_are_rejected_and_other_calls_are_not(redis_url: str) -> None:
    async with calling(redis_url, max_waiting=1) as caller:
        _, first = await caller.ask("POST", "/v1/actions", {"kind": "noop"})
        _, other = await caller.ask("POST", "/v1/actions", {"kind": "noop"})
        polling = asyncio.create_task(caller.ask("GET", f"/v1/actions/{first['id']}?wait=30"))

        async def is_full() -> bool:
            return await caller.sample("treadle_proxy_waiting_callers") == 1

        await soon(is_full)
        accepted = await caller.sample(SUBMITTED)
        status, problem = await caller.ask("GET", f"/v1/actions/{other['id']}?wait=30")
        assert (status, problem["type"].rpartition("/")[2]) == (503, "overloaded")
        assert problem["detail"].startswith("this replica has too many long polls; read the action without `wait`")
        status, problem = await caller.ask("POST", "/v1/actions?wait=30", {"kind": "noop"})
        assert (status, problem["type"].rpartition("/")[2]) == (503, "overloaded")
        assert problem["detail"].startswith("this replica has too many long polls; submit without `wait`")
        assert await caller.sample(SUBMITTED) == accepted, "a rejected call submits nothing"

        assert (await caller.ask("GET", f"/v1/actions/{other['id']}"))[0] == 202
        assert (await caller.ask("POST", "/v1/actions", {"kind": "noop"}))[0] == 202
        await caller.ask("DELETE", f"/v1/actions/{first['id']}")
        assert (await polling)[1]["ended"] == "cancelled"
        status, _ = await caller.ask("GET", f"/v1/actions/{other['id']}?wait=0.01")
        assert status == 202, "its place is free again"


# ---- bulk calls --------------------------------------------------------------------------------------------------


async def test_each_line_of_a_bulk_call_is_accepted_repeated_or_rejected_alone(caller: Caller) -> None:
    batch = await caller.open()
    await caller.bulk(line("known"), batch=batch)

    status, receipt = await caller.bulk(
        b"\xef\xbb\xbf" + line("a"), b"", line("known"), b"{nonsense", line("b", wat=1), b"   ", line("c"), b"",
        batch=batch,
    )  # fmt: skip

    assert (status, receipt["accepted"], receipt["repeated"]) == (200, 2, 1)
    assert [(each["line"], each["problem"]["status"]) for each in receipt["rejected"]] == [(4, 422), (5, 422)]
    _, view = await caller.ask("GET", f"/v1/batches/{batch}")
    assert view["submitted"] == 3


async def test_a_rejected_line_names_its_request_and_the_reason(caller: Caller) -> None:
    batch = await caller.open(size=1)

    _, receipt = await caller.bulk(line("a"), line("b"), batch=batch)

    ((rejected),) = receipt["rejected"]
    assert (receipt["accepted"], rejected["line"], rejected["request_id"]) == (1, 2, "b")
    assert rejected["problem"]["status"] == 409


async def test_a_bulk_call_larger_than_one_part_counts_every_line(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "LINES_AT_ONCE", 4)
    batch = await caller.open()

    lines = [line(f"r{at}") if at % 5 else b"no json" for at in range(1, 24)]
    status, receipt = await caller.bulk(*lines, batch=batch)

    assert (status, receipt["accepted"], receipt["repeated"]) == (200, 19, 0)
    assert [each["line"] for each in receipt["rejected"]] == [5, 10, 15, 20]
    _, again = await caller.bulk(*lines, batch=batch)
    assert (again["accepted"], again["repeated"], len(again["rejected"])) == (0, 19, 4)


@pytest.mark.parametrize("body", [b"", b"\n", b" \n\t\r\n", b"\xef\xbb\xbf"])
async def test_a_bulk_call_without_lines_is_a_bad_request(caller: Caller, body: bytes) -> None:
    status, problem = await caller.bulk(body)

    assert (status, problem["detail"]) == (422, "the body is empty: send one reward request (JSON) per line")


async def test_a_bulk_call_beyond_the_limit_is_rejected_whole(caller: Caller) -> None:
    accepted = await caller.sample(SUBMITTED)

    status, problem = await caller.bulk(line("a", task="t"), b" " * BODY_LIMIT)

    assert (status, problem["limit_bytes"]) == (413, BODY_LIMIT)
    assert await caller.sample(SUBMITTED) == accepted


async def test_a_batch_that_all_lines_miss_is_one_error_and_two_are_not(caller: Caller) -> None:
    await caller.open()

    status, problem = await caller.bulk(line("a"), line("b"), batch="absent")
    assert (status, problem["type"].rpartition("/")[2]) == (404, "not-found")
    assert "'absent'" in problem["detail"]

    status, receipt = await caller.bulk(line("a", task="absent"), line("b", task="missing"))
    assert (status, [each["problem"]["status"] for each in receipt["rejected"]]) == (200, [404, 404])
    status, receipt = await caller.bulk(line("a", task="t"), line("b", task="absent"))
    assert (status, receipt["accepted"], len(receipt["rejected"])) == (200, 1, 1)


async def test_the_requests_of_a_bulk_call_are_answered_in_their_batch(redis_url: str, caller: Caller) -> None:
    batch = await caller.open(size=3)

    def passed(grant: Granted, params: dict[str, Any]) -> dict[str, Any]:
        return {"score": float(params["echo"])}

    async with SimulatedNode.up(redis_url, passed):
        _, receipt = await caller.bulk(*(line(f"r{at}", params={"echo": str(at)}) for at in range(3)), batch=batch)
        assert receipt["accepted"] == 3, receipt
        async with asyncio.timeout(60), caller.http.get(f"/v1/batches/{batch}/results?follow=true") as reply:
            results = [json.loads(each) async for each in reply.content if each.strip()]

    assert sorted((each["request_id"], each["score"]) for each in results) == [("r0", 0), ("r1", 1), ("r2", 2)]
    assert {each["batch"] for each in results} == {batch}


async def test_a_replica_that_does_not_lead_gives_the_reasons_of_the_leader(redis_url: str) -> None:
    body = {"kind": "noop", "units": {"gpus": 3}}
    why = "no node of class 'default' offers noop with gpus=3 now; it waits for one until its budget ends"
    async with calling(redis_url) as leader, calling(redis_url) as follower:
        _, accepted = await leader.ask("POST", "/v1/actions", body)

        async def has_a_reason() -> bool:
            status, view = await follower.ask("GET", f"/v1/actions/{accepted['id']}")
            assert (status, view["state"]) == (202, "queued")
            return bool(view.get("reason") == why)

        await soon(has_a_reason)
        assert (await leader.ask("GET", f"/v1/actions/{accepted['id']}"))[1]["reason"] == why
