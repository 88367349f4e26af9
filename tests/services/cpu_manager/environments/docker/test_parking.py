"""A parked container makes no progress and continues; a call of the engine that fails costs no action."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from services.cpu_manager.environments.docker import direct_handle
from services.cpu_manager.environments.docker.direct_handle import DirectHandle
from services.cpu_manager.environments.docker.runtime import DockerRuntime
from services.cpu_manager.environments.protocol import ActEnd, RuntimeUnavailable
from services.cpu_manager.environments.runtimes import Runtimes
from shared.messages.environments import EnvironmentSpec
from shared.messages.grants import AttemptParkRequested, AttemptResumed
from shared.messages.outcomes import Finished, Parked
from tests.services.cpu_manager.environments.docker.containers import CORE, ActingEnvironment, docker_output
from tests.services.cpu_manager.environments.docker.test_acting import docker_children, ticks_of_children
from tests.services.cpu_manager.environments.local.acting import CORES, until
from tests.services.cpu_manager.node_parts import NodeParts, in_environment
from tests.shared.bus.soon import soon

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]

COUNT = "i=0; while [ $i -lt {rounds} ]; do i=$((i+1)); done; echo $i"
ROUNDS = 120_000
"""About half a second of CPU time in the shell of the image."""
through_the_engine = pytest.mark.parametrize("runtime", ["through the engine"], indirect=True, scope="module")
past_the_engine = pytest.mark.parametrize("runtime", ["direct"], indirect=True, scope="module")


@asynccontextmanager
async def counting(
    acting: ActingEnvironment, rounds: int = ROUNDS, *, timeout_s: float = 60.0, then: str = ""
) -> AsyncIterator[asyncio.Task[ActEnd]]:
    """Run a line that computes; yield when it has begun."""
    pid = first_process(acting)
    idle = ticks_of_children(pid)
    running = asyncio.create_task(acting.bash(COUNT.format(rounds=rounds) + then, timeout_s))
    try:
        await until(lambda: ticks_of_children(pid) > idle + 2, "it never ran")
        yield running
    finally:
        running.cancel()
        await asyncio.wait({running})


def first_process(acting: ActingEnvironment) -> int:
    return int(docker_output("inspect", "--format", "{{.State.Pid}}", acting.environment.handle.container))


async def park(acting: ActingEnvironment) -> None:
    async with asyncio.timeout(10):
        while not await acting.environment.park():  # noqa: ASYNC110  # until the agent has received the action
            await asyncio.sleep(0.01)


async def test_it_uses_no_cpu_and_ends_with_its_output_after_it_continues(acting: ActingEnvironment) -> None:
    pid = first_process(acting)
    async with counting(acting) as running:
        await park(acting)
        before = ticks_of_children(pid), len(docker_children(pid))
        await asyncio.sleep(0.5)
        assert before == (ticks_of_children(pid), len(docker_children(pid)))
        assert not running.done()
        await acting.environment.resume(CORE)
        end = await running
    assert (end.passed, end.output["output"]) == (True, f"{ROUNDS}\n"), end
    assert await acting.output_of("echo next") == "next"


async def test_its_time_limit_stands_still_and_continues(acting: ActingEnvironment) -> None:
    async with counting(acting, ROUNDS * 1000, timeout_s=1.2) as running:
        await park(acting)
        await asyncio.sleep(1.4)
        assert not running.done()
        await acting.environment.resume(CORE)
        end = await running
    assert (end.ended_by, end.passed) == ("wall-limit", None)
    assert 1.2 <= end.wall_s < 2.4
    assert await acting.output_of("echo next") == "next"


@pytest.mark.skipif(len(CORES) < 2, reason="one core")
async def test_it_continues_on_other_cores(acting: ActingEnvironment) -> None:
    async with counting(acting, then="; grep Cpus_allowed_list /proc/self/status") as running:
        await park(acting)
        await acting.environment.resume(frozenset(CORES[1:2]))
        end = await running
    assert end.output["output"].split() == [str(ROUNDS), "Cpus_allowed_list:", str(CORES[1])]


async def test_a_cancelled_one_ends_its_processes_and_the_environment_continues(acting: ActingEnvironment) -> None:
    await acting.output_of("kept=yes")
    async with counting(acting, ROUNDS * 1000) as running:
        await park(acting)
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()
    assert await acting.output_of("echo $kept") == "yes"


async def test_a_container_killed_while_it_is_parked_is_lost(runtime: DockerRuntime, bare_image: str) -> None:
    async with ActingEnvironment.making(runtime, bare_image) as made:
        async with counting(made, ROUNDS * 1000) as running:
            await park(made)
            docker_output("kill", made.environment.handle.container)
            async with asyncio.timeout(15):
                end = await running
        assert (end.ended_by, end.reason) == ("lost", "its container was ended (exit code 137)")
        assert not made.environment.alive


async def test_a_parked_one_is_closed(runtime: DockerRuntime, bare_image: str) -> None:
    async with ActingEnvironment.making(runtime, bare_image) as made, counting(made, ROUNDS * 1000) as running:
        await park(made)
        await made.environment.close()
        assert ((await running).ended_by, made.environment.alive) == ("lost", False)


async def test_parking_frees_the_only_core_for_another_environment(runtime: DockerRuntime, bare_image: str) -> None:
    """The whole node: grants, messages about parking, and outcomes."""
    parts = NodeParts(cores=CORES[:1], guard_s=30.0, runtimes=Runtimes([runtime]))
    spec = EnvironmentSpec(image=bare_image, memory_mb=64)

    def accept(action: str, line: str) -> None:
        grant = in_environment(action, f"node-{os.getpid()}-{action}", line=line, timeout_s=60.0)
        parts.attempts.accept(msgspec.structs.replace(grant, environment=spec))

    async def reported() -> bool:
        return any(isinstance(one, Parked) for one in parts.reports)

    async def ended() -> bool:
        return any(one.action == "b" for one in parts.finished())

    try:
        accept("a", COUNT.format(rounds=ROUNDS))
        parts.attempts.park(AttemptParkRequested(action="a", epoch=1, attempt=1, serial=1))
        await soon(reported)
        assert (parts.units["cores"].used, parts.finished()) == (0, [])
        accept("b", "grep Cpus_allowed_list /proc/self/status")
        await soon(ended)
        parts.attempts.resume(AttemptResumed(action="a", epoch=1, attempt=1, serial=2))
        assert parts.units["cores"].used == 1
        second, first = await parts.settled()
        assert output_of(second) == f"Cpus_allowed_list:\t{CORES[0]}\n"
        assert (first.action, first.result.status, output_of(first)) == ("a", "ok", f"{ROUNDS}\n")
        assert parts.units["cores"].used == 0
    finally:
        await parts.attempts.stop()


def output_of(outcome: Finished) -> str:
    return str(msgspec.json.decode(outcome.result.output)["output"])


# ---- failures --------------------------------------------------------------------------------------------------------


@through_the_engine
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("call", ["pause", "unpause"])
async def test_an_action_survives_a_call_of_the_engine_that_is_not_answered(
    runtime: DockerRuntime, acting: ActingEnvironment, monkeypatch: pytest.MonkeyPatch, call: str, *, before: bool
) -> None:
    """The engine has executed the call (`before` its answer was lost), or not."""
    post = runtime._engine.post
    lost: list[str] = []

    async def losing(path: str, what: str, body: Mapping[str, Any] | None = None) -> Any:
        if not path.endswith(f"/{call}") or lost:
            return await post(path, what, body)
        lost.append(path)
        if before:
            await post(path, what, body)
        raise RuntimeUnavailable("the engine did not answer")

    async with counting(acting) as running:
        monkeypatch.setattr(runtime._engine, "post", losing)
        if call == "pause":
            with pytest.raises(RuntimeUnavailable):
                await acting.environment.park()
        await park(acting)
        await acting.environment.resume(CORE)
        end = await running
    assert lost
    assert (end.passed, end.output["output"]) == (True, f"{ROUNDS}\n"), end


@through_the_engine
async def test_an_environment_that_cannot_be_thawed_is_lost_with_the_reason(
    runtime: DockerRuntime, bare_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = runtime._engine.post

    async def failing(path: str, what: str, body: Mapping[str, Any] | None = None) -> Any:
        if path.endswith("/unpause"):
            raise RuntimeUnavailable("the engine did not answer")
        return await post(path, what, body)

    async with ActingEnvironment.making(runtime, bare_image) as made, counting(made) as running:
        await park(made)
        monkeypatch.setattr(runtime._engine, "post", failing)
        await made.environment.resume(CORE)
        end = await running
    assert (end.ended_by, end.passed, end.reason) == ("lost", None, "the engine did not answer")


@past_the_engine
async def test_an_action_runs_on_if_its_container_cannot_be_frozen(
    acting: ActingEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(acting.environment.handle, DirectHandle)

    async def refuses(_: object) -> bool:
        return False

    async with counting(acting) as running:
        with monkeypatch.context() as patched:
            patched.setattr(direct_handle, "frozen", refuses)
            with pytest.raises(RuntimeUnavailable, match="cannot be frozen"):
                await acting.environment.park()
        end = await running
    assert (end.passed, end.output["output"]) == (True, f"{ROUNDS}\n"), end
