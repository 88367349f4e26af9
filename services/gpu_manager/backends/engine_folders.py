"""Folders of the engines of one manager: what its next process needs to adopt them after a crash (ADR 0077).

    <root>/lock, lease           held and touched by the manager that runs
    <root>/<mark>/engine.json    EngineRecord, before the start of the guard
                  guard.json     the guard's process, before the start of the engine (`shared.runtime.kept_processes`)
                  step           a change of the engine that is under way: without a confirmed end nothing is known
                  pid            the engine's process, after its start
                  output, status the end of its output, and how it ended

Laws (tests/services/gpu_manager/backends/test_engine_guard.py): one manager uses a root at a time; an engine without a
record is not started.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from shared.runtime import log
from shared.runtime.identity import Identity
from shared.runtime.kept_processes import ENGINES, RECORD, read_kept
from shared.runtime.settings import WrongSetting
from shared.runtime.units import Seconds

_log = log.get(__name__)

LEASE_S: Final[Seconds] = 120.0
"""Time for which engines go on without a manager. A supervisor starts a crashed one again within 30 s."""
_RENEWALS: Final = 10
"""Renewals of the lease in its time."""
_MOST_FOLDERS: Final = 4096
_MARK: Final = re.compile("[0-9a-f]{32}")


class EngineRecord(msgspec.Struct, frozen=True):
    """What an engine is, as it was started."""

    service: str
    first: int
    """First GPU of its chunk."""
    size: int
    port: int
    digest: str
    """Digest of all that decides which engine it is: its entry, and its command."""
    mark: str
    """Value of the mark in the environment of its processes."""


@dataclass(frozen=True, slots=True)
class EngineFolder:
    """Folder of one engine."""

    path: Path
    record: EngineRecord
    lease: Path
    lease_s: Seconds
    _depth: list[int] = field(default_factory=lambda: [0])

    @property
    def guard(self) -> Identity | None:
        """Return its guard, if that runs."""
        kept = read_kept(self.path / RECORD)
        return None if kept is None else kept.identity()

    @property
    def pid(self) -> int:
        """Return the engine's process; 0 if it has not been started."""
        text = _text(self.path / "pid")
        return int(text) if text.isdecimal() else 0

    @property
    def step(self) -> str:
        """Change that is under way, or that failed; empty if its state can be read from the engine."""
        return _text(self.path / "step")

    @property
    def status(self) -> int | None:
        """Exit status of its first process; negative: the signal. None: it runs, or nobody has seen its end."""
        text = _text(self.path / "status")
        return int(text) if text.removeprefix("-").isdecimal() else None

    def output(self, most_bytes: int) -> str:
        """Return the last part of its output."""
        try:
            return (self.path / "output").read_bytes()[-most_bytes:].decode(errors="replace")
        except OSError:
            return ""

    @contextmanager
    def changing(self, step: str) -> Iterator[None]:
        """Record a change of the engine. The record stays if it fails, because then the state is not known.

        A change inside of a recorded one leaves the outer record as it is.
        """
        path = self.path / "step"
        if self._depth[0] == 0:
            path.write_text(step)
        self._depth[0] += 1
        try:
            yield
        finally:
            self._depth[0] -= 1
        if self._depth[0] == 0:
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove it: the engine has ended."""
        shutil.rmtree(self.path, ignore_errors=True)


class EngineFolders:
    """All folders of one manager."""

    def __init__(self, root: Path, lease_s: Seconds = LEASE_S) -> None:
        self.root = root
        self.lease_s = lease_s
        self.lease = root / "lease"

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """Create the root, and use it alone.

        Raises:
            WrongSetting: it cannot be written, is another user's, or another manager uses it.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.root.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise WrongSetting(
                    f"GPU_MANAGER_STATE: {self.root} should be a folder of uid {os.geteuid()} that nobody else can "
                    "write; name another folder"
                )
            self.renew()
            lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise WrongSetting(
                f"GPU_MANAGER_STATE: {self.root} cannot be used ({error.strerror}); name a folder that can be written"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise WrongSetting(
                f"GPU_MANAGER_STATE: another manager uses {self.root}; give this one its own GPU_MANAGER_NODE"
            ) from None
        try:
            yield
        finally:
            os.close(lock)

    def renew(self) -> None:
        """Touch the lease. An error is logged: it may pass before the lease ends."""
        try:
            self.lease.touch(0o600)
        except OSError as error:
            _log.warning("lease_of_engines_not_renewed", error=str(error))

    async def renewing(self) -> None:
        """Renew the lease until cancelled."""
        while True:
            self.renew()
            await asyncio.sleep(self.lease_s / _RENEWALS)

    def add(self, service: str, first: int, size: int, port: int, digest: str) -> EngineFolder:
        """Record an engine that is about to start. Raise `OSError` if that cannot be written."""
        record = EngineRecord(service, first, size, port, digest, uuid.uuid4().hex)
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = EngineFolder(self.root / record.mark, record, self.lease, self.lease_s)
        folder.path.mkdir(mode=0o700)
        (folder.path / "engine.json").write_bytes(msgspec.json.encode(record))
        return folder

    def found(self) -> list[EngineFolder]:
        """Return the engines of former managers, the newest first. Folders of ours without a record are removed.

        A guard that is only starting then finds that its folder is gone, or its manager, and starts no engine.
        """
        folders = []
        ours = (path for path in self.root.iterdir() if _MARK.fullmatch(path.name))  # all else is the operator's
        for path in itertools.islice(ours, _MOST_FOLDERS):
            folder = self._read(path)
            if folder is None:
                shutil.rmtree(path, ignore_errors=True)
                continue
            with suppress(FileNotFoundError):  # its guard has just ended
                folders.append((path.stat().st_mtime, folder))
        return [folder for _, folder in sorted(folders, key=lambda each: -each[0])]

    def _read(self, path: Path) -> EngineFolder | None:
        try:
            record = msgspec.json.decode((path / "engine.json").read_bytes(), type=EngineRecord)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return EngineFolder(path, record, self.lease, self.lease_s) if record.mark == path.name else None


def state_folder(chosen: Path | None, home: Path | None, node: str) -> Path:
    """Return the root of a node's manager: the setting, else below `run/` of the home, else a private one in /tmp."""
    if chosen is not None:
        return chosen
    base = Path(tempfile.gettempdir()) / f"treadle-engines-{os.geteuid()}" if home is None else home / "run" / ENGINES
    return base / node


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""
