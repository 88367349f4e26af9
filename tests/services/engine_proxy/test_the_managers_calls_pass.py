"""All calls that the CPU manager's docker runtime makes for an environment pass the engine proxy."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cpu_manager.environments.docker.runtime import DockerRuntime
from services.cpu_manager.kinds import EnvBash, EnvRead, EnvWrite
from services.engine_proxy.app import EngineProxy
from services.engine_proxy.settings import EngineProxySettings
from shared.messages.environments import EnvironmentSpec
from treadle.testing.small_image import small_image

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker")]

NODE = f"managed{os.getpid()}"
PATIENCE_S = 120.0
CORES = frozenset({0})


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    with small_image(f"treadletest:{NODE}") as tag:
        yield tag


@pytest.mark.parametrize("direct", [False, True], ids=["by the engine alone", "past the engine"])
@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
async def test_a_whole_environment_through_the_proxy(
    tmp_path: Path, image: str, direct: bool, read_only: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = EngineProxySettings(node=NODE, listen=tmp_path / "proxy.sock", engine=Path("/var/run/docker.sock"))
    spec = EnvironmentSpec(image=image, memory_mb=256, workdir="/root", setup=["echo begun >note"], read_only=read_only)
    async with asyncio.timeout(PATIENCE_S), EngineProxy(settings):
        runtime = await DockerRuntime.open(NODE, url=f"unix://{settings.listen}", direct=direct)
        try:
            environment = await runtime.create("t1", spec, CORES)
            end = await environment.act("env.bash", EnvBash(line="A=kept; cat note; id -u"), CORES, 30)
            assert (end.ended_by, end.output["output"]) == ("done", "begun\n0\n"), end
            end = await environment.act("env.write", EnvWrite(path="/root/file", content="x" * 200_000), CORES, 30)
            assert end.passed, end
            end = await environment.act("env.read", EnvRead(path="/root/file"), CORES, 30)
            assert end.output["content"] == "x" * 200_000
            end = await environment.act("env.bash", EnvBash(line="echo $A"), CORES, 30)
            assert end.output["output"] == "kept\n"
            (taken_up,) = await runtime.survivors()
            assert taken_up.alive
            await runtime.prepare(image)
        finally:
            await runtime.close()
    assert NODE not in leftovers()
    assert "engine_call_rejected" not in capsys.readouterr().out


def leftovers() -> str:
    """Containers and volumes of the engine, by name."""
    commands = (["ps", "--all", "--format", "{{.Names}}"], ["volume", "ls"])
    return "".join(
        subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=30, check=True).stdout
        for argv in commands
    )
