"""Valkey's append-only file: a check for damage, and a cut back to its last whole command.

Valkey drops a short tail by itself (``aof-load-truncated``), because the last command was being written when the
machine stopped. It rejects all other damage, because what follows would be lost, and only a person may decide that.
The file is a sequence of commands in RESP: ``*<arguments>``, then ``$<bytes>`` and the bytes of each argument, with
comment lines (``#``) between them. A transaction is MULTI, commands, EXEC, and counts only as a whole.
"""

import mmap
import os
import re
import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from shared.runtime.stack_state import StackError
from treadle.stack.home import Home

DAMAGED = re.compile(
    r"Bad file format reading the append only file|Unexpected end of file reading the append only file"
    r"|Unknown command .* reading the append only file|Error reading the append only file"
)
"""Valkey's log lines before it ends because of the file."""
_LENGTH = re.compile(rb"[0-9]{1,10}\r\n")
_NAME = re.compile(rb"[A-Za-z][A-Za-z._|-]{0,63}")


@dataclass(frozen=True, slots=True)
class Scan:
    """The undamaged part of a file."""

    path: Path
    size: int
    whole: int
    """Bytes up to the end of the last whole command outside an unfinished transaction."""
    commands: int
    """Number of commands in these bytes."""

    @property
    def damaged(self) -> bool:
        return self.whole < self.size


def explanation(name: str, lines: list[str]) -> str | None:
    """Return advice for a Valkey that does not start, from its last log lines; None if its file is not the reason."""
    if name != "valkey" or not any(DAMAGED.search(line) for line in lines):
        return None
    return (
        "Valkey's append-only file is damaged. Run: treadle repair. It keeps a copy, cuts the file back to the last "
        "whole command, and prints what is lost."
    )


def repair(home: Home) -> tuple[Scan, Path | None]:
    """Cut the newest append-only file of ``home`` back to its whole part. Return the scan and the damaged file's copy.

    No copy if nothing was damaged. Call it while no Valkey runs. Reads the file once, about 50 MB/s.

    Raises:
        StackError: there is no file, or the damage cannot be cut off.
    """
    *older, newest = _files(home.valkey / "appendonlydir")
    for path in older:
        if scan(path).damaged:
            raise StackError(
                f"{path} is damaged, and {newest.name} continues it: what the newer file holds means nothing without "
                "the older one. Restore a copy of the folder."
            )
    found = scan(newest)
    if not found.damaged:
        return found, None
    copy = next(path for n in count(1) if not (path := newest.with_name(f"{newest.name}.damaged-{n}")).exists())
    try:
        shutil.copy2(newest, copy)
        _sync(copy)
        os.truncate(newest, found.whole)
        _sync(newest)
    except OSError as error:
        raise StackError(f"cannot repair {newest}: {error}") from error
    return found, copy


def scan(path: Path) -> Scan:
    """Read a file up to its first damage."""
    size = path.stat().st_size
    if size == 0:
        return Scan(path, 0, 0, 0)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        position = whole = commands = pending = 0
        inside = False
        while position < size:
            found = _command(data, position, size)
            if found is None:
                break
            position, name = found
            inside = (inside or name == b"MULTI") and name != b"EXEC"
            pending += name != b""
            if not inside:
                whole, commands, pending = position, commands + pending, 0
        return Scan(path, size, whole, commands)


def _command(data: mmap.mmap, start: int, size: int) -> tuple[int, bytes] | None:
    """Return (end, name in capitals) of the command at ``start``; the name of a comment is empty. None: no command."""
    if data[start] == ord("#"):
        end = data.find(b"\r\n", start)
        return (end + 2, b"") if end >= 0 else None
    arguments = _number(data, start, b"*")
    if arguments is None or arguments[1] < 1:
        return None
    position, name = arguments[0], b""
    for number in range(arguments[1]):
        length = _number(data, position, b"$")
        if length is None:
            return None
        begin, end = length[0], length[0] + length[1]
        if end + 2 > size or data[end : end + 2] != b"\r\n":
            return None
        if number == 0:
            name = data[begin:end].upper()
            if not _NAME.fullmatch(name):
                return None
        position = end + 2
    return position, name


def _number(data: mmap.mmap, start: int, sign: bytes) -> tuple[int, int] | None:
    """Return (end of the line, number) of a line such as ``*3``."""
    if data[start : start + 1] != sign or (found := _LENGTH.match(data, start + 1)) is None:
        return None
    return found.end(), int(found[0])


def _files(folder: Path) -> list[Path]:
    """Return the incremental files in the manifest, oldest first."""
    try:
        (manifest,) = folder.glob("*.manifest")
        rows = [line.split() for line in manifest.read_text().splitlines() if line.startswith("file ")]
    except (OSError, ValueError) as error:
        raise StackError(f"there is no append-only file in {folder}: nothing to repair") from error
    found = [folder / row[1] for row in rows if row[-1] == "i" or row[row.index("type") + 1] == "i"]
    if not found:
        raise StackError(f"the manifest in {folder} names no incremental file: restore a copy of the folder")
    return found


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
