"""Child processes that do not outlive their parent."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from treadle.stack.account import Account

SERVICE_VARIABLE = "TREADLE_SERVICE"
"""Variable with the service's name, in the environment of every process of a stack that keeps its environment."""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Launch:
    """Parameters of a program's start. A value, so that a test can examine it."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    account: Account | None = None
    """Account of the child; None: ours."""
    cwd: Path = Path("/")
    stop_signal: signal.Signals = signal.SIGTERM
    """Signal that ends it in good order."""
    grace_s: float = 20.0
    """Time for that before it is killed."""
    death_signal: signal.Signals = signal.SIGKILL
    """Signal that the kernel sends it if we end without having stopped it."""


@dataclass(slots=True)
class _Libc:
    prctl: Callable[..., int] = field(default_factory=lambda: ctypes.CDLL(None, use_errno=True).prctl)


def start(launch: Launch, *, output: int | IO[bytes], inherit: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    """Start ``launch`` in a session of its own. Its standard output and error go to ``output``.

    Call it from the main thread, because the kernel sends ``death_signal`` when the *thread* that forked ends.
    """
    parent, prctl = os.getpid(), _Libc().prctl  # loaded before the fork, because the child must not take locks

    def bind_to_parent() -> None:
        prctl(PR_SET_PDEATHSIG, int(launch.death_signal), 0, 0, 0)
        if os.getppid() != parent:  # it ended before the line above took effect
            os.kill(os.getpid(), signal.SIGKILL)

    # preexec_fn runs after the change of user, which would clear the signal.
    return subprocess.Popen(
        launch.argv,
        env={**launch.env, SERVICE_VARIABLE: launch.name},
        cwd=launch.cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=bind_to_parent,  # noqa: PLW1509 - two system calls; takes no lock that a thread could hold
        pass_fds=inherit,
        **(launch.account.popen() if launch.account else {}),
    )


def stop(process: subprocess.Popen[bytes], launch: Launch) -> None:
    """Stop ``process`` in good order, or kill it after its grace; then kill the rest of its process group. Blocks."""
    process.send_signal(launch.stop_signal)
    try:
        process.wait(launch.grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(launch.grace_s)
    finally:
        kill_group(process.pid)


def kill_group(pid: int) -> None:
    """Kill the rest of the process group led by ``pid``, if there is any."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def adopt_orphans() -> None:
    """Become the parent of every orphaned descendant, so that none can escape by forking twice."""
    _Libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
