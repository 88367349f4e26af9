"""Free space of the disks that hold the stores, and the reserve that new work must leave.

A store that meets a full disk ends (Valkey) or recovers from its log again and again (PostgreSQL), so new work is
refused earlier. The reserve is a fixed part, for the answers of accepted work and PostgreSQL's log, and the size of
Valkey's data set, because rewriting the append-only file writes the data set once more beside the old file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shared.runtime import log
from shared.runtime.errors import Overloaded

MEBIBYTE: Final = 1 << 20
RETRY_S: Final = 5.0
"""Retry-After of what a short disk refuses: somebody has to free space."""

_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """One file system at one moment."""

    path: Path
    """A folder on it."""
    total_bytes: int
    free_bytes: int
    """That an ordinary account may still write."""

    @property
    def used_share(self) -> float:
        """From 0 (empty) to 1 (full)."""
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 1.0


def store_paths(setting: str) -> tuple[Path, ...]:
    """The folders that `TREADLE_STORE_PATHS` names, separated as in PATH."""
    return tuple(Path(path) for path in setting.split(os.pathsep) if path)


def fullest(paths: Sequence[Path]) -> DiskSpace | None:
    """Return the file system with the least free space; None without paths. Blocks: one statvfs a path.

    Raises:
        OSError: a path cannot be reached.
    """
    spaces = []
    for path in paths:
        found = os.statvfs(path)
        spaces.append(DiskSpace(path, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize))
    return min(spaces, key=lambda space: space.free_bytes, default=None)


def short_of_disk(shortage: str) -> Overloaded:
    """The refusal of new work for this reason (`StoreDisk.shortage`)."""
    return Overloaded(what=shortage, retry_after_s=RETRY_S)


class StoreDisk:
    """Free space of the stores' disks as last measured, against the reserve of new work."""

    def __init__(self, paths: Sequence[Path], *, reserve_bytes: int) -> None:
        """`paths`: folders of the stores; none where they are on other machines, and then nothing is refused.

        `reserve_bytes`: the fixed part of the reserve.
        """
        self._paths = tuple(paths)
        self._fixed_bytes = reserve_bytes
        self.data_set_bytes = 0
        """Of Valkey, as last heard."""
        self.space: DiskSpace | None = None
        """The fullest disk at the last measurement; None: not measured, or it cannot be."""

    @property
    def measurable(self) -> bool:
        """Whether the stores' folders are known."""
        return bool(self._paths)

    @property
    def reserve_bytes(self) -> int:
        """New work is accepted while at least so much is free."""
        return self._fixed_bytes + self.data_set_bytes

    def shortage(self) -> str | None:
        """Why new work is refused now, for people; None while it is accepted.

        Asked by each that begins work: `Intake`, `BatchBook.open`, `TrajectoryBook.open`. Repeats of what was accepted
        are none.
        """
        space = self.space
        if space is None or space.free_bytes >= self.reserve_bytes:
            return None
        return (
            f"the disk of the stores ({space.path}) has {space.free_bytes // MEBIBYTE} MiB free, and new work needs"
            f" {-(-self.reserve_bytes // MEBIBYTE)} MiB"
        )

    def measure(self) -> None:
        """Measure now. Blocks: one statvfs a path. A disk that cannot be measured refuses nothing."""
        was_short = self.shortage() is not None
        try:
            self.space = fullest(self._paths)
        except OSError as error:
            if self.space is not None:
                _log.warning("disk_not_measured", error=str(error))
            self.space = None
        shortage = self.shortage()
        if shortage is not None and not was_short:
            _log.warning("disk_short", reason=shortage)
        elif was_short and shortage is None:
            _log.warning("disk_has_room_again")
