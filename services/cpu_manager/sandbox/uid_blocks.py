"""Blocks of user ids without names. Two living managers that see the same directory of locks hold different ones.

The kernel releases a lock when its manager has died (`test_uid_blocks.py`). Managers in different containers have
different directories. So have managers with different `TMPDIR` if `/run` cannot be written. Two of them choose the same
block with a probability of one in `BLOCKS` (ADR 0047).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path
from typing import Final

BLOCKS: Final = 3_000
_RUN: Final = Path("/run")
_NAME: Final = "treadle-sandbox-users"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class UidBlock:
    """One block, held until `close`."""

    def __init__(self, wanted: int, folder: Path | None = None) -> None:
        """Claim the first free block from `wanted` on. For root alone.

        Args:
            wanted: number from which the search begins; random, so that it ends at once.
            folder: directory of the locks; default: of this host.
        Raises:
            PermissionError: the directory belongs to another user.
            OSError: all blocks are held.
        """
        descriptor = _own(folder or (_RUN if os.access(_RUN, os.W_OK) else Path(tempfile.gettempdir())) / _NAME)
        try:
            for step in range(BLOCKS):
                self.number = (wanted + step) % BLOCKS
                self._lock = os.open(str(self.number), _FILE, 0o600, dir_fd=descriptor)
                try:
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(self._lock)
                else:
                    return
        finally:
            os.close(descriptor)
        raise OSError(f"all {BLOCKS} blocks of user ids are held by managers on this host")

    def close(self) -> None:
        """Let other managers have it. Only after the end of all processes with its ids."""
        os.close(self._lock)


def _own(path: Path) -> int:
    """Return a descriptor of a directory that is root's."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    descriptor = os.open(path, _FOLDER)
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(f"{path} belongs to another user: remove it")
    return descriptor
