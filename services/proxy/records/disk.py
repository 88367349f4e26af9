"""Free space of the disks that hold the stores, and the reserve that new work must leave.

A store that meets a full disk ends (Valkey) or recovers from its log again and again (PostgreSQL). So new work is
rejected earlier. The reserve is a fixed part plus the size of Valkey's data set. The fixed part is for the answers of
accepted work and PostgreSQL's log. A rewrite of the append-only file writes the data set again beside the old file.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from shared.bus.memory import store_memory
from shared.runtime import log
from shared.runtime.errors import Overloaded

MEBIBYTE: Final = 1 << 20
RETRY_S: Final = 5.0
"""Retry-After while the disk is short. An operator has to free space."""
MEASURE_S: Final = 1.0
"""Interval of measurements. A store that writes 100 MB/s uses a fifth of the default reserve in this time."""

_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """One file system at one time."""

    path: Path
    """A folder on it."""
    total_bytes: int
    free_bytes: int
    """Bytes that an ordinary account can still write."""

    @property
    def used_share(self) -> float:
        """From 0 (empty) to 1 (full)."""
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 1.0


def store_paths(setting: str) -> tuple[Path, ...]:
    """Return the folders of `TREADLE_STORE_PATHS`, separated as in PATH."""
    return tuple(Path(path) for path in setting.split(os.pathsep) if path)


def fullest(paths: Sequence[Path]) -> DiskSpace | None:
    """Return the file system with the least free space; None without paths. Blocks: one statvfs per path.

    Raises:
        OSError: a path cannot be reached.
    """
    spaces = []
    for path in paths:
        found = os.statvfs(path)
        spaces.append(DiskSpace(path, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize))
    return min(spaces, key=lambda space: space.free_bytes, default=None)


def short_of_disk(shortage: str) -> Overloaded:
    """Return the error that rejects new work for this reason (`StoreDisk.shortage`)."""
    return Overloaded(what=shortage, retry_after_s=RETRY_S)


class StoreDisk:
    """Free space of the stores' disks as last measured, compared with the reserve."""

    def __init__(self, paths: Sequence[Path], *, reserve_bytes: int) -> None:
        """`paths`: folders of the stores. Without any (the stores are on other machines) nothing is rejected.

        `reserve_bytes`: the fixed part of the reserve.
        """
        self._paths = tuple(paths)
        self._fixed_bytes = reserve_bytes
        self.data_set_bytes = 0
        """Size of Valkey's data set, as last read."""
        self.space: DiskSpace | None = None
        """The fullest disk at the last measurement; None: not measured, or not measurable."""

    @property
    def measurable(self) -> bool:
        """True if the stores' folders are known."""
        return bool(self._paths)

    @property
    def reserve_bytes(self) -> int:
        """Least free bytes with which new work is accepted."""
        return self._fixed_bytes + self.data_set_bytes

    def shortage(self) -> str | None:
        """Return why new work is rejected now, as text for people; None while it is accepted.

        Called by `Intake`, `BatchService.open` and `TrajectoryService.open` before they begin new work. Repeats of
        accepted work are no new work.
        """
        space = self.space
        if space is None or space.free_bytes >= self.reserve_bytes:
            return None
        return (
            f"the disk of the stores ({space.path}) has {space.free_bytes // MEBIBYTE} MiB free, and new work needs"
            f" {-(-self.reserve_bytes // MEBIBYTE)} MiB"
        )

    def measure(self) -> None:
        """Measure now. Blocks: one statvfs per path. If a disk cannot be measured, nothing is rejected."""
        was_short = self.shortage() is not None
        try:
            self.space = fullest(self._paths)
        except OSError as error:
            if self.space is not None:
                _log.warning("disk_measurement_failed", error=str(error))
            self.space = None
        shortage = self.shortage()
        if shortage is not None and not was_short:
            _log.warning("disk_low", reason=shortage)
        elif was_short and shortage is None:
            _log.warning("disk_recovered")


async def watch_disk(disk: StoreDisk, redis: Redis) -> None:
    """Measure the disk every second. While Valkey is away, the last known size of its data set counts."""
    while disk.measurable:
        await asyncio.to_thread(disk.measure)
        try:
            async with asyncio.timeout(MEASURE_S):
                disk.data_set_bytes = (await store_memory(redis)).used_bytes
        except (RedisError, OSError, TimeoutError):
            pass  # keep the last known size
        await asyncio.sleep(MEASURE_S)
