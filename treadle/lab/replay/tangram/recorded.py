"""Batches of recorded agents: real turns, generation and tool times, with generated rewards at their ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treadle.lab.replay.tangram.trace import TOOL, Batch, Trajectory, TrajectoryStep
from treadle.lab.replay.tangram.workload import ASSUMED, Assumed, reward, suites_s


@dataclass(frozen=True)
class Recording:
    """One agent's session, without its reward."""

    source: str
    turns: tuple[tuple[float, float], ...]
    """(seconds of generation, seconds of its tool) of each turn, at least one."""


def resample(rng: np.random.Generator, size: int, recordings: Sequence[Recording], shape: Assumed = ASSUMED) -> Batch:
    """Return a batch of `size` trajectories, each from a recording, with a reward of its group's test suite.

    All trajectories of a group have one source. Sources are equally likely, because the largest would dominate
    otherwise. The thought before the reward is another generation of the same recording.
    """
    by_source: dict[str, list[Recording]] = {}
    for recording in recordings:
        by_source.setdefault(recording.source, []).append(recording)
    sources = [by_source[name] for name in sorted(by_source)]
    made: list[Trajectory] = []
    for group, suite_s in enumerate(suites_s(rng, size, shape)):
        candidates = sources[rng.integers(len(sources))]
        for _ in range(min(shape.group_size, size - len(made))):
            turns = candidates[rng.integers(len(candidates))].turns
            last_s = turns[rng.integers(len(turns))][0]
            tools = (TrajectoryStep(think_s, TOOL, max(shape.least_tool_s, work_s)) for think_s, work_s in turns)
            made.append(Trajectory(f"t{len(made)}", f"g{group}", (*tools, reward(rng, last_s, suite_s, shape))))
    return tuple(made)
