"""Actions in a container, with handles directly and through the engine. The image has no Python."""

import asyncio
import base64
import time

import pytest

from services.cpu_manager.environments.docker.direct_handle import DirectHandle
from services.cpu_manager.environments.docker.engine_handle import EngineHandle
from services.cpu_manager.environments.docker.runtime import DockerRuntime
from services.cpu_manager.kinds import EnvDownload, EnvExec, EnvList, EnvRead, EnvUpload, EnvWrite
from tests.services.cpu_manager.environments.docker.containers import (
    CORE,
    ActingEnvironment,
    containers_of,
    docker_output,
    node_name,
)

past_the_engine = pytest.mark.parametrize("runtime", ["direct"], indirect=True, scope="module")
"""Events that the engine reports late, or only on request."""

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]


async def test_each_container_has_the_requested_kind_of_handle(
    acting: ActingEnvironment, request: pytest.FixtureRequest
) -> None:
    wanted = DirectHandle if "direct" in request.node.callspec.id else EngineHandle
    assert isinstance(acting.environment.handle, wanted)


async def test_an_image_without_python_has_an_agent(acting: ActingEnvironment) -> None:
    assert not (await acting.exec("python3", "-c", "0")).passed
    assert (await acting.exec("cat", "/proc/1/comm")).output["stdout"] == "loader\n"


async def test_files_shells_and_background_processes_stay_from_one_action_to_the_next(
    acting: ActingEnvironment,
) -> None:
    await acting.output_of("cd /tmp; word=kept; sleep 300 & echo $! > background")
    assert await acting.output_of("pwd; echo $word; kill -0 $(cat background) && echo running") == "/tmp\nkept\nrunning"


async def test_files_go_in_and_out(acting: ActingEnvironment) -> None:
    act = acting.environment.act
    assert (await act("env.write", EnvWrite(path="/tmp/in/a", content="words\n"), CORE, 20)).passed
    assert (await act("env.read", EnvRead(path="/tmp/in/a"), CORE, 20)).output["content"] == "words\n"
    taken = await act("env.download", EnvDownload(path="/tmp/in"), CORE, 20)
    assert (await act("env.upload", EnvUpload(path="/tmp/out", archive=taken.output["archive"]), CORE, 20)).passed
    assert await acting.output_of("cat /tmp/out/in/a") == "words"
    listed = await act("env.list", EnvList(path="/tmp/in"), CORE, 20)
    assert [entry["name"] for entry in listed.output["entries"]] == ["a"]


async def test_bytes_pass_unchanged_in_any_number(acting: ActingEnvironment) -> None:
    content = base64.b64encode(bytes(range(256)) * 8192).decode()  # 2 MiB
    act = acting.environment.act
    assert (await act("env.write", EnvWrite(path="/tmp/b", content=content, encoding="base64"), CORE, 20)).passed
    assert (await act("env.read", EnvRead(path="/tmp/b", encoding="base64"), CORE, 20)).output["content"] == content


async def test_an_action_runs_on_the_cores_it_was_granted(acting: ActingEnvironment) -> None:
    status = await acting.output_of("grep Cpus_allowed_list /proc/self/status")
    assert status.split()[1] == ",".join(map(str, CORE))


async def test_an_action_over_its_time_is_ended_and_the_environment_continues(acting: ActingEnvironment) -> None:
    end = await acting.exec("sleep", "300", timeout_s=0.2)
    assert (end.ended_by, end.passed) == ("wall-limit", None)
    assert await acting.output_of("echo on") == "on"


async def test_a_cancelled_action_is_ended_and_the_environment_continues(acting: ActingEnvironment) -> None:
    running = asyncio.create_task(acting.exec("sh", "-c", "touch /tmp/begun; exec sleep 4321"))
    await asyncio.wait({running}, timeout=0.5)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    assert await acting.output_of("ps -e -o args | grep -c '^sleep 4321' || true") == "0"


async def test_between_actions_a_busy_loop_uses_no_core(acting: ActingEnvironment) -> None:
    await acting.output_of("while :; do :; done & echo $! > /tmp/busy")
    name = acting.environment.handle.container
    pid = int(docker_output("inspect", "--format", "{{.State.Pid}}", name))
    usage = ticks_of_children(pid)
    time.sleep(0.5)  # noqa: ASYNC251  # real time has to pass, and nothing of ours run
    assert ticks_of_children(pid) == usage
    await acting.output_of("kill $(cat /tmp/busy)")


async def test_a_program_that_always_forks_is_frozen_after_every_action(
    runtime: DockerRuntime, bare_image: str
) -> None:
    """A freezer of version 1 may miss a process that is being forked."""
    async with ActingEnvironment.making(runtime, bare_image) as made:
        await made.output_of("for i in 1 2 3; do while :; do /bin/true; done & done")
        for _ in range(20):
            assert (await made.exec("true")).passed
        if isinstance(made.environment.handle, DirectHandle):
            before = await made.environment.handle.usage()
            time.sleep(0.2)  # noqa: ASYNC251  # real time has to pass, and nothing of ours run
            assert (await made.environment.handle.usage()).cpu_s == before.cpu_s


def ticks_of_children(pid: int) -> int:
    """Return user and system ticks of all children of the container's first process, the busy loop included."""
    total = 0
    for child in docker_children(pid):
        with open(f"/proc/{child}/stat", encoding="ascii") as file:  # noqa: PTH123
            fields = file.read().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total


def docker_children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:  # noqa: PTH123
        return [int(child) for child in file.read().split()]


@past_the_engine
async def test_an_action_reports_its_usage(runtime: DockerRuntime, acting: ActingEnvironment) -> None:
    end = await acting.bash(
        "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; head -c 40M /dev/zero | tail -c 30M | wc -c"
    )
    assert end.cpu_s > 0.01
    assert end.peak_memory_bytes > 30 << 20


async def test_24_environments_act_at_once(runtime: DockerRuntime, bare_image: str) -> None:
    async def one(number: int) -> str:
        async with ActingEnvironment.making(runtime, bare_image, memory_mb=64) as made:
            await made.output_of(f"echo {number} > /tmp/number; sleep 300 &")
            timed_out = await made.exec("sleep", "300", timeout_s=0.2)
            assert timed_out.ended_by == "wall-limit"
            return await made.output_of("cat /tmp/number; jobs | grep -c sleep")

    output = await asyncio.gather(*(one(number) for number in range(24)))
    assert output == [f"{number}\n1" for number in range(24)]


async def test_closing_leaves_nothing_behind(
    bare_image: str, request: pytest.FixtureRequest, runtime: DockerRuntime
) -> None:
    node = node_name()
    other = await DockerRuntime.open(node, direct="direct" in request.node.callspec.id)
    async with ActingEnvironment.making(other, bare_image) as made:
        await made.output_of("sleep 300 &")
        assert containers_of(node) == [made.environment.handle.container]
        await other.close()
        assert not made.environment.alive
        end = await made.exec("true")
    assert (end.ended_by, end.reason) == ("lost", "it was closed")
    assert containers_of(node) == []
    assert node not in docker_output("volume", "ls", "--quiet")


async def test_closing_while_it_acts_ends_the_action(runtime: DockerRuntime, bare_image: str) -> None:
    async with ActingEnvironment.making(runtime, bare_image) as made:
        running = asyncio.create_task(made.exec("sleep", "300"))
        await asyncio.wait({running}, timeout=0.3)
        await made.environment.close()
        assert ((await running).ended_by, made.environment.alive) == ("lost", False)


async def test_a_container_killed_outside_is_lost_with_the_reason(runtime: DockerRuntime, bare_image: str) -> None:
    async with ActingEnvironment.making(runtime, bare_image) as made:
        running = asyncio.create_task(made.exec("sleep", "300"))
        await asyncio.wait({running}, timeout=0.3)
        docker_output("kill", made.environment.handle.container)
        end = await running
        assert (end.ended_by, end.reason) == ("lost", "its container was ended (exit code 137)")
        assert not made.environment.alive


async def test_a_container_removed_outside_is_lost_with_the_reason(runtime: DockerRuntime, bare_image: str) -> None:
    async with ActingEnvironment.making(runtime, bare_image) as made:
        docker_output("rm", "--force", made.environment.handle.container)
        end = await made.exec("true")
        assert (end.ended_by, end.reason) == ("lost", "its container was removed")
        assert not made.environment.alive


@past_the_engine
async def test_a_frozen_container_that_dies_is_known_to_be_dead(runtime: DockerRuntime, bare_image: str) -> None:
    """With a direct handle the descriptor of its first process reports the end."""
    async with ActingEnvironment.making(runtime, bare_image) as made:
        docker_output("kill", made.environment.handle.container)
        async with asyncio.timeout(10):
            while made.environment.alive:  # noqa: ASYNC110  # no action runs that would notice
                await asyncio.sleep(0.01)


async def test_a_command_has_the_same_output_in_both_images(
    runtime: DockerRuntime, acting: ActingEnvironment, tools_image: str
) -> None:
    params = EnvExec(argv=["sh", "-c", "echo out; echo err >&2; exit 3"], env={"A": "b"})
    async with ActingEnvironment.making(runtime, tools_image) as tools:
        ends = [await made.environment.act("env.exec", params, CORE, 20) for made in (acting, tools)]
    assert ends[0].output == ends[1].output
    assert ends[0].output["exit_code"] == 3
