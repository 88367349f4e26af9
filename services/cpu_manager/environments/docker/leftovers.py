"""Containers that a manager left when it ended: a record of whose they may be, and their removal after `treadle down`.

The record exists from the moment a manager opens the runtime until it has removed everything itself. So one that is
found after the manager's end names containers that may still be there, thawed ones among them.

``python -m services.cpu_manager.environments.docker.leftovers RECORD`` removes them, and then the record.
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
"""Of a removal in all; four containers at a time take 0.5 s."""


class Record(msgspec.Struct, frozen=True):
    """What it takes to find a manager's containers."""

    node: str
    mesh: str
    engine: str
    """Its address."""

    def write(self, path: Path) -> None:
        """Raises `OSError` where the folder cannot be written."""
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def read(cls, path: Path) -> Record:
        """Raises `OSError`, `msgspec.MsgspecError` where there is none."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


def record_path(home: Path | None, node: str) -> Path | None:
    """Where a node's record lies; None where the manager is part of no `treadle up`."""
    return None if home is None else home / "run" / f"containers-{node}.json"


def forget(path: Path | None) -> None:
    """Nothing is left: remove the record."""
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


async def remove(record: Record) -> int:
    """Remove every container of the record's node in its mesh, and the volume; return how many were taken up.

    Raises:
        RuntimeUnavailable: the engine does not answer, or a manager that lives owns them.
    """
    runtime = await DockerRuntime.open(record.node, mesh=record.mesh, url=record.engine)
    try:
        return len(await runtime.survivors())
    finally:
        await runtime.close()


async def main(path: Path) -> int:
    """Exit status: 0 when nothing is left, else 1."""
    try:
        record = Record.read(path)
        async with asyncio.timeout(LIMIT_S):
            taken_up = await remove(record)
    except (OSError, msgspec.MsgspecError, RuntimeUnavailable, TimeoutError) as error:
        _log.error("leftovers_not_removed", record=str(path), problem=str(error) or repr(error))
        return 1
    forget(path)
    _log.info("leftovers_removed", node=record.node, mesh=record.mesh, taken_up=taken_up)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]))))
