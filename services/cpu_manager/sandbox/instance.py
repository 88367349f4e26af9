"""The directory and name of one manager process, by which a later one finds and removes what a dead one left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from services.cpu_manager.sandbox.walls import cgroups


def default_scratch() -> Path:
    """A directory of this user alone, under the system's place for temporary files."""
    return Path(tempfile.gettempdir()) / f"treadle-sandbox-{os.getuid()}"


class Instance:
    """A directory held by a lock as long as this process lives. The kernel frees the lock however it dies."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(mode=0o711, parents=True, exist_ok=True)
        if scratch.stat().st_uid != os.getuid():
            raise PermissionError(f"{scratch} belongs to another user; give the sandbox a directory of its own")
        sweep(scratch)
        self.name = secrets.token_hex(6)
        self.directory = scratch / self.name
        self.directory.mkdir(mode=0o711)
        self._lock = _lock(self.directory)
        (self.directory / "root").mkdir()

    @property
    def view_root(self) -> str:
        """The empty directory on which zygotes put their view together."""
        return str(self.directory / "root")

    def close(self) -> None:
        """Remove the directory and let go of the lock."""
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock)


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def sweep(scratch: Path) -> list[str]:
    """Remove what dead managers left under `scratch`. Returns their names."""
    swept: list[str] = []
    for directory in scratch.iterdir():
        with contextlib.suppress(OSError):  # BlockingIOError: its manager lives
            descriptor = _lock(directory)
            cgroups.sweep(directory.name)
            shutil.rmtree(directory, ignore_errors=True)
            os.close(descriptor)
            swept.append(directory.name)
    return swept
