"""Services without a supervisor, for tests that stop, kill and double them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from treadle.stack.process import Launch, start, stop
from treadle.testing.servers import START_TIMEOUT_S, clean_environment


@dataclass(frozen=True, slots=True)
class Service:
    """One running process of a service."""

    name: str
    url: str
    process: subprocess.Popen[bytes]

    def await_alive(self) -> None:
        """Block until it answers; half a minute at most."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers(self.url + "/healthz"):
            assert self.process.poll() is None, f"{self.name} ended with status {self.process.returncode}"
            assert time.monotonic() < deadline, f"{self.name} does not answer"
            time.sleep(0.02)

    def kill(self) -> None:
        """`kill -9`, and wait for its end."""
        self.process.kill()
        self.process.wait(30)

    def freeze(self) -> None:
        """SIGSTOP: it holds its connections and its beliefs, and does nothing."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.process.pid, signal.SIGCONT)


@contextmanager
def running_service(name: str, redis_url: str, **environ: str) -> Iterator[Service]:
    """`services.<name>` against this Valkey, entered once it is alive (not yet ready); stopped at the end.

    `environ`: its settings. What it has written goes to this process's standard error at the end, where pytest shows it
    with a test that failed. A service that was left frozen is thawed, or it could not stop.
    """
    port = free_port()
    environment = {
        **clean_environment(),
        "TREADLE_REDIS_URL": redis_url,
        f"{name.upper()}_PORT": str(port),
        **environ,
    }
    argv = (sys.executable, "-m", "treadle.stack.serve", name, f"services.{name}.app:create_app")
    launch = Launch(name, argv, environment, cwd=Path.cwd(), stop_signal=signal.SIGTERM)
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as output:
        process = start(launch, output=output)
        service = Service(name, url, process)
        try:
            service.await_alive()
            yield service
        finally:
            if process.poll() is None:
                service.thaw()
                stop(process, launch)
            output.seek(0)
            sys.stderr.write(f"---- {name} at {url}\n{output.read().decode(errors='replace')}\n")


def answers(url: str) -> bool:
    """Return whether the reply is a 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
