"""Images through the public routes: one node pulls, environments go where their image is, and a limit is waited for.

Two nodes with an engine each: this machine's, which reaches a registry on the loopback, and one of the test's own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.e2e.containers.engine import PrivateEngine, private_engine
from tests.e2e.episodes import WAIT_S, Json, Trainer
from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import is_ready, leads, until
from tests.services.cpu_manager.environments.docker.registry import LoopbackRegistry
from tests.services.cpu_manager.environments.docker.test_pulls import remove_from_engine
from tests.shared.bus.soon import soon
from treadle.testing.servers import running_valkey, temporary_home
from treadle.testing.small_image import small_image

pytestmark = [pytest.mark.docker]

PID = os.getpid()
BUDGET_MB = 1


@dataclass
class Mesh:
    proxy: Service
    other: PrivateEngine
    loaded: str
    """An image that only the other engine has."""


@pytest.fixture(scope="module")
def mesh(docker: None) -> Iterator[Mesh]:
    """Nodes `near` (this machine's engine, most memory) and `far` (its own engine)."""
    with temporary_home() as home, running_valkey(home) as url, private_engine() as other:
        with small_image(f"treadletest-placed-{PID}:bare") as image:
            saved = subprocess.run(["docker", "save", image], capture_output=True, timeout=120, check=True).stdout
        other.docker("load", stdin=saved)
        common = {"CPU_MANAGER_HEARTBEAT_S": "0.3"}
        near = {**common, "CPU_MANAGER_NODE": f"near-{PID}", "CPU_MANAGER_MEMORY_MB": "8192"}
        near["CPU_MANAGER_IMAGE_BUDGET_MB"] = str(BUDGET_MB)
        far = {**common, "CPU_MANAGER_NODE": f"far-{PID}", "CPU_MANAGER_MEMORY_MB": "1024"}
        far["CPU_MANAGER_ENGINE"] = other.url
        with (
            running_service("proxy", url, PROXY_IMAGE_REGISTRIES="*") as proxy,
            running_service("cpu_manager", url, **near) as first,
            running_service("cpu_manager", url, **far) as second,
        ):
            for true in (lambda: leads(proxy), lambda: is_ready(first), lambda: is_ready(second)):
                asyncio.run(until(true))
            yield Mesh(proxy, other, image)


@pytest_asyncio.fixture
async def registry(docker: None) -> AsyncIterator[LoopbackRegistry]:
    async with LoopbackRegistry.serving() as served:
        yield served
        for image in served.images:
            await asyncio.to_thread(remove_from_engine, image)


@pytest_asyncio.fixture
async def http(mesh: Mesh) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(mesh.proxy.url, timeout=aiohttp.ClientTimeout(total=2 * WAIT_S)) as session:
        yield session


def images(*argv: str) -> str:
    listed = ["docker", *argv, "images", "--format", "{{.Repository}}:{{.Tag}}"]
    return subprocess.run(listed, capture_output=True, text=True, timeout=60, check=True).stdout


async def read(trainer: Trainer, trajectory: str) -> Json:
    return await trainer.act(trajectory, "env.read", {"path": "/hello"})


async def test_an_environment_begins_where_its_image_is_and_not_where_most_memory_is(
    mesh: Mesh, http: aiohttp.ClientSession
) -> None:
    trainer = Trainer(http)
    kept = await trainer.open(image=mesh.loaded, memory_mb=64)
    answer = await trainer.bash(kept, "echo here")
    assert (answer["ended"], answer["output"]["output"]) == ("ok", "here\n"), answer
    assert (await trainer.view(kept))["node"] == f"far-{PID}"
    await trainer.close(kept)


async def test_opening_pulls_on_one_node_and_the_first_action_goes_there(
    mesh: Mesh, http: aiohttp.ClientSession, registry: LoopbackRegistry
) -> None:
    trainer, name = Trainer(http), f"treadletest{PID}-opened"
    image = registry.add(name)
    trajectories = [await trainer.open(image=image, memory_mb=64) for _ in range(4)]

    async def pulled() -> bool:
        return image in await asyncio.to_thread(images)

    await soon(pulled)
    assert image not in images("--host", mesh.other.url)
    for trajectory in trajectories:
        answer = await read(trainer, trajectory)
        assert (answer["ended"], answer["output"]["content"]) == ("ok", name), answer
        assert (await trainer.view(trajectory))["node"] == f"near-{PID}"
        await trainer.close(trajectory)
    blobs = {key: count for key, count in registry.asked.items() if key.startswith("sha256:")}
    assert set(blobs.values()) == {1}


async def test_unused_images_are_removed_beyond_the_disk_budget(
    mesh: Mesh, http: aiohttp.ClientSession, registry: LoopbackRegistry
) -> None:
    trainer = Trainer(http)
    names = [registry.add(f"treadletest{PID}-{number}", padding=600_000) for number in range(3)]
    kept = await trainer.open(image=names[0], memory_mb=64)
    assert (await read(trainer, kept))["ended"] == "ok"
    for image in names[1:]:
        trajectory = await trainer.open(image=image, memory_mb=64)
        assert (await read(trainer, trajectory))["ended"] == "ok"
        await trainer.close(trajectory)

    async def one_is_gone() -> bool:
        return names[1] not in await asyncio.to_thread(images)

    await soon(one_is_gone)
    assert names[0] in images(), "it is in use"
    assert (await read(trainer, kept))["ended"] == "ok"
    await trainer.close(kept)


async def test_a_registry_that_limits_pulls_is_waited_for_and_the_reason_is_visible(
    mesh: Mesh, http: aiohttp.ClientSession, registry: LoopbackRegistry
) -> None:
    trainer, name = Trainer(http), f"treadletest{PID}-limited"
    image, registry.limited = registry.add(name), True
    trajectory = await trainer.open(image=image, memory_mb=64)
    body = {"kind": "env.read", "params": {"path": "/hello"}, "request_id": "first", "budget_s": 120}
    async with http.post(f"/v1/trajectories/{trajectory}/actions", json=body) as response:
        action = (await response.json())["id"]

    async def look(wait: str = "") -> dict[str, Any]:
        async with http.get(f"/v1/actions/{action}{wait}") as response:
            return dict(await response.json())

    async def reasoned() -> bool:
        return "limits pulls" in ((await look()).get("reason") or "")

    await soon(reasoned)
    assert (await look())["state"] == "queued"
    assert f"the registry {registry.address} limits pulls" in (await trainer.view(trajectory))["reason"]
    local = await trainer.open(memory_mb=32)
    assert (await trainer.bash(local, "echo on"))["output"]["output"] == "on\n", "other actions continue meanwhile"
    registry.limited = False
    answer = await look(f"?wait={WAIT_S}")
    assert (answer["ended"], answer["output"]["content"]) == ("ok", name), answer
    assert (await trainer.view(trajectory))["reason"] == ""
    short = await trainer.open(image=registry.add(f"{name}-short"), memory_mb=64)
    registry.limited = True
    expired = await trainer.act(short, "env.read", {"path": "/hello"}, budget_s=8)
    assert expired["ended"] == "expired", expired
    assert "limits pulls" in expired["reason"]
    for each in (trajectory, local, short):
        await trainer.close(each)


async def test_an_action_that_waits_for_a_pull_holds_no_units_and_has_the_reason(
    mesh: Mesh, http: aiohttp.ClientSession, registry: LoopbackRegistry
) -> None:
    trainer, name = Trainer(http), f"treadletest{PID}-slow"
    image, registry.slow_s = registry.add(name), 8.0
    trajectory = await trainer.open(image=image, memory_mb=64)
    waiting = asyncio.create_task(read(trainer, trajectory))

    async def reasoned() -> bool:
        return "is being pulled" in (await trainer.view(trajectory))["reason"]

    await soon(reasoned)

    async def holds_nothing() -> bool:
        """Return whether the nodes' last heartbeats report nothing in use."""
        async with http.get("/v1/nodes") as response:
            used = [node["used"] for node in (await response.json())["nodes"]]
        return [(one["cores"], one["starts"]) for one in used] == [(0, 0)] * 2

    await soon(holds_nothing)
    assert not waiting.done()
    answer = await waiting
    assert (answer["ended"], answer["output"]["content"]) == ("ok", name), answer
    await trainer.close(trajectory)


async def test_an_image_that_does_not_exist_shows_on_the_batchs_page_within_20_answers(
    mesh: Mesh, http: aiohttp.ClientSession, registry: LoopbackRegistry
) -> None:
    trainer, missing = Trainer(http), f"{registry.address}/treadletest{PID}-missing:latest"
    task = {"stages": [{"name": "run", "kind": "code.run", "timeout_s": 10}]}
    async with http.put("/v1/tasks/imageless", json=task) as response:
        assert response.status < 300, await response.text()
    async with http.post("/v1/tasks/imageless/batches", json={"size": 1}) as response:
        batch = (await response.json())["id"]
    assert await page(http, batch) is None
    bad = [await trainer.open(image=missing, memory_mb=64, batch=batch) for _ in range(5)]
    good = await trainer.open(memory_mb=32, batch=batch)
    for _ in range(2):
        for trajectory in bad:
            assert (await read(trainer, trajectory))["ended"] == "refused"
            assert (await trainer.bash(good, "true"))["ended"] == "ok"
    assert (await trainer.view(good))["batch"] == batch
    shown = await page(http, batch)
    (failure,) = shown["failures"]
    assert (shown["answered"], shown["masked"], shown["masked_share"]) == (20, 10, 0.5)
    assert (failure["ended"], failure["count"], failure["share"]) == ("refused", 10, 0.5)
    assert missing in failure["reason"]
    body = {"environment": {}, "batch": "b-never-opened"}
    async with http.post("/v1/trajectories", json=body) as response:
        assert (response.status, "b-never-opened" in await response.text()) == (404, True)
    for trajectory in (*bad, good):
        await trainer.close(trajectory)


async def page(http: aiohttp.ClientSession, batch: str) -> Any:
    """Actions of its trajectories in the view of a batch."""
    async with http.get(f"/v1/batches/{batch}") as response:
        assert response.status == 200, await response.text()
        return (await response.json())["environments"]
