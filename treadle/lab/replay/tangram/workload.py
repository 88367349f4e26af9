"""An AI-coding workload shaped by what ARL-Tangram says of its own.

`Assumed` has all assumptions, each with its source or reason; the report prints them. *ours* marks values that no
statement of the paper bounds. Of the results of §6 only one was fitted: that ACT grows less than twofold from a batch
of 128 to one of 1,536 (§6.3) bounds the load, and so `serial` from below.

Environments are active for 47 % of their life (§2.3). This is read as: with one core for each action at once, because
the test commands of data sets run in one process (§5.2); averaged over trajectories.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from shared.policy.model.elasticity import Elasticity
from treadle.lab.replay.tangram.assumptions import assumed
from treadle.lab.replay.tangram.trace import REWARD, TOOL, Batch, Trajectory, TrajectoryStep

GOLDEN: Final = (math.sqrt(5.0) - 1.0) / 2.0


@dataclass(frozen=True)
class Assumed:
    """Parameters of the trajectories. Spreads are standard deviations of logarithms."""

    group_size: int = assumed(8, "§6.1: GRPO; ours: its size")
    turns: float = assumed(18.0, "ours: median; recorded coding agents take 5 to 50 turns")
    turns_spread: float = assumed(0.5, "ours: nine of ten trajectories take 8 to 41 turns")
    most_turns: int = assumed(60, "ours: a usual limit of coding agents")
    think_s: float = assumed(6.1, "median generation of 25,014 recorded requests of coding agents")
    think_spread: float = assumed(0.87, "of the same: nine of ten are shorter than 18.6 s")
    tool_s: float = assumed(0.24, "median of 40 recorded commands of a coding agent, on one core")
    tool_spread: float = assumed(1.5, "ours: wider than those, for §2.4 has actions down to 1 ms")
    least_tool_s: float = assumed(0.001, "§2.4: actions down to 1 ms in AI coding")
    reward_s: float = assumed(125.0, "median on one core; §2.3: makes environments active for 47 % of their life")
    reward_spread: float = assumed(0.9, "ours: §6.4 calls rewards long-tailed; between groups, each has its test suite")
    sample_spread: float = assumed(
        0.2, "ours: between samples of a group; the scheduler knows the group's median alone"
    )
    most_reward_s: float = assumed(1800.0, "ours: a usual limit of test suites")
    most_cores: int = assumed(32, "§6.4: the DoP of rewards ranges from 1 to 32; tools take one core")
    serial: float = assumed(0.1, "ours: Amdahl's part of a test suite that stays serial; E(4) = 0.77, E(32) = 0.24")


ASSUMED = Assumed()


def generate(rng: np.random.Generator, size: int, shape: Assumed = ASSUMED) -> Batch:
    """Return a batch of `size` trajectories; the last group may be smaller than the others."""
    made: list[Trajectory] = []
    for number, suite_s in enumerate(suites_s(rng, size, shape)):
        made += [
            Trajectory(f"t{len(made) + point}", f"g{number}", _steps(rng, suite_s, shape))
            for point in range(min(shape.group_size, size - len(made)))
        ]
    return tuple(made)


def suites_s(rng: np.random.Generator, size: int, shape: Assumed = ASSUMED) -> list[float]:
    """Return the median seconds of each group's test suite on one core, for `size` trajectories.

    The values are quantiles in steps of the golden ratio from a random start, so that any consecutive ones are spread
    evenly: no batch, and no part of one, is longer than another by chance. With a long tail, one draw more or less
    would change most of the mean.
    """
    groups = -(-size // shape.group_size)
    usual = NormalDist(0.0, shape.reward_spread)
    points = (rng.random() + GOLDEN * np.arange(groups)) % 1.0
    rarest = 0.25 / groups
    return [shape.reward_s * math.exp(usual.inv_cdf(point)) for point in np.clip(points, rarest, 1 - rarest).tolist()]


def reward(rng: np.random.Generator, think_s: float, suite_s: float, shape: Assumed = ASSUMED) -> TrajectoryStep:
    """Return the last step of a trajectory: its group's test suite."""
    work_s = suite_s * math.exp(rng.normal(0.0, shape.sample_spread))
    return TrajectoryStep(
        think_s, REWARD, min(shape.most_reward_s, work_s),
        1, shape.most_cores, Elasticity("amdahl", serial=shape.serial), min(shape.most_reward_s, suite_s),
    )  # fmt: skip


def _steps(rng: np.random.Generator, suite_s: float, shape: Assumed) -> tuple[TrajectoryStep, ...]:
    turns = min(shape.most_turns, max(1, round(shape.turns * math.exp(rng.normal(0.0, shape.turns_spread)))))
    thinks = shape.think_s * np.exp(rng.normal(0.0, shape.think_spread, turns + 1))
    tools = np.maximum(shape.least_tool_s, shape.tool_s * np.exp(rng.normal(0.0, shape.tool_spread, turns)))
    *before, last_s = thinks.tolist()
    steps = (TrajectoryStep(think_s, TOOL, work_s) for think_s, work_s in zip(before, tools.tolist(), strict=True))
    return (*steps, reward(rng, last_s, suite_s, shape))
