"""/v1/leases/{id} with the id of an action that is no lease: it is not found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from redis.asyncio import Redis

from services.proxy.app import create_app
from services.proxy.settings import ProxySettings
from shared.bus.connection import command
from tests.services.proxy.in_process import serving

LATE_S = 30
Json = dict[str, Any]


@pytest.fixture
async def http(redis_url: str) -> AsyncIterator[aiohttp.ClientSession]:
    settings = ProxySettings.model_validate({"treadle": {"redis_url": redis_url}})
    async with serving(create_app(settings)) as url, aiohttp.ClientSession(url) as session:
        yield session


async def ask(http: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> tuple[int, Json]:
    async with asyncio.timeout(LATE_S), http.request(method, path, json=body) as reply:
        return reply.status, await reply.json(content_type=None)


async def found(http: aiohttp.ClientSession, lease: str) -> dict[str, tuple[int, str]]:
    """Status and kind of each operation."""
    bodies: dict[str, Json] = {
        "renew": {"fence": 1}, "release": {"fence": 1}, "settle": {"fence": 1, "used": {"search": 1}},
    }  # fmt: skip
    replies = {verb: await ask(http, "POST", f"/v1/leases/{lease}/{verb}", body) for verb, body in bodies.items()}
    replies["get"] = await ask(http, "GET", f"/v1/leases/{lease}")
    return {verb: (status, body.get("kind", "")) for verb, (status, body) in replies.items()}


NOT_FOUND = dict.fromkeys(("renew", "release", "settle", "get"), (404, "lease"))


async def test_an_action_that_waits_is_no_lease(http: aiohttp.ClientSession) -> None:
    _, action = await ask(http, "POST", "/v1/actions", {"kind": "noop", "units": {"cores": 1}})
    assert await found(http, action["id"]) == NOT_FOUND


async def test_an_action_that_takes_quotas_is_no_lease(http: aiohttp.ClientSession) -> None:
    assert (await ask(http, "PUT", "/v1/quotas/search", {"concurrency": 1}))[0] == 200
    body = {"kind": "noop", "units": {"cores": 1}, "quotas": {"search": 1}}
    _, action = await ask(http, "POST", "/v1/actions", body)
    assert await found(http, action["id"]) == NOT_FOUND


async def test_an_action_that_was_answered_is_no_lease(http: aiohttp.ClientSession) -> None:
    _, action = await ask(http, "POST", "/v1/actions", {"kind": "noop", "units": {"cores": 1}})
    await ask(http, "DELETE", f"/v1/actions/{action['id']}")
    status, view = await ask(http, "GET", f"/v1/actions/{action['id']}?wait=20")
    assert (status, view["ended"]) == (200, "cancelled")
    assert await found(http, action["id"]) == NOT_FOUND


async def test_a_lease_that_waits_or_was_refused_is_found(http: aiohttp.ClientSession, valkey: Redis) -> None:
    assert (await ask(http, "PUT", "/v1/quotas/search", {"concurrency": 1}))[0] == 200
    body = {"quotas": {"search": 1}, "wait_s": 20, "ttl_s": 60}
    status, _ = await ask(http, "POST", "/v1/acquire", body)
    assert status == 200
    waiting = asyncio.create_task(ask(http, "POST", "/v1/acquire", {**body, "wait_s": 3, "request_id": "one"}))
    async with asyncio.timeout(LATE_S):
        while await command(valkey, "XLEN", "actions") < 2:  # noqa: ASYNC110  # polls the mesh
            await asyncio.sleep(0.05)
    ((_, fields),) = await command(valkey, "XREVRANGE", "actions", "+", "-", "COUNT", 1)
    (lease,) = [field.decode().removeprefix("action:") for field in fields if field.startswith(b"action:")]
    assert (await ask(http, "GET", f"/v1/leases/{lease}"))[1]["state"] == "waiting"
    verbs = await found(http, lease)
    assert [verbs[verb][0] for verb in ("renew", "release", "settle")] == [409, 409, 409]
    assert (await waiting)[0] == 429
    assert (await ask(http, "GET", f"/v1/leases/{lease}"))[1]["state"] == "refused", "it was answered"
