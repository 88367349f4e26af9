"""Measured kernel times of a data folder (`gpu/`): kernels that models wrote, with the operators that they replace.

Kernels were measured on an RTX A6000 and operators on an H100, 100 trials each; only kernels that compiled and were
right are listed. A kernel whose operator has no time is left out.
"""

from __future__ import annotations

import csv
import gzip
import math
from pathlib import Path
from typing import Final

from treadle.lab.replay.gpu.kernels import MeasuredKernel
from treadle.lab.traces.rewards import TraceError

OPERATORS: Final = Path("gpu/kernelbench_baseline_h100.csv.gz")
KERNELS: Final = Path("gpu/kernelbench_generated_kernels.csv.gz")


def read_kernels(data: Path) -> tuple[MeasuredKernel, ...]:
    """Return the kernels of a data folder.

    Raises:
        TraceError: a file has another format than its README describes, or no kernel.
        OSError: it cannot be opened.
    """
    operators = {
        (row["level"].removeprefix("level"), row["problem"].partition("_")[0]): _ms(OPERATORS, row, "eager_mean_ms")
        for row in _rows(data / OPERATORS, ("level", "problem", "eager_mean_ms"))
    }
    found = [
        MeasuredKernel(_ms(KERNELS, row, "mean_ms"), operators[key])
        for row in _rows(data / KERNELS, ("level", "problem_id", "mean_ms"))
        if (key := (row["level"], row["problem_id"])) in operators
    ]
    if not found:
        raise TraceError(f"{data / KERNELS} has no kernel of an operator in {OPERATORS}")
    return tuple(found)


def _rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            lacking = [name for name in columns if name not in (reader.fieldnames or ())]
            if lacking:
                raise TraceError(f"{path} has no column {', '.join(lacking)}")
            return list(reader)
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, csv.Error) as error:
        raise TraceError(f"{path} is no gzipped CSV: {error}") from error


def _ms(path: Path, row: dict[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise TraceError(f"{path}: {column} is {row[column]!r}: milliseconds are needed")
    return value
