"""More environments requested at once than a node can hold: each is ready, or queued with a reason; none fails.

The long form is `treadle bench --only starts`: 1,000 of them, with their times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest

from tests.e2e.episodes import WAIT_S, Json, OneNodeMesh, running_one_node_mesh, trainer_of
from tests.shared.bus.soon import soon

MANY, ROOM = 60, 20
MEMORY_MB = 32
FULL = "the memory for environments is taken"
SETTINGS = {
    "CPU_MANAGER_CORES": "2",
    "CPU_MANAGER_ENGINE": "none",
    "CPU_MANAGER_MEMORY_MB": str((ROOM + 1) * MEMORY_MB),
}


@pytest.fixture(scope="module")
def mesh() -> Iterator[OneNodeMesh]:
    with running_one_node_mesh(**SETTINGS) as running:
        yield running


async def test_each_start_is_ready_or_queued_with_a_reason_and_existing_environments_continue(
    mesh: OneNodeMesh,
) -> None:
    async with trainer_of(mesh) as trainer, aiohttp.ClientSession(mesh.proxy.url) as http:
        standing = await trainer.open(memory_mb=MEMORY_MB)
        assert (await trainer.bash(standing, "v=kept"))["ended"] == "ok"
        await trainer.until_used(starts=0, memory_mb=MEMORY_MB)

        async def submit() -> tuple[str, str]:
            trajectory = await trainer.open(memory_mb=MEMORY_MB)
            body = {"kind": "env.exec", "params": {"argv": ["true"]}}
            async with http.post(f"/v1/trajectories/{trajectory}/actions", json=body) as response:
                return trajectory, str((await response.json())["id"])

        async def look(action: str, wait: str = "") -> Json:
            async with http.get(f"/v1/actions/{action}{wait}") as response:
                return dict(await response.json())

        actions = dict(await asyncio.gather(*(submit() for _ in range(MANY))))

        async def full() -> bool:
            assert (await trainer.used())["starts"] <= 1
            states = [await look(action) for action in actions.values()]
            return [one["state"] for one in states].count("finished") == ROOM

        await soon(full, within_s=WAIT_S)
        assert (await trainer.bash(standing, "echo $v"))["output"]["output"] == "kept\n", "it does not wait for them"
        why = f"it waits to begin its environment, with {MANY - ROOM} in cores@default: {FULL}"

        async def all_reported() -> bool:
            states = [await look(action) for action in actions.values()]
            waiting = [one for one in states if one["state"] != "finished"]
            assert {one["state"] for one in waiting} == {"queued"}
            return [one.get("reason") for one in waiting] == [why] * (MANY - ROOM)

        await soon(all_reported, within_s=WAIT_S)
        left = dict(actions)
        while left:
            for trajectory, action in list(left.items()):
                answer = await look(action)
                if answer["state"] == "finished":
                    assert (answer["ended"], answer["passed"]) == ("ok", True), answer
                    await trainer.close(trajectory)
                    del left[trajectory]
            await asyncio.sleep(0.05)
