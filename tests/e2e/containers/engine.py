"""A Docker engine of a test's own, for tests that kill one: it has no other containers.

It has its own socket and folders, and `--live-restore`: its containers outlive it. It has no network, in a network
namespace of its own: configured without a bridge, an engine deletes `docker0`, which may be another's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

START_S = 60.0
STOP_S = 30.0
NO_NETWORK = ("--bridge=none", "--iptables=false")


@dataclass
class PrivateEngine:
    """One engine, started and killed at will."""

    folder: Path
    options: tuple[str, ...] = ()
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def socket(self) -> Path:
        return self.folder / "docker.sock"

    @property
    def url(self) -> str:
        """For `CPU_MANAGER_DOCKER_HOST` or `DOCKER_HOST`."""
        return f"unix://{self.socket}"

    def start(self) -> None:
        """Return once it answers; it manages the containers of its earlier process again.

        Raises:
            RuntimeError: it ended or did not answer in `START_S`; the end of its log is the message.
        """
        folders = [f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec", f"--pidfile={self.folder}/pid"]
        argv = ["unshare", "--net", "dockerd", *folders, f"--host={self.url}", "--live-restore", *NO_NETWORK]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*argv, *self.options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            if self.docker("version", check=False).returncode == 0:
                return
            time.sleep(0.1)
        raise RuntimeError("\n".join((self.folder / "log").read_text().splitlines()[-20:]))

    def kill(self) -> None:
        """Kill it: its containers continue."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S)
        # Its containerd dies with it; an init that reaps late keeps the pid, and the next engine would wait for it.
        number = self.folder / "exec/containerd/containerd.pid"
        deadline = time.monotonic() + STOP_S
        while _runs(int(number.read_text())):
            assert time.monotonic() < deadline, "containerd outlives its engine"
            time.sleep(0.02)
        number.unlink()

    def docker(self, *argv: str, check: bool = True, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run the `docker` command on it."""
        return subprocess.run(
            ["docker", "--host", self.url, *argv], input=stdin, capture_output=True, timeout=START_S, check=check
        )

    def close(self) -> None:
        """Remove its containers, stop it, and leave nothing of it."""
        if self._process is None or self._process.poll() is not None:
            self.start()
        assert self._process is not None
        if containers := self.docker("ps", "--all", "--quiet").stdout.decode().split():
            self.docker("rm", "--force", "--volumes", *containers)
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self._process.kill()
        self._process.wait(STOP_S)


@contextmanager
def private_engine(*options: str) -> Iterator[PrivateEngine]:
    """A running engine in a folder that goes away; root only. About two seconds.

    Args:
        options: more of dockerd's.
    """
    folder = Path(tempfile.mkdtemp(prefix="treadle-engine-", dir="/var/tmp"))
    engine = PrivateEngine(folder, options)
    try:
        engine.start()
        yield engine
    finally:
        try:
            engine.close()
        finally:
            _unmount_all(folder)
            shutil.rmtree(folder)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _unmount_all(folder: Path) -> None:
    """Mounts that a killed engine left, innermost first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    for point in sorted((line.split(" ")[1] for line in lines), reverse=True):
        if point.startswith(f"{folder}{os.sep}"):
            subprocess.run(["umount", "--lazy", point], check=True, timeout=STOP_S)
