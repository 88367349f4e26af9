"""Containers that a manager left behind: a record to find them, and their removal after `treadle down`.

The record exists from the time a manager opens the runtime until the manager has removed everything itself. So a record
that exists after the manager's end names containers that may still exist, including thawed ones.

``python -m services.cpu_manager.environments.docker.cleanup RECORD`` removes them, and then the record.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import msgspec

from services.cpu_manager.environments.docker.runtime import DockerRuntime
from services.cpu_manager.environments.protocol import RuntimeUnavailable
from shared.runtime import log

_log = log.get(__name__)

LIMIT_S = 45.0
"""Time limit of the whole removal; four containers at a time take 0.5 s."""


class CleanupRecord(msgspec.Struct, frozen=True):
    """The data that is needed to find a manager's containers."""

    node: str
    mesh: str
    engine: str
    """Its address."""

    def write(self, path: Path) -> None:
        """Write the record. Raise `OSError` if the folder is not writable."""
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def read(cls, path: Path) -> CleanupRecord:
        """Read a record. Raise `OSError` or `msgspec.MsgspecError` if there is none."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


def record_path(home: Path | None, node: str) -> Path | None:
    """Return the path of a node's record; None if the manager is not part of a `treadle up`."""
    return None if home is None else home / "run" / f"containers-{node}.json"


def forget(path: Path | None) -> None:
    """Remove the record, because nothing is left."""
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


async def remove(record: CleanupRecord) -> int:
    """Remove every container of the record's node in its mesh, and the volume. Return how many could be adopted.

    Raises:
        RuntimeUnavailable: the engine does not answer, or a running manager owns them.
    """
    runtime = await DockerRuntime.open(record.node, mesh=record.mesh, url=record.engine)
    try:
        return len(await runtime.survivors())
    finally:
        await runtime.close()


async def main(path: Path) -> int:
    """Return the exit status: 0 if nothing is left, else 1."""
    try:
        record = CleanupRecord.read(path)
        async with asyncio.timeout(LIMIT_S):
            adopted = await remove(record)
    except (OSError, msgspec.MsgspecError, RuntimeUnavailable, TimeoutError) as error:
        _log.error("containers_not_removed", record=str(path), problem=str(error) or repr(error))
        return 1
    forget(path)
    _log.info("containers_removed", node=record.node, mesh=record.mesh, adopted=adopted)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]))))
