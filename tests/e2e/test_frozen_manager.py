"""A manager that stops for longer than the leader waits for it, and wakes: its work is done exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.campaign import grade_through
from tests.e2e.replicas import TIMEOUT_S, Mesh, running_mesh
from tests.e2e.trainer import Trainer, trainer_at
from treadle.testing.servers import running_valkey, temporary_home

SIZE = 600


@pytest.fixture
def mesh(stack_home: Path) -> Iterator[Mesh]:
    with ExitStack() as entered:
        url = entered.enter_context(running_valkey(stack_home))
        yield entered.enter_context(running_mesh(url, proxies=1, managers=2, cores=1))


@pytest.fixture(scope="module")
def slow_detection_mesh() -> Iterator[Mesh]:
    """One node, which may be silent for half a minute."""
    with (
        temporary_home() as home,
        running_valkey(home) as url,
        running_mesh(url, proxies=1, managers=1, cores=1, PROXY_NODE_LOST_S="30") as mesh,
    ):
        yield mesh


LIMIT_S = 4.0
SLOW = "import time\ntime.sleep(1)\n"
IN_TIME: dict[str, dict[str, Any]] = {
    "code.run": {"code": SLOW, "run_timeout_s": LIMIT_S},
    "code.stdio": {"code": SLOW + "print(7)", "tests": [{"stdin": "", "stdout": "7\n"}], "timeout_s": LIMIT_S},
    "code.asserts": {"code": SLOW + "def f():\n    return 7\n", "tests": "assert f() == 7", "timeout_s": LIMIT_S},
    "python.function": {
        "module": SLOW + "def compute_score(**sample):\n    return 1.0\n",
        "solution_str": "",
        "timeout_s": LIMIT_S,
    },
}


async def node_state(trainer: Trainer, name: str) -> str:
    _, view = await trainer.call("GET", "/v1/nodes")
    return next(str(node["state"]) for node in view["nodes"] if node["name"] == name)


async def await_node(trainer: Trainer, name: str, state: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if await node_state(trainer, name) == state:
                return
            await asyncio.sleep(0.1)


async def test_a_manager_suspended_until_the_leader_gave_it_up_repeats_nothing(mesh: Mesh) -> None:
    frozen = mesh.managers[0]
    async with trainer_at(mesh.proxies[0].url) as trainer:

        async def disturb() -> None:
            frozen.freeze()
            try:
                await await_node(trainer, "node-0", "silent")
            finally:
                frozen.thaw()

        await grade_through(trainer, disturb, size=SIZE, key="frozen")
        await await_node(trainer, "node-0", "ready")
        answers = await grade_through(trainer, idle, size=SIZE, key="after")
        assert {stage["node"] for answer in answers for stage in answer["stages"]} == {"node-0", "node-1"}


async def idle() -> None:
    """No disturbance."""


@pytest.mark.parametrize("kind", ["code.run", "code.stdio", "code.asserts", "python.function"])
async def test_a_program_that_ended_in_time_while_its_manager_was_stopped_is_right(
    slow_detection_mesh: Mesh, kind: str
) -> None:
    """Stopped from before the program's end until after its limit, for less than the leader waits."""
    body = {"kind": kind, "params": IN_TIME[kind], "timeout_s": 10}
    async with trainer_at(slow_detection_mesh.proxies[0].url) as trainer:
        await trainer.call("POST", "/v1/actions?wait=60", json=body)  # its interpreter is imported
        call = asyncio.create_task(trainer.call("POST", "/v1/actions?wait=60", json=body))
        await asyncio.sleep(0.5)
        slow_detection_mesh.managers[0].freeze()
        try:
            await asyncio.sleep(LIMIT_S + 1)
        finally:
            slow_detection_mesh.managers[0].thaw()
        status, answer = await call
    assert (status, answer["ended"]) == (200, "ok"), answer
    assert answer.get("passed") is not False, answer
    assert answer["stages"][0]["attempts"] == 1


async def test_a_killed_manager_s_work_runs_on_the_other(mesh: Mesh) -> None:
    async with trainer_at(mesh.proxies[0].url) as trainer:

        async def disturb() -> None:
            mesh.managers[0].kill()

        await grade_through(trainer, disturb, size=SIZE, key="killed")
