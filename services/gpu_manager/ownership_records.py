"""Records of the ownership of GPUs, which outlive the manager (ADR 0075).

`<state folder>/gpu-<number>.json` is written before a hook begins, and after it has succeeded. A write is atomic and
durable. So a manager that was killed at any time finds in what state each GPU may be. A GPU without a record is held.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shared.policy.serving.ownership import Recorded
from shared.runtime.settings import WrongSetting


class OwnershipRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Ownership of one GPU."""

    state: Recorded
    at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class OwnershipRecords:
    """Records of one node. Its manager has locked the folder (`EngineFolders.used`)."""

    folder: Path

    def read(self, gpus: int) -> dict[int, Recorded]:
        """Return what is recorded.

        Raises:
            WrongSetting: a record cannot be read, so it is not known who uses the GPU.
        """
        found: dict[int, Recorded] = {}
        for gpu in range(gpus):
            path = self._path(gpu)
            try:
                found[gpu] = msgspec.json.decode(path.read_bytes(), type=OwnershipRecord).state
            except FileNotFoundError:
                continue
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise WrongSetting(
                    f"GPU_MANAGER_STATE: {path} cannot be read ({error}); take GPU {gpu} back from other uses, then "
                    "remove this file"
                ) from error
        return found

    def write(self, gpus: Iterable[int], state: Recorded, at: float) -> None:
        """Record a state of these GPUs. It blocks for a few milliseconds: call it in a thread.

        Raises:
            OSError: it is not stored for all of them.
        """
        content = msgspec.json.encode(OwnershipRecord(state=state, at=at))
        for gpu in gpus:
            path = self._path(gpu)
            new = path.with_suffix(".new")
            with new.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _path(self, gpu: int) -> Path:
        return self.folder / f"gpu-{gpu}.json"
