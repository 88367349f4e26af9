"""Calls of external services through a real mesh: scores, repeats that pay again, masked failures, secrets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.e2e.upstream import CallingMesh, Upstream, calling_mesh, running_upstream
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.requests import QuotaRate, RewardRequest, StageTemplate, Task
from treadle.testing.servers import temporary_home

SECRET = "sk-hunter2-0123456789abcdef"
STATUSES = (200, 404, 500, 429)
WAIT_S = 90


@pytest.fixture(scope="module")
def mesh() -> Iterator[CallingMesh]:
    with temporary_home() as home, calling_mesh(home) as running:
        yield running


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with running_upstream() as running:
        yield running


@pytest.fixture
async def client(mesh: CallingMesh) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(mesh.url) as client, asyncio.timeout(WAIT_S):
        yield client


async def test_a_call_is_scored(client: AsyncTreadle, upstream: Upstream) -> None:
    async def judged(request: web.Request) -> web.Response:
        answer = {"choices": [{"message": {"content": "Mark: 8"}}], "usage": {"total_tokens": 321}}
        return web.json_response(answer, headers={"set-cookie": "a=b", "x-request-id": "r1"})

    upstream.answer = judged
    params = {
        "method": "POST", "url": f"{upstream.url}/v1/{{user}}/chat", "values": {"user": "../x", "text": "42"},
        "json": {"messages": [{"content": "Grade {text}"}]},
        "extract": {"pointer": "/choices/0/message/content", "pattern": "Mark: ([0-9]+)", "scale": 0.1, "pass_at": 0.5},
    }  # fmt: skip

    answer = await client.run("http", params)

    assert (answer.ended, answer.passed, answer.mask) == ("ok", True, False)
    assert answer.score == pytest.approx(0.8)
    assert answer.output is not None
    assert answer.output["headers"] == {**answer.output["headers"], "x-request-id": "r1"}
    assert "set-cookie" not in answer.output["headers"]
    ((path, _, body),) = upstream.calls
    assert (path, json.loads(body)) == ("/v1/..%2Fx/chat", {"messages": [{"content": "Grade 42"}]})


async def test_a_repeat_pays_the_quota_again(client: AsyncTreadle, upstream: Upstream) -> None:
    async def busy_once(request: web.Request) -> web.Response:
        return web.json_response({}, status=503 if len(upstream.calls) == 1 else 200)

    upstream.answer = busy_once
    await client.quotas.set("paid", rates=[QuotaRate(limit=10)])

    answer = await client.run("http", {"url": upstream.url}, quotas={"paid": 2})

    assert (answer.ended, len(upstream.calls)) == ("ok", 2)
    (rate,) = (await client.quotas.view("paid")).rates
    assert rate.taken == 4.0


async def test_a_failed_upstream_is_masked_in_a_batch_and_never_scored(
    client: AsyncTreadle, upstream: Upstream
) -> None:
    async def fails_for_b(request: web.Request) -> web.Response:
        return web.json_response({"score": 1}, status=500 if request.query["q"] == "b" else 200)

    upstream.answer = fails_for_b
    params = {"url": f"{upstream.url}/?q={{q}}", "attempts": 2, "extract": {"pointer": "/score"}}
    await client.put_task("judged", Task(stages=[StageTemplate(name="judge", kind="http", params=params)]))
    batch = await client.open_batch("judged", size=2)
    await client.submit(batch.id, [RewardRequest(request_id=q, params={"values": {"q": q}}) for q in ("a", "b")])

    results = {result.request_id: result async for page in client.results(batch.id) for result in page}

    assert (results["a"].ended, results["a"].score, results["a"].mask) == ("ok", 1.0, False)
    assert (results["b"].ended, results["b"].score, results["b"].mask) == ("upstream-failed", None, True)
    assert "the upstream answered 500" in results["b"].reason
    assert [path for path, _, _ in upstream.calls].count("/?q=b") == 2


async def test_an_upstream_that_hangs_is_asked_once_more(client: AsyncTreadle, upstream: Upstream) -> None:
    async def hangs_once(request: web.Request) -> web.Response:
        if len(upstream.calls) == 1:
            await asyncio.sleep(WAIT_S)
        return web.json_response({})

    upstream.answer = hangs_once
    answer = await client.run("http", {"url": upstream.url, "method": "POST", "text": "x", "timeout_s": 1})
    assert (answer.ended, len(upstream.calls)) == ("ok", 2)


async def test_an_upstream_that_hangs_after_it_has_pushed_back_is_asked_once_more(
    client: AsyncTreadle, upstream: Upstream
) -> None:
    async def declines_hangs_and_fails(request: web.Request) -> web.Response:
        if len(upstream.calls) == 2:
            await asyncio.sleep(WAIT_S)
        return web.json_response({}, status={1: 429, 3: 500}.get(len(upstream.calls), 200))

    upstream.answer = declines_hangs_and_fails
    answer = await client.run("http", {"url": upstream.url, "timeout_s": 1})
    assert (answer.ended, len(upstream.calls)) == ("ok", 4), answer.reason


async def test_what_cannot_be_called_is_refused_with_an_instruction(client: AsyncTreadle, upstream: Upstream) -> None:
    private = await client.run("http", {"url": "http://10.0.0.1/"})
    unknown = await client.run("http", {"url": upstream.url, "headers": {"Authorization": {"secret": "other"}}})

    assert (private.ended, unknown.ended, upstream.calls) == ("refused", "refused", [])
    assert "10.0.0.1" in private.reason
    assert "there is no secret 'other'" in unknown.reason


PAGES = ("/v1/quotas", "/v1/nodes", "/v1/health", "/v1/pools", "/v1/plans", "/metrics")


async def everything_shown(mesh: CallingMesh, upstream: Upstream) -> list[str]:
    """Every text that a mesh shows after calls with the secret that end in four ways."""
    seen: list[str] = []
    async with aiohttp.ClientSession() as http:

        async def show(method: str, url: str, **options: Any) -> str:
            async with http.request(method, url, **options) as response:
                seen.append(await response.text())
            return seen[-1]

        await show("PUT", f"{mesh.url}/v1/quotas/judge", json={"concurrency": 5})
        for status in STATUSES:
            headers = {"Authorization": {"secret": "judge_key"}}
            params = {"url": f"{upstream.url}/?s={status}", "headers": headers, "attempts": 1}
            body = {"kind": "http", "params": params, "quotas": {"judge": 1}, "budget_s": 3}
            answer = json.loads(await show("POST", f"{mesh.url}/v1/actions?wait=20", json=body))
            for path in (f"/v1/actions/{answer['id']}", *PAGES):
                await show("GET", mesh.url + path)
        await show("GET", f"{mesh.manager.url}/metrics")
    return seen


async def test_a_secret_arrives_at_its_upstream_and_is_seen_nowhere_else(
    upstream: Upstream, capfd: pytest.CaptureFixture[str]
) -> None:
    """In answers, quotas, metrics, Valkey's files, and all that the processes write at debug level."""

    async def echoes(request: web.Request) -> web.Response:
        sent = request.headers["authorization"]
        return web.json_response({"you sent": sent}, headers={"x-request-id": sent}, status=int(request.query["s"]))

    upstream.answer = echoes
    secret = {
        "value": SECRET,
        "tenants": ["*"],
        "hosts": [upstream.url],
        "header": "Authorization",
        "prefix": "Bearer ",
    }
    settings = {"QUOTA_SECRET_JUDGE_KEY": json.dumps(secret), "QUOTA_MANAGER_HEARTBEAT_S": "0.4"}
    with temporary_home() as home, ExitStack() as stack:
        entered = partial(calling_mesh, home, TREADLE_LOG_LEVEL="DEBUG", **settings)
        mesh = await asyncio.to_thread(lambda: stack.enter_context(entered()))
        try:
            seen = await everything_shown(mesh, upstream)
            files = {str(path): path.read_bytes() for path in home.rglob("*") if path.is_file()}
        finally:
            await asyncio.to_thread(stack.close)
    written = capfd.readouterr()

    assert {headers["authorization"] for _, headers, _ in upstream.calls} == {f"Bearer {SECRET}"}
    assert {path for path, _, _ in upstream.calls} == {f"/?s={status}" for status in STATUSES}
    assert '{"you sent":"Bearer ***"}' in seen[1].replace(": ", ":")
    assert any(b"judge_key" in content for name, content in files.items() if "aof" in name)
    assert "node_started" in written.err
    for place, text in (*enumerate(seen), ("output", written.out), ("errors", written.err)):
        assert SECRET not in text, place
    for name, content in files.items():
        assert SECRET.encode() not in content, name
