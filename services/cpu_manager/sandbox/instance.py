"""Directory and name of one manager process. By them a later manager finds and removes what a dead one left.

The default directory has a guessable name in a directory that others can write to. Therefore every directory is opened
without following links and used only if it belongs to this user. Only names that an instance generates are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from subprocess import DEVNULL
from typing import Final

from services.cpu_manager.sandbox.uid_blocks import BLOCKS, UidBlock
from services.cpu_manager.sandbox.walls import cgroups

_GROUPS: Final = "groups"
_LOCK: Final = "lock"
_NAME_BYTES: Final = 6
_NAME: Final = re.compile(rf"[0-9a-f]{{{2 * _NAME_BYTES}}}")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def discard(directory: str | Path) -> None:
    """Remove a tree, even if a program made it very deep or removed permissions. What cannot be removed is left.

    Neither command follows links out of the tree. Root ignores permissions; for other users they are restored first.
    """
    _run("rm", "-rf", "--", str(directory))
    if os.geteuid() != 0 and os.path.lexists(directory):
        _run("chmod", "-R", "u+rwX", "--", str(directory))
        _run("rm", "-rf", "--", str(directory))


def _run(*command: str) -> None:
    subprocess.run(command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, check=False)


def default_scratch() -> Path:
    """Return a directory of this user alone, inside the system's directory for temporary files."""
    return Path(tempfile.gettempdir()) / f"treadle-sandbox-{os.geteuid()}"


class Instance:
    """A directory that is locked while this process lives. The kernel releases the lock however the process dies."""

    def __init__(self, scratch: Path) -> None:
        """Raise PermissionError if `scratch` is not a directory of this user, or if others could replace it."""
        self._scratch = _own_folder(scratch)
        try:
            sweep(scratch)
            self.name = secrets.token_hex(_NAME_BYTES)
            self.directory = scratch / self.name
            os.mkdir(self.name, 0o700, dir_fd=self._scratch)
            self._folder = os.open(self.name, _FOLDER, dir_fd=self._scratch)
            self._lock = _lock(self._folder)
        except BaseException:
            os.close(self._scratch)
            raise
        (self.directory / "root").mkdir()
        self._users: UidBlock | None = None

    @property
    def view_root(self) -> str:
        """The empty directory on which zygotes mount their view."""
        return str(self.directory / "root")

    @property
    def uid_block(self) -> int:
        """Block of user ids of this instance (`uid_blocks`), claimed at the first use. For root only."""
        if self._users is None:
            self._users = UidBlock(int(self.name, 16) % BLOCKS)
        return self._users.number

    def make_passable(self) -> None:
        """Let other users reach their directories below: on the Landlock rung root's programs run as other users."""
        for folder in (self._scratch, self._folder):
            os.fchmod(folder, 0o711)

    def record_groups(self, groups: Iterable[Path]) -> None:
        """Record the control groups of this manager, because the sweep of another manager may not find them itself."""
        (self.directory / _GROUPS).write_text("".join(f"{group}\n" for group in groups), encoding="utf-8")

    def close(self) -> None:
        """Release the lock, and remove the directory unless it is still needed to sweep a control group."""
        if not any(group.exists() for group in _recorded_groups(self._folder)):
            discard(self.directory)
        if self._users is not None:
            self._users.close()
        for descriptor in (self._lock, self._folder, self._scratch):
            os.close(descriptor)


def _own_folder(path: Path) -> int:
    """Create a directory of mode 0700, or check that the existing one is ours. Return a descriptor of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parent = path.parent.stat()
    if parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        raise PermissionError(f"everybody may rename files in {path.parent}: set TMPDIR to another directory")
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    remedy = "remove it, or set TMPDIR to a directory of your own"
    try:
        descriptor = os.open(path, _FOLDER)
    except OSError as error:
        raise PermissionError(f"{path} is not a directory, or a symbolic link to one: {remedy}") from error
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(f"{path} belongs to uid {found.st_uid}, not to {os.geteuid()}: {remedy}")
    if found.st_mode & 0o066:
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & 0o711)
    return descriptor


def _lock(folder: int) -> int:
    """Lock the instance in a directory. Raise BlockingIOError while its manager lives."""
    descriptor = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _recorded_groups(folder: int) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(_GROUPS, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        with open(descriptor, encoding="utf-8") as file:  # noqa: PTH123  # by descriptor
            return [Path(line) for line in file.read().splitlines()]
    return []


def sweep(scratch: Path) -> list[str]:
    """Remove what dead managers left under `scratch`. Return their names.

    Only directories of this user with generated names are removed. A link with such a name is left alone.
    """
    descriptor = _own_folder(scratch)
    try:
        names = [name for name in os.listdir(descriptor) if _NAME.fullmatch(name)]  # noqa: PTH208  # by descriptor
        return [name for name in names if _sweep(scratch / name, descriptor)]
    finally:
        os.close(descriptor)


def _sweep(directory: Path, scratch: int) -> bool:
    """Remove the directory of a manager if it has died. Return True if it was removed."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:  # BlockingIOError: its manager lives
        folder = os.open(directory.name, _FOLDER, dir_fd=scratch)
        opened.callback(os.close, folder)
        if os.fstat(folder).st_uid == os.geteuid():
            opened.callback(os.close, _lock(folder))
            cgroups.sweep(directory.name, _recorded_groups(folder))
            discard(directory)
            return True
    return False
