"""Gaps of the machine: times for which a busy program did not run, because its core executed something else.

One such program on each core of a resting mesh, which itself needs less than a gap. So a gap is the time of another
process, of the kernel, or of the machine's host. Every call that is under way meanwhile may be as late.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from time import perf_counter
from typing import Final

from treadle.lab.bench.figures import BenchError, BenchFigure, figure

LEAST_S: Final = 0.003
"""Least duration of a gap."""


def spin(seconds: float) -> list[float]:
    """Read the clock for this many seconds. Returns the durations of the gaps, in seconds."""
    gaps, last = list[float](), perf_counter()
    end = last + seconds
    while last < end:
        now = perf_counter()
        if now - last >= LEAST_S:
            gaps.append(now - last)
        last = now
    return gaps


async def machine_gaps(measurement: str, seconds: float) -> list[BenchFigure]:
    """Return how often the cores of this machine have gaps, and the longest one.

    Raises:
        BenchError: a program did not end well.
    """
    cores = len(os.sched_getaffinity(0))
    per_core = await asyncio.gather(*(_spun(seconds) for _ in range(cores)))
    gaps = [gap for gaps in per_core for gap in gaps]
    what = f"gaps of {LEAST_S * 1e3:g} ms or more of a busy program, on {cores} cores of a resting mesh"
    return [
        figure(f"{measurement}.gaps", what, len(gaps) / seconds, "/s"),
        figure(f"{measurement}.gap.longest", "the longest of them", max(gaps, default=0.0) * 1e3, "ms"),
    ]


async def _spun(seconds: float) -> list[float]:
    command = (sys.executable, "-m", "treadle.lab.bench.machine_gaps", f"{seconds}")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        printed, _ = await asyncio.wait_for(process.communicate(), seconds + 30.0)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise BenchError(f"{' '.join(command)} ended with {process.returncode}")
    found: list[float] = json.loads(printed)
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(spin(float(sys.argv[1]))))
