"""A planner's stimulus log: all its inputs and commands, so that its decisions can be made again elsewhere.

One file of msgpack arrays, each after its length (4 bytes, little-endian). The first is the header (configuration and
seed); then `[now, kind, stimulus, commands]` for each stimulus. `treadle replay planner FILE` makes the decisions
again and compares.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from shared.policy.scaling.config import PlannerConfig
from shared.policy.scaling.planner import Planner
from shared.policy.scaling.stimuli import (
    BatchAdded,
    BatchesObserved,
    BatchRemoved,
    Command,
    FirstRequestArrived,
    NodesChanged,
    ProgressReported,
    QuotasObserved,
    Stimulus,
    TargetsRestored,
    TimerFired,
)
from shared.runtime.validation import UNREADABLE

KINDS: Mapping[str, type[Stimulus]] = {
    kind.__name__: kind
    for kind in (
        TargetsRestored,
        BatchAdded,
        FirstRequestArrived,
        ProgressReported,
        BatchRemoved,
        BatchesObserved,
        QuotasObserved,
        NodesChanged,
        TimerFired,
    )
}

VERSION = 5
"""Version of the log. Raise it with any change of `PlannerConfig`, of a stimulus or of a command."""
NAME = "planner"
"""Prefix of the files' names."""

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()


class LogError(ValueError):
    """A file is not a stimulus log, or is of another version."""


@dataclass(frozen=True)
class LogHeader:
    """Configuration of the planner."""

    version: int
    config: PlannerConfig
    floors: dict[str, int]
    ceilings: dict[str, int]
    seed: int

    def planner(self) -> Planner:
        """Return a planner with this configuration."""
        return Planner(self.config, self.floors, self.ceilings, self.seed)


class _Version(msgspec.Struct):
    """The part of a header that every version of the log has."""

    version: int


@dataclass(frozen=True)
class LogEntry:
    """One stimulus and the resulting commands."""

    now: float
    stimulus: Stimulus
    commands: list[Any]
    """As builtins, see `to_builtins`."""


def to_builtins(commands: Sequence[Command]) -> list[Any]:
    """Return commands in the log's form, for comparison."""
    read: list[Any] = msgspec.msgpack.decode(_encoder.encode([[type(one).__name__, one] for one in commands]))
    return read


class StimulusLog:
    """Writes a log. The first entry that would exceed `most_bytes` and all later ones are not written."""

    def __init__(self, path: Path, planner: Planner, *, most_bytes: int) -> None:
        """Begin a new file. An existing one is replaced.

        Raises:
            OSError: it cannot be written.
        """
        self.full = False
        self._most = most_bytes
        self._file: BinaryIO = path.open("wb")
        self._write(LogHeader(VERSION, planner.config, dict(planner.floors), dict(planner.ceilings), planner.seed))

    @classmethod
    def begin(cls, folder: Path, planner: Planner, *, at: float, most_bytes: int, kept: int) -> StimulusLog:
        """Begin a new file in a folder, named after `at`. Of the older files the newest `kept` stay.

        Raises:
            OSError: it cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        older = sorted(folder.glob(f"{NAME}-*.log"))
        for path in older[: max(0, len(older) - kept)]:
            path.unlink()
        return cls(folder / f"{NAME}-{round(at * 1000)}.log", planner, most_bytes=most_bytes)

    def write(self, now: float, stimulus: Stimulus, commands: Sequence[Command]) -> None:
        """Write one stimulus and the resulting commands."""
        self._write([now, type(stimulus).__name__, stimulus, [[type(one).__name__, one] for one in commands]])

    def close(self) -> None:
        self._file.close()

    def _write(self, entry: Any) -> None:
        packed = _encoder.encode(entry)
        self.full = self.full or self._file.tell() + len(packed) > self._most
        if not self.full:
            self._file.write(_LENGTH.pack(len(packed)) + packed)
            self._file.flush()


def read_log(path: Path) -> tuple[LogHeader, Iterator[LogEntry]]:
    """Return a log's header and an iterator over its stimuli. An entry cut off by a crash ends it.

    Raises:
        LogError: it is not a log of this version.
        OSError: it cannot be opened.
    """
    entries = _entries(path)
    try:
        packed = next(entries)
        version = msgspec.msgpack.decode(packed, type=_Version).version
        if version != VERSION:
            raise LogError(f"{path} is a stimulus log of version {version}; this Treadle reads version {VERSION}")
        header = msgspec.msgpack.decode(packed, type=LogHeader)
    except (StopIteration, *UNREADABLE) as error:
        raise LogError(f"{path} is no stimulus log of this version of Treadle") from error
    return header, _log_entries(path, entries)


def _entries(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            packed = file.read(length)
            if len(packed) < length:
                return
            yield packed


def _log_entries(path: Path, entries: Iterator[bytes]) -> Iterator[LogEntry]:
    entry = msgspec.msgpack.Decoder(tuple[float, str, msgspec.Raw, list[Any]])
    for packed in entries:
        try:
            now, kind, raw, commands = entry.decode(packed)
            yield LogEntry(now, msgspec.msgpack.decode(raw, type=KINDS[kind]), commands)
        except (KeyError, *UNREADABLE) as error:
            raise LogError(f"{path} holds a stimulus that this version of Treadle does not know: {error}") from error
