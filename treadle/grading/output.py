"""`--out`: every line with its answer, as JSON Lines."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from treadle.client.graded import GradedBatch
from treadle.grading.format import GradingLine
from treadle.grading.report import line_report


class OutputFile:
    """Opened before anything is submitted, so that an error of the path is reported before the run."""

    def __init__(self, path: Path) -> None:
        """Open `path` without changing it. The output of an earlier run stays until `write`.

        Raises:
            OSError: it cannot be written.
        """
        self._path = path
        self._ours = not os.path.lexists(path)
        """True if the file is removed when nothing is written."""
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._ours:
            self._path.unlink(missing_ok=True)

    def write(self, lines: Sequence[GradingLine], graded: Sequence[GradedBatch]) -> None:
        """Replace the file's content by every line with its answer.

        Raises:
            OSError: the disk is full, or similar. What fits has been written.
        """
        encoder = msgspec.json.Encoder()
        left = memoryview(b"".join(encoder.encode(line_report(line, graded)) + b"\n" for line in lines))
        self._ours = False
        if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):  # pipes and terminals cannot be truncated
            self._file.truncate(0)
        while left:
            left = left[self._file.write(left) :]
