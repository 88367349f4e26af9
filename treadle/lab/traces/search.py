"""Files of search agents.

A trace file is JSON Lines, gzipped where its name ends in `.gz`; blank lines are passed over. One trajectory a line;
all begin at once::

    {"trajectory", "calls": [{"think_s"?, "upstream"?, "work"?}, ...], "last_s"?}

`think_s` (0) is the time before the call, `last_s` (0) the time after the last one. `upstream` is `search` (default) or
`pages`. `work` (1) is the latency of the call relative to the service's median.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from treadle.lab.replay.search.trace import SEARCH, UPSTREAMS, AgentCall, SearchBatch, SearchTrajectory
from treadle.lab.traces.rewards import TraceError

MOST_S: Final = 1e5
"""Most seconds of one thought."""
MOST_WORK: Final = 1e3
FIELDS: Final = frozenset({"think_s", "upstream", "work"})


def read_search_trace(path: Path) -> SearchBatch:
    """Return the trajectories of a file.

    Raises:
        TraceError: the file has another format.
        OSError: it cannot be opened.
    """
    reader = _Reader(path)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            return reader.read(lines)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise reader.refusal(f"is no whole gzip file ({error}): write it again, or drop the .gz") from error


class _Reader:
    """Reader of one file, with its present line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0

    def refusal(self, what: str) -> TraceError:
        return TraceError(f"{self.path}:{max(self.number, 1)}: {what}")

    def read(self, lines: Iterable[bytes]) -> SearchBatch:
        known: dict[str, int] = {}
        found: list[SearchTrajectory] = []
        for self.number, line in enumerate(lines, 1):
            if line.isspace():
                continue
            one = self._trajectory(self._object(line))
            earlier = known.setdefault(one.name, self.number)
            if earlier != self.number:
                raise self.refusal(f"trajectory {one.name} is on line {earlier} already: give each a name of its own")
            found.append(one)
        if not found:
            raise self.refusal("no trajectories: put one a line")
        return tuple(found)

    def _object(self, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except ValueError as error:
            raise self.refusal(f"is no JSON ({error}): write one object a line") from None
        if not isinstance(found, dict):
            raise self.refusal("is no JSON object: write one object a line")
        return found

    def _trajectory(self, line: dict[str, Any]) -> SearchTrajectory:
        name, calls = line.get("trajectory"), line.get("calls")
        if type(name) not in (str, int) or name == "":
            raise self.refusal("give trajectory as a text or a whole number")
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise self.refusal("calls must be a list of objects")
        last_s = self._number(line.get("last_s", 0), "last_s", MOST_S)
        return SearchTrajectory(str(name), tuple(self._call(call, at) for at, call in enumerate(calls, 1)), last_s)

    def _call(self, found: dict[str, Any], at: int) -> AgentCall:
        strange = sorted(found.keys() - FIELDS)
        if strange:
            raise self.refusal(f"call {at} has {', '.join(strange)}: use {', '.join(sorted(FIELDS))}")
        upstream = found.get("upstream", SEARCH)
        if upstream not in UPSTREAMS:
            raise self.refusal(f"upstream of call {at} is {upstream!r}: use {' or '.join(UPSTREAMS)}")
        think_s = self._number(found.get("think_s", 0), f"think_s of call {at}", MOST_S)
        return AgentCall(think_s, upstream, self._number(found.get("work", 1), f"work of call {at}", MOST_WORK))

    def _number(self, found: Any, what: str, most: float) -> float:
        if type(found) not in (int, float) or not math.isfinite(found) or not 0 <= found <= most:
            raise self.refusal(f"{what} is {found!r}: give a number from 0 to {most:.0f}")
        return float(found)
