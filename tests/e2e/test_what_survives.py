"""The fault table of ARCHITECTURE ("What survives what") through one real stack, with trajectories open.

Elsewhere: whole batches through each kill (test_killed_services.py), the death of the engine (test_episodes_killed.py),
a full disk (test_full_disk.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

import aiohttp
import psutil
import pytest

from shared.runtime.identity import Identity, identify
from tests.e2e.processes import running_service
from tests.e2e.replicas import leads, until
from tests.e2e.survival import Caller, Episode, all_end, until_no_zombies
from treadle.testing.servers import temporary_home
from treadle.testing.small_image import small_image
from treadle.testing.stack import RunningStack, running_stack

NODE = f"survives-{os.getpid()}"
IMAGE = f"treadletest-survives-{os.getpid()}:shell"
SETTINGS = {"CPU_MANAGER_NODE": NODE, "CPU_MANAGER_MEMORY_MB": "4096", "PROXY_NODE_LOST_S": "15"}
"""On a busy machine a node may be silent for longer than usual: every loss here must come from the fault."""
SLEEPS = "import time\ntime.sleep(4)\nprint('done')"
LOST = ("environment-lost", "unknown-outcome")


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    """One for all tests: the stack must recover from each fault, and its end leaves no process."""
    with temporary_home() as root:
        with running_stack(root, environ=SETTINGS) as running:
            yield running
            for name in ("treadle", "proxy", "cpu_manager"):
                sys.stderr.write(f"---- {name}\n{running.log(name)[-20_000:]}\n")
            everyone = descendants(running.supervisor.pid)
        assert all_end(everyone)


@pytest.fixture(scope="module")
def image(docker: None) -> Iterator[str]:
    with small_image(IMAGE) as tag:
        yield tag


@pytest.fixture
async def caller(stack: RunningStack) -> AsyncIterator[Caller]:
    timeout = aiohttp.ClientTimeout(total=60, sock_connect=10)
    async with aiohttp.ClientSession(stack.urls["proxy"], timeout=timeout) as http:
        caller = Caller(http)
        yield caller
        for trajectory in caller.opened:
            await caller.close(trajectory)


def descendants(pid: int) -> list[Identity]:
    found = [identify(process.pid) for process in psutil.Process(pid).children(recursive=True)]
    return [process for process in found if process is not None]


async def other_tenants(stack: RunningStack, caller: Caller) -> None:
    """Programs of nine tenants: more than there are zygotes at once, so that some give way."""
    body = {"code": "print(1)", "language": "python"}
    for tenant in range(9):
        status, answer = await caller.call("POST", f"/t/tenant-{tenant}/task/run_code", body)
        assert (status, answer["status"]) == (200, "Success"), answer


async def killed(stack: RunningStack, caller: Caller, name: str) -> None:
    pid = stack.kill(name)
    await asyncio.to_thread(stack.await_healthy, name, other_than=pid)


async def stopped(stack: RunningStack, caller: Caller, name: str) -> None:
    pid = stack.kill(name, signal.SIGSTOP)
    await asyncio.sleep(1)
    os.kill(pid, signal.SIGCONT)


async def leader_asleep(stack: RunningStack, caller: Caller) -> None:
    """The proxy sleeps past its lease; another one leads, and keeps the lease when the first wakes."""
    url = {"TREADLE_DATABASE_URL": stack.database_url}
    with running_service("proxy", stack.redis_url, **url) as other:
        sleeper = stack.kill("proxy", signal.SIGSTOP)
        try:
            await until(lambda: leads(other))
        finally:
            os.kill(sleeper, signal.SIGCONT)
        status, _ = await caller.call("GET", "/v1/nodes")
        assert status == 200
        assert leads(other)


Event = Callable[[RunningStack, Caller], Awaitable[None]]

EVENTS: dict[str, Event] = {
    "programs of nine tenants": other_tenants,
    "kill -9 of the planner": partial(killed, name="scaling_planner"),
    "kill -9 of Valkey": partial(killed, name="valkey"),
    "kill -9 of Postgres": partial(killed, name="postgres"),
    "kill -9 of the proxy, which leads": partial(killed, name="proxy"),
    "Valkey is stopped and continued": partial(stopped, name="valkey"),
    "Postgres is stopped and continued": partial(stopped, name="postgres"),
    "the leader sleeps past its lease": leader_asleep,
}
"""Each leaves every environment as it was, and no attempt is lost."""


async def all_continues(stack: RunningStack, caller: Caller, event: Event, **environment: str) -> None:
    manager, restarts = stack.pids["cpu_manager"], stack.service("cpu_manager").restarts
    episode = await Episode.begin(caller, **environment)
    running = asyncio.create_task(caller.run(SLEEPS))
    await asyncio.sleep(1)
    await event(stack, caller)
    await episode.check_intact()
    answer = await running
    assert answer["ended"] == "ok", answer
    assert answer["output"]["run_result"]["stdout"] == "done\n", answer
    assert [stage["attempts"] for stage in answer["stages"]] == [1], answer
    assert (stack.pids["cpu_manager"], stack.service("cpu_manager").restarts) == (manager, restarts)
    await until_no_zombies(stack.supervisor.pid)


@pytest.mark.parametrize("event", EVENTS)
async def test_local_environments_and_programs_continue(stack: RunningStack, caller: Caller, event: str) -> None:
    await all_continues(stack, caller, EVENTS[event])


@pytest.mark.docker
@pytest.mark.parametrize("event", ["kill -9 of Valkey", "kill -9 of the proxy, which leads"])
async def test_containers_continue(stack: RunningStack, caller: Caller, image: str, event: str) -> None:
    await all_continues(stack, caller, EVENTS[event], image=image)


async def test_the_death_of_the_manager_ends_its_local_environments_and_repeats_programs(
    stack: RunningStack, caller: Caller
) -> None:
    episode = await Episode.begin(caller)
    running = asyncio.create_task(caller.run(SLEEPS))
    await asyncio.sleep(1)
    theirs = descendants(stack.pids["cpu_manager"])
    assert len(theirs) > 3, "the zygotes, the agent and its background process"
    await killed(stack, caller, "cpu_manager")
    assert all_end(theirs), "processes of a dead manager's environment survive"
    answer = await running
    assert (answer["ended"], answer["output"]["run_result"]["stdout"]) == ("ok", "done\n"), answer
    lost = await caller.act(episode.trajectory, "echo $greeting")
    assert lost.get("ended") in LOST or lost["status"] == 409, lost
    refused = await caller.act(episode.trajectory, "echo $greeting")
    assert refused.get("ended") == "environment-lost" or refused["status"] == 409, "it continued in a fresh environment"
    await until_no_zombies(stack.supervisor.pid)


@pytest.mark.docker
async def test_containers_outlive_their_manager(stack: RunningStack, caller: Caller, image: str) -> None:
    kept = await Episode.begin(caller, image=image)
    acted = await Episode.begin(caller, image=image)
    await caller.act(acted.trajectory, 'echo here > "$HOME/probe"')
    acting = asyncio.create_task(caller.act(acted.trajectory, "sleep 60; echo never"))
    await asyncio.sleep(2)
    await killed(stack, caller, "cpu_manager")
    await kept.check_intact()
    cut = await acting
    assert cut.get("ended") == "unknown-outcome", cut
    after = await caller.act(acted.trajectory, 'cat "$HOME/probe"')
    assert (after.get("ended"), after["output"]["output"]) == ("ok", "here\n"), after


@pytest.mark.docker
async def test_only_the_container_that_ends_is_lost(stack: RunningStack, caller: Caller, image: str) -> None:
    victim, other = await Episode.begin(caller, image=image), await Episode.begin(caller, image=image)
    wanted = [f"label=treadle.node={NODE}", f"label=treadle.trajectory={victim.trajectory}"]
    filters = [word for label in wanted for word in ("--filter", label)]
    (container,) = (await asyncio.to_thread(docker_output, "ps", "--quiet", *filters)).split()
    await asyncio.to_thread(docker_output, "kill", container)
    for _ in range(2):
        lost = await caller.act(victim.trajectory, "echo $greeting")
        assert lost.get("ended") in LOST or lost["status"] == 409, lost
    await other.check_intact()


@pytest.mark.parametrize("acts", ["true", "sleep 30"])
async def test_an_environment_ends_with_its_lifetime(stack: RunningStack, caller: Caller, acts: str) -> None:
    trajectory = await caller.open(lifetime_s=1)
    await caller.act(trajectory, "true")
    async with asyncio.timeout(60):
        answer = await caller.act(trajectory, acts)
        while answer.get("ended") == "ok":
            await asyncio.sleep(0.2)
            answer = await caller.act(trajectory, acts)
    assert answer.get("ended") == "environment-lost" or answer["status"] == 409, answer
    status, view = await caller.call("GET", f"/v1/trajectories/{trajectory}")
    assert (status, view["state"]) == (200, "expired"), view
    assert view["reason"] == "its lifetime of 1 s is over", view


async def test_another_node_takes_the_work_of_an_ended_one(stack: RunningStack, caller: Caller) -> None:
    """A second node that is killed for good while programs run on both."""
    node = {"CPU_MANAGER_NODE": f"{NODE}-second", "CPU_MANAGER_ENGINE": "none"}
    with running_service("cpu_manager", stack.redis_url, **node) as second:
        await until(lambda: f"{NODE}-second" in ready_nodes(stack))
        programs = [asyncio.create_task(caller.run(SLEEPS)) for _ in range(2 * (os.cpu_count() or 1))]
        await asyncio.sleep(2)
        second.kill()
        answers = await asyncio.gather(*programs)
    for answer in answers:
        assert (answer["ended"], answer["output"]["run_result"]["stdout"]) == ("ok", "done\n"), answer
    assert {answer["stages"][-1]["node"] for answer in answers} >= {NODE}


def docker_output(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, timeout=60, check=True).stdout


def ready_nodes(stack: RunningStack) -> list[str]:
    with urllib.request.urlopen(f"{stack.urls['proxy']}/v1/nodes", timeout=30) as response:
        nodes = json.load(response)["nodes"]
    return [node["name"] for node in nodes if node["state"] == "ready"]
