"""One real mesh with one core, and calls of its proxy."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from tests.e2e.replicas import Mesh, one_core_mesh

Json = dict[str, Any]

WAIT_S = 60
SPIN = "while True: pass"
BUSY = "import time\nuntil = time.process_time() + {s}\nwhile time.process_time() < until: pass"


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with one_core_mesh() as running:
        yield running


@pytest.fixture
async def http(mesh: Mesh) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(mesh.proxies[0].url, timeout=aiohttp.ClientTimeout(total=120)) as session:
        yield session


async def call(http: aiohttp.ClientSession, method: str, path: str, **request: Any) -> tuple[int, Any]:
    async with http.request(method, path, **request) as response:
        text = await response.text()
        return response.status, json.loads(text) if text else None


async def declare(http: aiohttp.ClientSession, task: str, *, timeout_s: float = 30.0, **fields: Any) -> None:
    stage = {"name": "run", "kind": "code.run", "timeout_s": timeout_s}
    status, view = await call(http, "PUT", f"/v1/tasks/{task}", json={"stages": [stage], **fields})
    assert status == 200, view


async def open_batch(http: aiohttp.ClientSession, task: str, *, status: int = 201, **opening: Any) -> str:
    got, view = await call(http, "POST", f"/v1/tasks/{task}/batches", json=opening)
    assert got == status, view
    return str(view["id"])


async def submit(http: aiohttp.ClientSession, batch: str, codes: dict[str, str]) -> Json:
    lines = [json.dumps({"request_id": name, "params": {"code": code}}) for name, code in codes.items()]
    status, receipt = await call(http, "POST", f"/v1/rewards/bulk?batch={batch}", data="\n".join(lines))
    assert status == 200, receipt
    return dict(receipt)


async def results(http: aiohttp.ClientSession, batch: str) -> list[Json]:
    async with http.get(f"/v1/batches/{batch}/results?follow=true") as response:
        assert response.status == 200
        return [json.loads(line) async for line in response.content]
