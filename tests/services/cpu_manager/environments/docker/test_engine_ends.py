"""The engine is killed and restarted (a private engine: the host's is shared)."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cpu_manager.environments.docker.runtime import DockerRuntime
from services.cpu_manager.environments.protocol import RuntimeUnavailable
from shared.messages.environments import EnvironmentSpec
from tests.services.cpu_manager.environments.docker.containers import CORE, ActingEnvironment, node_name
from treadle.testing.small_image import build

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.usefixtures("docker")]


class ContainerEngine:
    """dockerd with `--live-restore`, everything it has under one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.url = f"unix://{root}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = (self._root / "log").open("ab")
        folders = {"data-root": "data", "exec-root": "exec", "pidfile": "pid"}
        options = [f"--{option}={self._root}/{name}" for option, name in folders.items()]
        network = ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-masq=false"]
        self._process = subprocess.Popen(
            # An engine without a bridge in its settings deletes the one it finds, which is another engine's.
            ["unshare", "--net", "dockerd", "--host", self.url, "--live-restore", *options, *network],
            stdout=log,
            stderr=log,
        )
        log.close()
        deadline = time.monotonic() + 60
        while self.command("version").returncode != 0:
            assert time.monotonic() < deadline, (self._root / "log").read_text()[-3000:]
            time.sleep(0.1)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        (self._root / "pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """Stop the engine and remove all its containers."""
        for container in self.command("ps", "--all", "--quiet").stdout.split():
            self.command("rm", "--force", "--volumes", container)
        assert self._process is not None
        self._process.terminate()
        self._process.wait(60)
        # Each start mounts its data over itself; one that was killed left that.
        while (
            subprocess.run(["umount", self._root / "data"], capture_output=True, timeout=60, check=False).returncode
            == 0
        ):
            pass

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "DOCKER_HOST": self.url}
        command = ["docker", *arguments]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[ContainerEngine]:
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        pytest.skip("an engine of our own needs root and dockerd")
    with tempfile.TemporaryDirectory(prefix="treadle-engine-", dir="/var/tmp") as root:
        made = ContainerEngine(Path(root))
        monkeypatch.setenv("DOCKER_HOST", made.url)
        try:
            made.start()
            yield made
        finally:
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                made.stop()


async def test_environments_outlive_their_engine_and_act_without_it(engine: ContainerEngine) -> None:
    build("treadletest:bare")
    runtime = await DockerRuntime.open(node_name(), url=engine.url)
    try:
        async with ActingEnvironment.making(runtime, "treadletest:bare") as made:
            await made.output_of("kept=yes; sleep 300 &")
            engine.kill()
            assert await made.output_of("echo $kept; jobs | grep -c sleep") == "yes\n1"
            with pytest.raises(RuntimeUnavailable):
                await runtime.create("new", EnvironmentSpec(image="treadletest:bare"), CORE)
            assert made.environment.alive
            engine.start()
            assert await made.output_of("echo $kept") == "yes"
            async with ActingEnvironment.making(runtime, "treadletest:bare") as new:
                assert await new.output_of("echo new") == "new"
    finally:
        await runtime.close()
    assert engine.command("ps", "--all", "--quiet").stdout == ""
