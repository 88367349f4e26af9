"""A small disk that can be filled: a tmpfs of its own."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

TRIES = 1000


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A mounted file system, and the file that fills it."""

    root: Path

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize

    def fill(self, *, but_bytes: int = 0) -> None:
        """Leave at most so much free; 0: not a page. Fails if others write faster than this fills the disk."""
        with (self.root / "filler").open("ab", buffering=0) as filler:
            for _ in range(TRIES):
                over = self.free_bytes - but_bytes
                if over <= 0:
                    return
                try:
                    os.posix_fallocate(filler.fileno(), filler.tell(), over)
                except OSError as error:  # a service took some of it meanwhile: a tmpfs then gives nothing
                    if error.errno != errno.ENOSPC:
                        raise
                filler.seek(0, os.SEEK_END)
        pytest.fail(f"{self.free_bytes} bytes are still free after {TRIES} tries")

    def free(self) -> None:
        """Give back what `fill` took."""
        (self.root / "filler").unlink(missing_ok=True)


@contextmanager
def small_disk(root: Path, *, mebibytes: int) -> Iterator[SmallDisk]:
    """Mount a tmpfs on the folder `root`. Skips the test where mounting is not allowed."""
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=0711", "treadle-test", str(root)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted: {done.stderr.strip()}")
    try:
        yield SmallDisk(root)
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)
