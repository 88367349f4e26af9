"""A trajectory that the published `swe-rex` client uses, unmodified.

The node is simulated: its shells have no state between lines. With real environments the same client runs in tests/e2e.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from swerex.runtime.abstract import BashAction, BashObservation
from swerex.runtime.remote import RemoteRuntime

from services.proxy.app import create_app
from services.proxy.settings import ProxySettings
from tests.services.proxy.in_process import Folder, SimulatedNode, serving

LIMIT = 400_000
"""Bytes of a body, at most."""


class SwerexTrajectory:
    """An open trajectory with its SWE-ReX client, node and folder."""

    def __init__(self, url: str, trajectory: str, node: SimulatedNode, root: Path, redis_url: str) -> None:
        self.url = url
        self.redis_url = redis_url
        self.trajectory = trajectory
        self.node = node
        self.root = root
        self.client = RemoteRuntime(auth_token="-", host=f"{url}/v1/trajectories/{trajectory}/swerex", timeout=20.0)

    async def run(self, command: str, **rest: Any) -> BashObservation:
        return await self.client.run_in_session(BashAction(command=command, **rest))

    async def post(self, verb: str, body: Any, request_id: str) -> tuple[int, dict[str, Any]]:
        """Send the request of the client with our own request id."""
        path = f"{self.url}/v1/trajectories/{self.trajectory}/swerex/{verb}"
        async with (
            aiohttp.ClientSession(headers={"X-Request-ID": request_id}) as http,
            http.post(path, json=body) as reply,
        ):
            return reply.status, await reply.json()


@asynccontextmanager
async def serving_swerex(redis_url: str, root: Path) -> AsyncIterator[SwerexTrajectory]:
    """A trajectory whose environment is the existing folder `root`."""
    settings = ProxySettings.model_validate({"treadle": {"redis_url": redis_url}, "max_body_bytes": LIMIT})
    async with (
        SimulatedNode.up(redis_url, Folder(root)) as node,
        serving(create_app(settings)) as url,
        aiohttp.ClientSession(url) as http,
        http.post("/v1/trajectories", json={"environment": {"memory_mb": 64}}) as reply,
    ):
        yield SwerexTrajectory(url, (await reply.json())["id"], node, root, redis_url)
