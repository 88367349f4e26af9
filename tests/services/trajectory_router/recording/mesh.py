"""A router with an engine, and a proxy, in this process: calls are recorded through one and read through the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import aiohttp
import pytest

from services.proxy.app import create_app
from services.proxy.settings import ProxySettings
from services.trajectory_router.app import create_app as create_router
from services.trajectory_router.settings import TrajectoryRouterSettings
from tests.services.proxy.in_process import serving

USER = {"role": "user", "content": "add 1"}


class Served(Protocol):
    """An engine at an address."""

    url: str


EngineT = TypeVar("EngineT", bound=Served)


@dataclass
class Mesh(Generic[EngineT]):
    """A router with one engine, and a proxy."""

    engine: EngineT
    router: aiohttp.ClientSession
    proxy: aiohttp.ClientSession
    model: str

    async def opened(self, **fields: Any) -> dict[str, Any]:
        body = {"record": "tokens", **fields}
        async with self.proxy.post("/v1/trajectories", json={k: v for k, v in body.items() if v}) as response:
            assert response.status == 201, await response.text()
            return dict(await response.json())

    @asynccontextmanager
    async def calling(
        self, trajectory: dict[str, Any], path: str = "/chat/completions", **fields: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A call at the trajectory's own address."""
        headers = {"authorization": f"Bearer {trajectory['model']['api_key']}", "accept-encoding": "gzip, br"}
        body = {"model": self.model, "messages": [USER], **fields}
        async with self.router.post(f"/r/{trajectory['id']}/v1{path}", json=body, headers=headers) as response:
            yield response

    async def called(self, trajectory: dict[str, Any], **fields: Any) -> dict[str, Any]:
        async with self.calling(trajectory, **fields) as response:
            assert response.status == 200, await response.text()
            return dict(await response.json())

    async def lines(self, trajectory: dict[str, Any], what: str = "", tenant: str = "default") -> list[dict[str, Any]]:
        path = f"/v1/trajectories/{trajectory['id']}/tokens{what}"
        async with self.proxy.get(path, headers={"treadle-tenant": tenant}) as response:
            assert response.status == 200, await response.text()
            return [json.loads(line) for line in (await response.text()).splitlines()]

    async def written(self, trajectory: dict[str, Any]) -> list[dict[str, Any]]:
        """Rows of a call that has ended early. Its record is committed in the background."""
        async with asyncio.timeout(10):
            while not (rows := await self.lines(trajectory)):  # noqa: ASYNC110  # Postgres does not say
                await asyncio.sleep(0.05)
        return rows


@asynccontextmanager
async def running_mesh(redis_url: str, database_url: str, engine: EngineT) -> AsyncIterator[Mesh[EngineT]]:
    """Serve a router and a proxy on free ports. The engine is registered, and speaks as vLLM does."""
    common = {"treadle": {"redis_url": redis_url, "database_url": database_url}}
    async with (
        serving(create_router(TrajectoryRouterSettings.model_validate(common)), grace_s=1) as router_url,
        serving(create_app(ProxySettings.model_validate(common))) as proxy_url,
        aiohttp.ClientSession(router_url) as router,
        aiohttp.ClientSession(proxy_url) as proxy,
    ):
        async with router.post("/workers", json={"url": engine.url}) as response:
            assert response.status == 202
        async with router.get("/workers") as response:
            (worker,) = (await response.json())["workers"]
            assert worker["engine"] == "vllm"
        async with router.get("/v1/models") as response:
            (model,) = (await response.json())["data"]
        yield Mesh(engine, router, proxy, model["id"])


def approximately(values: list[float]) -> Any:
    """As float32 keeps them."""
    return pytest.approx(values, rel=1e-6)
