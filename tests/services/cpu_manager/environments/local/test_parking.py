"""A parked action makes no progress, its time limit stands still, and it continues on the cores that it is given."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.cpu_manager.environments.local.runtime import CellEnvironment
from services.cpu_manager.environments.protocol import ActEnd
from tests.services.cpu_manager.environments.local.acting import CORE, CORES, act, cpu_s_of, found, output_of, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT = """
import os, sys, time
end = time.process_time() + float(sys.argv[1])
open('begun', 'w').close()
while time.process_time() < end: pass
print(sorted(os.sched_getaffinity(0)))
"""


@asynccontextmanager
async def counting(
    environment: CellEnvironment, mark: str, *, cpu_s: float = 0.5, timeout_s: float = 20.0
) -> AsyncIterator[asyncio.Task[ActEnd]]:
    """Run a program that computes for so much CPU time; yield when it has begun."""
    await act(environment, "write", path=f"{mark}.py", content=COUNT)
    acting = asyncio.create_task(act(environment, "bash", line=f"python3 {mark}.py {cpu_s}", timeout_s=timeout_s))
    try:
        await until(lambda: any(cpu_s_of(pid) > 0.02 for pid in found(f"{mark}.py")), "it never ran")
        yield acting
    finally:
        acting.cancel()
        await asyncio.wait({acting})


async def parked(environment: CellEnvironment) -> None:
    async with asyncio.timeout(5):
        while not await environment.park():  # noqa: ASYNC110  # until the agent has received the action
            await asyncio.sleep(0.01)


async def test_it_makes_no_progress_and_ends_after_it_continues(environment: CellEnvironment) -> None:
    async with counting(environment, "progress") as acting:
        await parked(environment)
        before = [cpu_s_of(pid) for pid in found("progress.py")]
        await asyncio.sleep(0.3)
        assert before == [cpu_s_of(pid) for pid in found("progress.py")]
        assert before
        assert not acting.done()
        await environment.resume(CORE)
        end = await acting
    assert end.passed, end
    assert await output_of(environment, "echo next") == "next"


async def test_its_time_limit_stands_still(environment: CellEnvironment) -> None:
    async with counting(environment, "limit", cpu_s=0.1, timeout_s=2.0) as acting:
        await parked(environment)
        await asyncio.sleep(2.2)
        await environment.resume(CORE)
        end = await acting
    assert end.passed, end
    assert end.wall_s < 2.0


async def test_its_time_limit_continues_afterwards(environment: CellEnvironment) -> None:
    acting = asyncio.create_task(act(environment, "bash", line="sleep 60", timeout_s=0.5))
    await parked(environment)
    await environment.resume(CORE)
    assert (await acting).ended_by == "wall-limit"


@pytest.mark.skipif(len(CORES) < 2, reason="one core")
async def test_it_continues_on_other_cores(environment: CellEnvironment) -> None:
    async with counting(environment, "others") as acting:
        await parked(environment)
        await environment.resume(frozenset(CORES[1:2]))
        end = await acting
    assert end.output["output"].strip() == str(CORES[1:2])


async def test_it_is_parked_many_times(environment: CellEnvironment) -> None:
    async with counting(environment, "often") as acting:
        for _ in range(10):
            if not await environment.park():
                break
            await environment.resume(CORE)
        assert (await acting).passed


async def test_a_cancelled_one_ends_its_processes_and_the_environment_continues(environment: CellEnvironment) -> None:
    async with counting(environment, "cut") as acting:
        await parked(environment)
        acting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acting
    await until(lambda: not found("cut.py"), "it still runs")
    assert environment.alive
    assert await output_of(environment, "echo next") == "next"


async def test_a_closed_one_ends(environment: CellEnvironment) -> None:
    async with counting(environment, "closed") as acting:
        await parked(environment)
        await environment.close()
        assert (await acting).ended_by == "lost"
    await until(lambda: not found("closed.py"), "it still runs")


async def test_nothing_to_park_between_actions(environment: CellEnvironment) -> None:
    assert not await environment.park()
    await environment.resume(CORE)
    assert await output_of(environment, "echo next") == "next"


async def test_one_whose_wait_is_over_may_end_as_soon_as_it_continues(environment: CellEnvironment) -> None:
    for _ in range(20):
        acting = asyncio.create_task(act(environment, "bash", line="sleep 0.05; echo done"))
        await asyncio.sleep(0.02)
        while not acting.done() and not await environment.park():  # noqa: ASYNC110  # until the agent has received it
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.06)
        resuming = asyncio.create_task(environment.resume(CORE))
        assert (await acting).output["output"] == "done\n"
        await resuming
        assert environment.alive
