"""Files of trajectories (ARL-Tangram §6.4: "a benchmark based on a real RL trace").

A trace file is JSON Lines, gzipped where its name ends in `.gz`; blank lines are passed over. One trajectory a line, in
the order in which they begin, which is at once::

    {"trajectory", "group"?, "steps": [{"think_s"?, "kind", "work_s", "units"?, "elasticity"?, "profile_s"?}, ...]}

`think_s` (0) is the time before the action; `work_s` is the duration of the action on one core. `units` ([1, 1]) are
the fewest and the most cores that it can use, more than the fewest only with an `elasticity` in one of the forms of the
API: {"4": 0.9, "16": 0.6}, {"model": "amdahl", "serial": 0.05}, {"model": "power", "exponent": 0.9}. `profile_s`
(`work_s`) is the scheduler's expectation of an elastic action's work. Trajectories of one group answer one prompt.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from shared.kinds.formulation import MOST_UNITS, elasticity_of
from shared.policy.model.elasticity import Elasticity
from treadle.lab.replay.tangram.trace import Batch, Trajectory, TrajectoryStep
from treadle.lab.traces.rewards import TraceError

MOST_S: Final = 1e7
"""Most seconds of one thought or action: four months."""
FIELDS: Final = frozenset({"think_s", "kind", "work_s", "units", "elasticity", "profile_s"})


def read_trajectories(path: Path) -> Batch:
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
        self._lines: dict[str, int] = {}
        """Line by trajectory."""

    def refusal(self, what: str) -> TraceError:
        return TraceError(f"{self.path}:{max(self.number, 1)}: {what}")

    def read(self, lines: Iterable[bytes]) -> Batch:
        found = tuple(self._trajectory(line) for line in self._objects(lines))
        if not found:
            raise self.refusal("no trajectories: put one a line")
        return found

    def _objects(self, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        for self.number, line in enumerate(lines, 1):
            if line.isspace():
                continue
            try:
                found = json.loads(line)
            except ValueError as error:
                raise self.refusal(f"is no JSON ({error}): write one object a line") from None
            if not isinstance(found, dict):
                raise self.refusal("is no JSON object: write one object a line")
            yield found

    def _trajectory(self, line: dict[str, Any]) -> Trajectory:
        name = self._name(line.get("trajectory"), "trajectory")
        earlier = self._lines.setdefault(name, self.number)
        if earlier != self.number:
            raise self.refusal(f"trajectory {name} is on line {earlier} already: give each a name of its own")
        steps = line.get("steps")
        if not isinstance(steps, list) or not steps or not all(isinstance(step, dict) for step in steps):
            raise self.refusal("steps must be a list of objects, at least one")
        group = self._name(line.get("group", name), "group")
        return Trajectory(name, group, tuple(self._step(step, position) for position, step in enumerate(steps, 1)))

    def _name(self, found: object, what: str) -> str:
        if type(found) not in (str, int) or found == "":
            raise self.refusal(f"give {what} as a text or a whole number")
        return str(found)

    def _step(self, found: dict[str, Any], position: int) -> TrajectoryStep:
        strange = sorted(found.keys() - FIELDS)
        if strange:
            raise self.refusal(f"step {position} has {', '.join(strange)}: use {', '.join(sorted(FIELDS))}")
        kind = found.get("kind")
        if not isinstance(kind, str) or not kind:
            raise self.refusal(f"kind of step {position} is {kind!r}: give a text that is not empty")
        work_s = self._seconds(found.get("work_s"), f"work_s of step {position}")
        least, most = self._units(found.get("units", [1, 1]), position)
        elasticity = self._elasticity(found.get("elasticity"), position)
        if most > least and elasticity is None:
            raise self.refusal(f"step {position} can use {most} units: add an elasticity for more than {least}")
        think_s = self._seconds(found.get("think_s", 0), f"think_s of step {position}")
        profile_s = self._seconds(found.get("profile_s", work_s), f"profile_s of step {position}")
        return TrajectoryStep(think_s, kind, work_s, least, most, elasticity, profile_s if most > least else None)

    def _units(self, found: object, position: int) -> tuple[int, int]:
        if isinstance(found, list) and len(found) == 2 and all(type(units) is int for units in found):
            least, most = found
            if 1 <= least <= most <= MOST_UNITS:
                return least, most
        raise self.refusal(
            f"units of step {position} are {found!r}: give [fewest, most], whole numbers from 1 to {MOST_UNITS}"
        )

    def _elasticity(self, found: object, position: int) -> Elasticity | None:
        if found is None:
            return None
        if not isinstance(found, dict):
            raise self.refusal(f"elasticity of step {position} is {found!r}: give an object")
        try:
            return elasticity_of(found)
        except ValueError as error:
            raise self.refusal(f"step {position}: {error}") from None

    def _seconds(self, found: Any, what: str) -> float:
        if type(found) not in (int, float) or not math.isfinite(found) or not 0 <= found <= MOST_S:
            raise self.refusal(f"{what} is {found!r}: give a number from 0 to {MOST_S:.0f}")
        return float(found)
