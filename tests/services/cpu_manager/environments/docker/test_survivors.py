"""A manager that was killed leaves containers; the next one of the same node takes them up."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.cpu_manager.environments.detection import MeshContext, await_engine, open_runtimes
from services.cpu_manager.environments.docker.claim import Owner
from services.cpu_manager.environments.docker.container import name_of
from services.cpu_manager.environments.docker.runtime import DockerRuntime
from services.cpu_manager.environments.protocol import RuntimeUnavailable
from services.cpu_manager.sandboxed_graders import NoSandbox
from services.cpu_manager.settings import CpuManagerSettings
from shared.messages.environments import EnvironmentSpec
from tests.services.cpu_manager.environments.docker.containers import (
    CORE,
    ActingEnvironment,
    containers_of,
    docker_output,
    node_name,
)

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker")]

# A manager that creates an environment of an image on a node, and is killed during an action.
MANAGER = """
import asyncio, sys
from services.cpu_manager.environments.docker.runtime import DockerRuntime
from tests.services.cpu_manager.environments.docker.containers import CORE, EnvBash, EnvironmentSpec

async def main(node, way, image):
    runtime = await DockerRuntime.open(node, direct=way == "direct")
    spec = EnvironmentSpec(image=image, env={"WORD": "kept"}, memory_mb=64, workdir="/work")
    environment = await runtime.create("survivor", spec, CORE)
    await environment.act("env.bash", EnvBash(line="here=in_the_shell; sleep 1234 & echo $! > background"), CORE, 20)
    line = "echo begun > begun; while :; do :; done"
    acting = asyncio.ensure_future(environment.act("env.bash", EnvBash(line=line, session="busy"), CORE, 600))
    await asyncio.sleep(0.5)
    print(environment.handle.container, flush=True)
    await acting

asyncio.run(main(*sys.argv[1:]))
"""


@contextlib.asynccontextmanager
async def killed_manager(node: str, way: str, image: str) -> AsyncIterator[str]:
    """Yield the container of a manager that was killed during an action."""
    manager = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", MANAGER, node, way, image),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[5],
    )
    assert manager.stdout is not None
    try:
        container = (await asyncio.wait_for(manager.stdout.readline(), 60)).decode().strip()
        assert container, "the manager ended before its environment was created"
    finally:
        manager.send_signal(signal.SIGKILL)
        await manager.wait()
    try:
        yield container
    finally:
        for left in containers_of(node):
            docker_output("rm", "--force", "--volumes", left)


@pytest.mark.parametrize("after", ["direct", "through the engine"])
@pytest.mark.parametrize("before", ["direct", "through the engine"])
async def test_a_container_survives_a_killed_manager_and_is_adopted(bare_image: str, before: str, after: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("writing a container's control groups needs root")
    node = node_name()
    async with killed_manager(node, before, bare_image) as container:
        runtime = await DockerRuntime.open(node, direct=after == "direct")
        try:
            (survivor,) = await runtime.survivors()
            assert (survivor.trajectory, survivor.alive, survivor.spec.memory_mb) == ("survivor", True, 64)
            assert survivor.spec.env == {"WORD": "kept"}
            assert 0 < survivor.age_s < 60  # type: ignore[attr-defined]
            made = ActingEnvironment(survivor)  # type: ignore[arg-type]
            assert made.environment.handle.container == container
            assert await made.output_of("echo $here $WORD; pwd; cat begun") == "in_the_shell kept\n/work\nbegun"
            assert await made.output_of("kill -0 $(cat background) && echo running") == "running"
            # Actions of the killed manager have ended: only shells and the background sleep are left.
            assert "R" not in await made.output_of("ps -e -o stat,args | grep -v ps | cut -c 1 | sort -u")
        finally:
            await runtime.close()
        assert containers_of(node) == []


async def test_an_engine_that_answers_later_is_offered_and_its_survivors_are_ended(
    bare_image: str, tmp_path: Path
) -> None:
    """The node has already reported to the leader that it has no environments."""
    if os.geteuid() != 0:
        pytest.skip("writing a container's control groups needs root")
    socket = tmp_path / "docker.sock"
    settings = CpuManagerSettings.model_validate(
        {"node": node_name(), "engine": f"unix://{socket}", "engine_retry_s": 0.05}
    )
    async with (
        killed_manager(settings.node, "direct", bare_image),
        open_runtimes(settings, NoSandbox("not here"), MeshContext()) as opened,
    ):
        assert opened.runtimes.names == []
        coming = asyncio.create_task(await_engine(settings, opened, MeshContext()))
        socket.symlink_to(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://"))
        await asyncio.wait_for(coming, 60)
        assert opened.runtimes.names == ["docker"]
        assert not opened.labels["runtime.docker"].startswith("none")
        async with asyncio.timeout(60):
            while containers_of(settings.node):  # noqa: ASYNC110  # the other side is the engine
                await asyncio.sleep(0.1)
        async with ActingEnvironment.making(opened.runtimes.of(bare_image), bare_image) as made:  # type: ignore[arg-type]
            assert await made.output_of("echo new") == "new"


async def test_what_is_beyond_repair_is_removed(bare_image: str) -> None:
    node = node_name()
    async with killed_manager(node, "direct", bare_image) as container:
        docker_output("kill", container)
        strange = docker_output("create", *labels(node), bare_image, "true")
        runtime = await DockerRuntime.open(node)
        try:
            assert set(containers_of(node)) == {container, strange}
            assert await runtime.survivors() == []
        finally:
            await runtime.close()
        assert containers_of(node) == []


async def test_the_volume_of_an_earlier_version_goes_with_its_last_container(bare_image: str) -> None:
    node = node_name()
    earlier = f"treadle-agent-{node}-{'0' * 12}"
    mount = f"type=volume,source={earlier},target=/run/treadle/agent"
    docker_output("create", *labels(node), "--mount", mount, bare_image, "true")
    runtime = await DockerRuntime.open(node)
    assert await runtime.survivors() == []
    await runtime.close()
    assert containers_of(node) == []
    assert earlier not in docker_output("volume", "ls", "--quiet")


async def test_another_nodes_containers_are_left_in_peace(bare_image: str) -> None:
    runtime, other = await DockerRuntime.open(node_name()), await DockerRuntime.open(node_name())
    try:
        async with ActingEnvironment.making(runtime, bare_image) as made:
            assert await other.survivors() == []
            await other.close()
            assert await made.output_of("echo here") == "here"
    finally:
        await runtime.close()


async def test_a_node_of_another_mesh_is_another_owner_whatever_its_name(bare_image: str) -> None:
    """Two meshes on one host have nodes of the same name by default. Their trajectories may even share a name."""
    node = node_name()
    first, second = await DockerRuntime.open(node, mesh="a" * 16), await DockerRuntime.open(node, mesh="b" * 16)
    spec = EnvironmentSpec(image=bare_image, memory_mb=64)
    try:
        ours, theirs = [ActingEnvironment(await one.create("same", spec, CORE)) for one in (first, second)]
        assert await ours.output_of("echo ours > /tmp/whose; cat /tmp/whose") == "ours"
        await second.close()
        assert not theirs.environment.alive
        assert containers_of(node) == [ours.environment.handle.container]
        second = await DockerRuntime.open(node, mesh="b" * 16)
        assert await second.survivors() == []
        assert await ours.output_of("cat /tmp/whose") == "ours"
        # The volume is theirs alone, too: another container can be made.
        async with ActingEnvironment.making(first, bare_image) as another:
            assert await another.output_of("echo here") == "here"
    finally:
        await second.close()
        await first.close()
    assert containers_of(node) == []
    assert node not in docker_output("volume", "ls", "--quiet")


async def test_a_second_manager_of_a_node_starts_nothing_until_the_first_has_ended(bare_image: str) -> None:
    node = node_name()
    first = await DockerRuntime.open(node)
    async with ActingEnvironment.making(first, bare_image) as made:
        with pytest.raises(RuntimeUnavailable, match="another manager on this host owns the containers"):
            await DockerRuntime.open(node, claim_s=0.1)
        assert await made.output_of("echo here") == "here"
        waiting = asyncio.create_task(DockerRuntime.open(node, claim_s=60.0))
        await first.close()
    second = await waiting
    async with ActingEnvironment.making(second, bare_image) as made:
        assert await made.output_of("echo here") == "here"
    await second.close()
    assert containers_of(node) == []


async def test_a_container_of_anothers_with_our_name_is_not_removed(bare_image: str) -> None:
    node = node_name()
    runtime = await DockerRuntime.open(node)
    strange = docker_output("create", "--name", name_of(Owner(node), "same"), bare_image, "true")
    try:
        with pytest.raises(RuntimeUnavailable, match="is a container of another owner"):
            await runtime.create("same", EnvironmentSpec(image=bare_image, memory_mb=64), CORE)
        assert docker_output("inspect", "--format", "{{.Id}}", strange) == strange
    finally:
        docker_output("rm", "--force", strange)
        await runtime.close()


def labels(node: str) -> list[str]:
    """Labels of a container of a runtime that is part of no mesh."""
    return [word for label in Owner(node).filters for word in ("--label", label)]
