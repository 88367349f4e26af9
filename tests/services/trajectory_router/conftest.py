"""The router in this process, with engines whose answers are known."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from services.trajectory_router.app import create_app
from services.trajectory_router.settings import TrajectoryRouterSettings
from shared.runtime.settings import TreadleSettings
from tests.services.proxy.in_process import serving
from tests.services.trajectory_router.engine import Engine, running_engine


@dataclass
class RouterUnderTest:
    """A served router, and a client of it."""

    url: str
    http: aiohttp.ClientSession
    engines: list[Engine]

    async def register(self, engine: Engine, **fields: Any) -> str:
        """Register an engine; return its id."""
        async with self.http.post("/workers", json={"url": engine.url, **fields}) as response:
            assert response.status == 202, await response.text()
            return str((await response.json())["worker_id"])

    async def workers(self) -> dict[str, dict[str, Any]]:
        """All workers by their address."""
        async with self.http.get("/workers") as response:
            return {one["url"]: one for one in (await response.json())["workers"]}

    async def chat(self, trajectory: str = "", **fields: Any) -> aiohttp.ClientResponse:
        """Make a call of a model. The caller reads the answer."""
        headers = {"x-trajectory-id": trajectory} if trajectory else {}
        return await self.http.post("/v1/chat/completions", json={"model": "tiny", **fields}, headers=headers)


StartRouter = Callable[..., Any]


@pytest.fixture
async def start_router(redis_url: str) -> AsyncIterator[StartRouter]:
    """Starts a router with so many engines, all registered: `await start_router(2, stall_s=1)`."""
    async with AsyncExitStack() as entered:

        async def start(engines: int = 0, most_calls: int | None = None, **settings: Any) -> RouterUnderTest:
            app = create_app(TrajectoryRouterSettings(treadle=TreadleSettings(redis_url=redis_url), **settings))
            url = await entered.enter_async_context(serving(app, grace_s=1, port=settings.get("port", 0)))
            http = await entered.enter_async_context(aiohttp.ClientSession(url))
            running = [await entered.enter_async_context(running_engine(f"e{number}")) for number in range(engines)]
            router = RouterUnderTest(url, http, running)
            for engine in running:
                await router.register(engine, most_calls=most_calls)
            return router

        yield start


@asynccontextmanager
async def closing(response: aiohttp.ClientResponse) -> AsyncIterator[aiohttp.ClientResponse]:
    """Close an answer at the end."""
    try:
        yield response
    finally:
        response.close()
