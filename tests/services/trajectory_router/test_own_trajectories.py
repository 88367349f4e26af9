"""Addresses of trajectories: the key that opens one, its end, sampling defaults, and what engines receive."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest
from yarl import URL

from services.proxy.app import create_app
from services.proxy.settings import ProxySettings
from tests.services.proxy.in_process import serving
from tests.services.trajectory_router.conftest import RouterUnderTest, StartRouter


@pytest.fixture
async def proxy(redis_url: str, database_url: str) -> Any:
    settings = ProxySettings.model_validate({"treadle": {"redis_url": redis_url, "database_url": database_url}})
    async with serving(create_app(settings)) as url, aiohttp.ClientSession(url) as http:
        yield http


async def opened(proxy: aiohttp.ClientSession, **fields: Any) -> dict[str, Any]:
    async with proxy.post("/v1/trajectories", json=fields) as response:
        assert response.status == 201, await response.text()
        return dict(await response.json())


async def own(
    router: RouterUnderTest, trajectory: dict[str, Any], path: str = "/chat/completions", **fields: Any
) -> int:
    """Status of a call at a trajectory's own address, as an OpenAI client makes it."""
    base = f"{router.url}/r/{trajectory['id']}/v1"
    headers = {"authorization": f"Bearer {trajectory['model']['api_key']}", "x-session-id": "agent's"}
    url = URL(base + path, encoded=True)
    async with router.http.post(url, json={"model": "tiny", **fields}, headers=headers) as response:
        await response.read()
        return int(response.status)


async def test_the_answer_that_opens_a_trajectory_has_its_key_and_no_other_does(
    start_router: StartRouter, proxy: aiohttp.ClientSession
) -> None:
    router = await start_router(1)
    trajectory = await opened(proxy)
    access = trajectory["model"]
    assert access["base_url"].endswith(f"/r/{trajectory['id']}/v1")
    async with proxy.get(f"/v1/trajectories/{trajectory['id']}") as response:
        assert access["api_key"] not in await response.text()
    assert await own(router, trajectory) == 200
    ((_, target, headers),) = router.engines[0].received
    assert target == "/v1/chat/completions"
    assert access["api_key"] not in str(headers)


async def test_a_key_opens_its_own_trajectory_alone(start_router: StartRouter, proxy: aiohttp.ClientSession) -> None:
    router = await start_router(1)
    first, second = await opened(proxy), await opened(proxy)
    stranger = {"id": first["id"], "model": second["model"]}
    assert await own(router, stranger) == 401
    for headers in ({}, {"authorization": "Bearer "}, {"x-api-key": "tk-"}, {"authorization": "tk-\x80"}):
        url = f"{router.url}/r/{first['id']}/v1/chat/completions"
        async with router.http.post(url, json={"model": "tiny"}, headers=headers) as response:
            assert response.status == 401
    assert not router.engines[0].received


async def test_an_anthropic_client_sends_its_key_in_another_header(
    start_router: StartRouter, proxy: aiohttp.ClientSession
) -> None:
    router = await start_router(1)
    trajectory = await opened(proxy)
    base = f"{router.url}/r/{trajectory['id']}"
    headers = {"x-api-key": trajectory["model"]["api_key"]}
    async with router.http.head(base, headers=headers) as response:
        assert response.status == 200
    async with router.http.post(base + "/v1/messages?beta=true", json={"model": "tiny"}, headers=headers) as response:
        assert response.status == 200
    async with router.http.post(base + "/v1/messages", json={"model": "tiny"}) as response:
        assert (response.status, (await response.json())["type"]) == (401, "error")
    assert router.engines[0].received[0][1] == "/v1/messages?beta=true"


async def test_the_key_ends_with_its_trajectory(start_router: StartRouter, proxy: aiohttp.ClientSession) -> None:
    router = await start_router(1)
    trajectory = await opened(proxy)
    assert await own(router, trajectory) == 200
    async with proxy.delete(f"/v1/trajectories/{trajectory['id']}") as response:
        assert response.status == 200
    assert await own(router, trajectory) == 403
    assert len(router.engines[0].received) == 1


async def test_closing_a_trajectory_ends_its_calls_and_frees_its_worker(
    start_router: StartRouter, proxy: aiohttp.ClientSession
) -> None:
    router = await start_router(1)
    (engine,) = router.engines
    closed, other = await opened(proxy), await opened(proxy)
    engine.gate = asyncio.Event()
    calls = [asyncio.create_task(own(router, one)) for one in (closed, closed, other)]
    async with asyncio.timeout(10):
        while engine.running < 3:  # noqa: ASYNC110  # a field of the engine
            await asyncio.sleep(0.01)
    async with proxy.delete(f"/v1/trajectories/{closed['id']}") as response:
        assert response.status == 200
    async with asyncio.timeout(10):
        assert [await call for call in calls[:2]] == [403, 403]
        while engine.gone < 2:  # noqa: ASYNC110  # a field of the engine
            await asyncio.sleep(0.01)
        while (await router.workers())[engine.url]["trajectories"] != 1:  # noqa: ASYNC110  # a state of the router
            await asyncio.sleep(0.1)
    engine.gate.set()
    assert await calls[2] == 200
    assert engine.gone == 2


async def test_nothing_but_model_routes_is_reached(start_router: StartRouter, proxy: aiohttp.ClientSession) -> None:
    router = await start_router(1)
    trajectory = await opened(proxy)
    for path in ("/../../../workers", "/%2e%2e/%2e%2e/workers", "/../../slots", "/admin", "/chat/completions/../x"):
        assert await own(router, trajectory, path) in (401, 404), path
    assert not router.engines[0].received


async def test_a_call_without_sampling_gets_that_of_its_trajectory(
    start_router: StartRouter, proxy: aiohttp.ClientSession
) -> None:
    router = await start_router(1)
    trajectory = await opened(proxy, sampling={"temperature": 0.7, "max_tokens": 64, "stop": ["\n"]})
    for fields in ({}, {"temperature": 0.1, "max_tokens": 5}, {"max_completion_tokens": 9, "temperature": None}):
        assert await own(router, trajectory, **fields) == 200
    bodies = [msgspec.json.decode(body) for body in router.engines[0].bodies]
    assert bodies == [
        {"model": "tiny", "temperature": 0.7, "max_tokens": 64, "stop": ["\n"]},
        {"model": "tiny", "temperature": 0.1, "max_tokens": 5, "stop": ["\n"]},
        {"model": "tiny", "max_completion_tokens": 9, "temperature": 0.7, "stop": ["\n"]},
    ]


async def test_an_agents_session_header_does_not_move_its_calls(
    start_router: StartRouter, proxy: aiohttp.ClientSession
) -> None:
    """Its own address wins: all calls below carry the same session."""
    router = await start_router(3)
    trajectories = [await opened(proxy) for _ in range(6)]
    for _ in range(3):
        for trajectory in trajectories:
            assert await own(router, trajectory) == 200
    counts = sorted(len(engine.received) for engine in router.engines)
    assert counts == [6, 6, 6], "trajectories spread over the workers, and each stays"


async def test_without_a_router_a_trajectory_has_no_model(proxy: aiohttp.ClientSession) -> None:
    assert (await opened(proxy))["model"] is None


@pytest.mark.parametrize("sampling", [{"Temperature": 1}, [1], {"f" + "x" * n: 1 for n in range(40)}])
async def test_sampling_that_is_no_field_is_refused(proxy: aiohttp.ClientSession, sampling: Any) -> None:
    async with proxy.post("/v1/trajectories", json={"sampling": sampling}) as response:
        assert response.status == 422
