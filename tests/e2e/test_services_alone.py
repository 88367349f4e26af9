"""Services as a container runs them: `python -m treadle.stack.serve`, a bare init above each, and no supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator

import aiohttp
import psutil
import pytest

from shared.runtime.identity import Identity, identify
from tests.e2e.processes import Service
from tests.e2e.replicas import Mesh, running_mesh, until
from tests.e2e.survival import Caller, Episode, all_end, until_no_zombies

CORES = 2
SLEEPS = (
    "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    "subprocess.run(['sleep', '7'])\nprint('done')"
)


@pytest.fixture
def mesh(redis_url: str) -> Iterator[Mesh]:
    with running_mesh(redis_url, proxies=1, managers=1, cores=CORES, CPU_MANAGER_ENGINE="none") as running:
        yield running


@pytest.fixture
async def caller(mesh: Mesh) -> AsyncIterator[Caller]:
    async with aiohttp.ClientSession(mesh.proxies[0].url, timeout=aiohttp.ClientTimeout(total=90)) as http:
        yield Caller(http)


def descendants(service: Service) -> list[psutil.Process]:
    return psutil.Process(service.process.pid).children(recursive=True)


def zygotes(service: Service) -> set[Identity]:
    """The interpreters that cells are forked from. They are double-forked, and children of the service all the same."""
    children = psutil.Process(service.process.pid).children()
    return {one for child in children if is_zygote(child) and (one := identify(child.pid)) is not None}


def is_zygote(process: psutil.Process) -> bool:
    try:
        return "inside.zygote" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def sleepers(service: Service, seconds: int) -> list[psutil.Process]:
    return [one for one in descendants(service) if is_sleeping(one, seconds)]


def is_sleeping(process: psutil.Process, seconds: int) -> bool:
    try:
        return process.cmdline() == ["sleep", str(seconds)]
    except psutil.Error:
        return False


def init_of(process: psutil.Process, service: Service) -> int:
    """The init of its cell: a child of a zygote, which is a child of the manager."""
    line = [process.pid, *(parent.pid for parent in process.parents())]
    return line[line.index(service.process.pid) - 2]


async def test_a_manager_reaps_what_its_cells_leave_and_keeps_its_zygotes(mesh: Mesh, caller: Caller) -> None:
    (manager,) = mesh.managers
    episode = await Episode.begin(caller)
    first = await caller.run("print(1)")
    assert first["output"]["run_result"]["stdout"] == "1\n", first
    before = zygotes(manager)
    assert len(before) >= 2, "one for programs, one for environments"

    running = asyncio.create_task(caller.run(SLEEPS))
    await until(lambda: bool(sleepers(manager, 7)))
    os.kill(init_of(sleepers(manager, 7)[0], manager), signal.SIGKILL)
    answer = await running
    assert (answer["ended"], answer["output"]["run_result"]["stdout"]) == ("ok", "done\n"), answer
    await episode.check_intact()
    assert zygotes(manager) >= before, "a zygote was ended by the end of its cells"
    await until_no_zombies(manager.process.pid)

    left = "setsid sleep 1000 >/dev/null 2>&1 & (sleep 1000 >/dev/null 2>&1 &); sleep 0.5; echo left"
    assert (await caller.act(episode.trajectory, left))["output"]["output"] == "left\n"
    theirs = [one for child in sleepers(manager, 1000) if (one := identify(child.pid))]
    assert len(theirs) == 2, theirs
    await caller.close(episode.trajectory)
    assert await asyncio.to_thread(all_end, theirs), "what an environment started outlives it"
    await until_no_zombies(manager.process.pid)
    assert zygotes(manager) >= before
    again = await caller.run("print(2)")
    assert again["output"]["run_result"]["stdout"] == "2\n", again

    everyone = [one for child in descendants(manager) if (one := identify(child.pid))]
    manager.process.terminate()
    await asyncio.to_thread(manager.process.wait, 60)
    assert await asyncio.to_thread(all_end, everyone), "processes of a manager outlive it"
