"""The directory and name of one manager process, by which a later one finds and removes what a dead one left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from subprocess import DEVNULL
from typing import Final

from services.cpu_manager.sandbox.walls import cgroups

_GROUPS: Final = "groups"


def discard(directory: str | Path) -> None:
    """Remove a tree that a program may have made as deep and as closed as it could. What resists is left."""
    for command in (("chmod", "-R", "u+rwX"), ("rm", "-rf")):
        subprocess.run([*command, "--", str(directory)], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, check=False)


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

    def note(self, groups: Iterable[Path]) -> None:
        """Write down the control groups of this manager: another's sweep may not be able to guess where they are."""
        (self.directory / _GROUPS).write_text("".join(f"{group}\n" for group in groups), encoding="utf-8")

    def close(self) -> None:
        """Let go of the lock, and remove the directory unless it is still needed to sweep a control group."""
        if not any(group.exists() for group in _noted(self.directory)):
            discard(self.directory)
        os.close(self._lock)


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _noted(directory: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return [Path(line) for line in (directory / _GROUPS).read_text(encoding="utf-8").splitlines()]
    return []


def sweep(scratch: Path) -> list[str]:
    """Remove what dead managers left under `scratch`. Returns their names."""
    swept: list[str] = []
    for directory in scratch.iterdir():
        with contextlib.suppress(OSError):  # BlockingIOError: its manager lives
            descriptor = _lock(directory)
            cgroups.sweep(directory.name, _noted(directory))
            discard(directory)
            os.close(descriptor)
            swept.append(directory.name)
    return swept
