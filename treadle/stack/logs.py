"""Logs of all services: one file for each, and every line with its service's name on the terminal."""

import os
from collections import deque
from pathlib import Path
from typing import BinaryIO, TextIO

COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # ANSI foregrounds that read well on black and on white
REMEMBERED_LINES = 40
LONGEST_LINE = 16 << 10


class ServiceLogs:
    """Writes lines to ``<folder>/<name>.log``, and to the terminal if there is one."""

    def __init__(self, folder: Path, *, limit_bytes: int, view: TextIO | None = None, width: int = 16) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._view = view
        self._width = width
        self._coloured = view is not None and view.isatty() and "NO_COLOR" not in os.environ
        self._files: dict[str, BinaryIO] = {}
        self._tails: dict[str, deque[str]] = {}

    def line(self, name: str, text: str) -> None:
        """Log one line of ``name``. A full disk loses lines, but does not stop the service."""
        self._tails.setdefault(name, deque(maxlen=REMEMBERED_LINES)).append(text)
        try:
            self._file(name).write(text.encode(errors="replace") + b"\n")
        except OSError:
            self._files.pop(name, None)
        if self._view is not None:
            self._show(self._view, name, text)

    def tail(self, name: str) -> list[str]:
        """Return the last lines of ``name``, oldest first, 40 at most."""
        return list(self._tails.get(name, ()))

    def path(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _file(self, name: str) -> BinaryIO:
        file = self._files.get(name)
        if file is not None and file.tell() > self._limit:
            file.close()
            self.path(name).replace(self._folder / f"{name}.log.1")
            file = None
        if file is None:
            file = self._files[name] = self.path(name).open("ab", buffering=0)
        return file

    def _show(self, view: TextIO, name: str, text: str) -> None:
        prefix = f"{name:<{self._width}}|"
        if self._coloured:
            prefix = f"\x1b[{COLOURS[sum(name.encode()) % len(COLOURS)]}m{prefix}\x1b[0m"
        try:
            view.write(f"{prefix} {text}\n")
            view.flush()
        except OSError:  # the terminal has gone; the files continue
            self._view = None


class LineSplitter:
    """Splits a stream of bytes into lines. A line longer than 16 KiB is split there."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LONGEST_LINE:
            lines.append(self._rest[:LONGEST_LINE])
            self._rest = self._rest[LONGEST_LINE:]
        return [line.decode(errors="replace") for line in lines]

    def end(self) -> list[str]:
        """Return the rest without a line end."""
        rest, self._rest = self._rest, b""
        return [rest.decode(errors="replace")] if rest else []
