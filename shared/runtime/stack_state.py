"""State that the supervisor publishes: one JSON file, replaced as a whole at each change, and one lock.

The lock decides whether a stack is up, because the kernel releases it however the supervisor ends.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import msgspec

from shared.runtime.identity import Identity


class StackError(Exception):
    """The stack cannot be started, stopped or found. The message has an instruction for the person at the terminal."""


class State(StrEnum):
    """State of a service."""

    STARTING = "starting"
    """Its process runs and has not been ready yet."""
    HEALTHY = "healthy"
    UNREADY = "unready"
    """It was ready and is not now. It gets time to recover."""
    RESTARTING = "restarting"
    """It has ended and will be started again."""
    FAILED = "failed"
    """It ends repeatedly. It is started again every 30 s."""
    GONE = "gone"
    """Its recorded process does not run. The supervisor has not noticed yet, or cannot write."""
    STOPPED = "stopped"
    EXTERNAL = "external"
    """A server of another owner, named by TREADLE_REDIS_URL or TREADLE_DATABASE_URL."""


class Phase(StrEnum):
    """State of the stack as a whole."""

    STARTING = "starting"
    UP = "up"
    STOPPING = "stopping"
    FAILED = "failed"
    STOPPED = "stopped"


class ServiceState(msgspec.Struct, frozen=True):
    """One line of ``treadle status``."""

    name: str
    pid: int | None
    url: str
    state: State
    started: int | None = None
    """Start of the process in clock ticks after boot. Together with the pid it identifies the process."""
    restarts: int = 0
    last_end: str = ""
    """Description of its last end, for people."""

    @property
    def identity(self) -> Identity | None:
        return Identity(self.pid, self.started) if self.pid is not None and self.started is not None else None

    def checked(self) -> "ServiceState":
        """Return the same state, or `gone` if the recorded process does not run."""
        if self.identity is None or self.identity.alive():
            return self
        return msgspec.structs.replace(self, state=State.GONE, pid=None, started=None)


class StackState(msgspec.Struct, frozen=True):
    """The whole file ``run/state.json``."""

    pid: int
    started: int
    phase: Phase
    services: tuple[ServiceState, ...] = ()
    error: str = ""
    """Reason why the stack failed, for people."""

    @property
    def supervisor(self) -> Identity:
        return Identity(self.pid, self.started)

    def url(self, name: str) -> str:
        """Return the address of the service ``name``.

        Raises:
            StackError: there is no such service.
        """
        for service in self.services:
            if service.name == name:
                return service.url
        raise StackError(f"this stack has no service {name}: it has {', '.join(s.name for s in self.services)}")


def write_state(root: Path, state: StackState) -> None:
    path = _path(root)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(msgspec.json.encode(state))
    unfinished.replace(path)


def read_state(root: Path) -> StackState | None:
    """Return what the last supervisor of ``root`` wrote, whether it runs or not; None if there was none.

    Raises:
        StackError: the file is unreadable or of another user; ``root`` is not a folder.
    """
    try:
        return msgspec.json.decode(_path(root).read_bytes(), type=StackState)
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise StackError(f"TREADLE_HOME {root} is not a folder") from error
    except (OSError, msgspec.MsgspecError) as error:
        raise StackError(f"cannot read {_path(root)}: {error}. Are you the user who started this stack?") from error


def is_supervised(root: Path) -> bool:
    """Return whether a supervisor holds the lock of ``root``."""
    try:
        with supervising(root):
            return False
    except AlreadySupervised:
        return True
    except FileNotFoundError:
        return False


class AlreadySupervised(StackError):
    """Another supervisor holds this home's lock."""


@contextmanager
def supervising(root: Path) -> Iterator[None]:
    """Hold the lock of ``root``, whose ``run`` folder exists.

    Raises:
        AlreadySupervised: another process holds it.
        StackError: the folder belongs to another user, or ``root`` is not a folder.
    """
    path = root / "run" / "lock"
    try:
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except NotADirectoryError as error:
        raise StackError(f"TREADLE_HOME {root} is not a folder") from error
    except PermissionError as error:
        raise StackError(f"cannot open {path}: {error.strerror}. Are you the user who started this stack?") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadySupervised(f"the stack in {root} is already up: see treadle status") from None
        yield
    finally:
        os.close(lock)


def _path(root: Path) -> Path:
    return root / "run" / "state.json"
