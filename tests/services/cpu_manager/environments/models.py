"""A model for environments: a real router with an engine whose answers are known, trajectories, and the forwarder."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from services.cpu_manager.forwarder.forwarder import ModelForwarder
from services.proxy.app import create_app
from services.proxy.settings import ProxySettings
from shared.bus.connection import connect
from tests.services.proxy.in_process import serving
from tests.services.trajectory_router.conftest import RouterUnderTest
from tests.services.trajectory_router.engine import Engine


@dataclass
class ModelMesh:
    """What lies between an environment and its model."""

    router: RouterUnderTest
    proxy: aiohttp.ClientSession
    forwarder: ModelForwarder
    changes: list[tuple[str, int, int]]
    """What the forwarder has reported of calls."""

    @property
    def engine(self) -> Engine:
        return self.router.engines[0]

    async def opened(self) -> dict[str, Any]:
        """Open a trajectory."""
        async with self.proxy.post("/v1/trajectories", json={}) as response:
            assert response.status == 201, await response.text()
            return dict(await response.json())


@asynccontextmanager
async def model_mesh(router: RouterUnderTest, redis_url: str, database_url: str) -> AsyncIterator[ModelMesh]:
    settings = ProxySettings.model_validate({"treadle": {"redis_url": redis_url, "database_url": database_url}})
    changes: list[tuple[str, int, int]] = []
    async with (
        serving(create_app(settings)) as url,
        aiohttp.ClientSession(url) as proxy,
        connect(redis_url, name="forwarder") as redis,
    ):
        forwarder = ModelForwarder(redis)
        try:
            with forwarder.reports_to(lambda *change: changes.append(change)):
                yield ModelMesh(router, proxy, forwarder, changes)
        finally:
            await forwarder.close()


CALL = """
import json, os, sys, urllib.request

def call(base, path, key, **fields):
    body = json.dumps({"model": "tiny", **fields}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer " + key, "x-trajectory-priority": "-5"}
    return urllib.request.urlopen(urllib.request.Request(base + path, body, headers), timeout=20)

def openai(**fields):
    return call(os.environ["OPENAI_BASE_URL"], "/chat/completions", os.environ["OPENAI_API_KEY"], **fields)

"""
"""Head of a program that calls its model as a client does."""


OWN_SOCKETS = 3
"""Sockets of a forwarder without a trajectory: that of its manager, and a pair of its event loop."""


def connections_of(forwarder: ModelForwarder) -> int:
    """Sockets of the process that are connections."""
    links = [os.readlink(f"/proc/{forwarder.pid}/fd/{name}") for name in os.listdir(f"/proc/{forwarder.pid}/fd")]  # noqa: PTH115, PTH208
    return sum(link.startswith("socket:") for link in links) - OWN_SOCKETS - len(forwarder._listeners)
