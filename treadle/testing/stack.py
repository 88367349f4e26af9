"""A whole stack for a test or a demo: every service a process, as ``treadle up`` runs them, on free ports."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from shared.runtime.stack_state import ServiceState, StackError, StackState, State, is_supervised, read_state
from treadle.mesh import mesh_command
from treadle.stack.home import Home, open_home
from treadle.stack.operate import await_up, stop_stack
from treadle.stack.postgres import postgres_url
from treadle.stack.process import Launch, start
from treadle.stack.valkey import valkey_url
from treadle.testing.servers import clean_environment

HEALTHY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


class RunningStack:
    """A running stack, as a test reads and disturbs it."""

    def __init__(self, home: Home, supervisor: subprocess.Popen[bytes]) -> None:
        self.home = home
        self.supervisor = supervisor
        self.redis_url = valkey_url(home)
        self.database_url = postgres_url(home)

    @property
    def state(self) -> StackState:
        """Present state of the stack."""
        state = read_state(self.home.root)
        if state is None:
            raise StackError(f"{self.home.root} holds no state")
        return state

    @property
    def urls(self) -> dict[str, str]:
        """Address of each service by its name, ``valkey`` and ``postgres`` among them; they outlive restarts."""
        return {service.name: service.url for service in self.state.services}

    @property
    def pids(self) -> dict[str, int]:
        """Process of each service that runs now."""
        return {service.name: service.pid for service in self.state.services if service.pid is not None}

    def service(self, name: str) -> ServiceState:
        """One service as it is now; ``name`` may be ``valkey`` or ``postgres``."""
        return next(service for service in self.state.services if service.name == name)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a service; the pid that got it, for ``await_healthy(name, other_than=pid)``."""
        pid = self.pids[name]
        os.kill(pid, number)
        return pid

    def await_healthy(self, name: str, *, other_than: int | None = None) -> int:
        """Block until ``name`` is healthy, as another process than ``other_than``; its pid. 60 s at most.

        In an async test: ``await asyncio.to_thread(stack.await_healthy, name, other_than=pid)``.

        Raises:
            StackError: it did not become healthy in time.
        """
        deadline = time.monotonic() + HEALTHY_TIMEOUT_S
        while True:
            service = self.service(name)
            if service.state is State.HEALTHY and service.pid is not None and service.pid != other_than:
                return service.pid
            if time.monotonic() > deadline:
                raise StackError(f"{name} is {service.state}, not healthy: {service.last_end}\n{self.log(name)}")
            time.sleep(0.02)

    def log(self, name: str) -> str:
        """Everything ``name`` has printed; ``treadle`` is the supervisor, ``prepare`` the migration."""
        return (self.home.log / f"{name}.log").read_text(errors="replace")


@contextmanager
def running_stack(
    root: Path, *, services: str = "", environ: Mapping[str, str] | None = None
) -> Iterator[RunningStack]:
    """A stack on the home ``root``, up when the block is entered and gone when it is left. About 3 s.

    Data found in ``root`` is used again, so that two blocks in a row are a restart. The stack dies with this process.

    Args:
        root: a folder that the servers' account can enter, see ``temporary_home``.
        services: as ``STACK_SERVICES``; empty: all.
        environ: settings for the services, on top of a clean environment.
    Raises:
        StackError: it did not come up.
    """
    home = open_home(root)
    environment = {
        **clean_environment(),
        "TREADLE_HOME": str(root),
        "PROXY_PORT": "0",
        "STACK_SERVICES": services,
        **(environ or {}),
    }
    command = mesh_command("treadle.stack")
    launch = Launch("supervisor", command, environment, cwd=Path.cwd(), death_signal=signal.SIGTERM)
    printed = home.log / "supervisor.log"
    with printed.open("wb") as output:
        process = start(launch, output=output)
    try:
        await_up(process, root, printed, changed=lambda _: None)
        yield RunningStack(home, process)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)
        if not is_supervised(root):  # it may belong to another process, whose stack must not be stopped
            stop_stack(root)
