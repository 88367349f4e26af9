"""The generated workload has the statistics of the paper's, and is the same for the same seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from treadle.lab.replay.tangram.recorded import Recording, resample
from treadle.lab.replay.tangram.trace import REWARD, TOOL, Batch, Trajectory, TrajectoryStep
from treadle.lab.replay.tangram.workload import ASSUMED, generate


def generated(seed: int = 1, size: int = 1536) -> Batch:
    return generate(np.random.default_rng(seed), size)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_environments_are_active_for_47_percent_of_their_life(seed: int) -> None:
    shares = [trajectory.active_share for trajectory in generated(seed)]
    assert np.mean(shares) == pytest.approx(0.47, abs=0.01)


def test_tools_take_one_core_and_mostly_little_time_and_rewards_have_a_long_tail() -> None:
    steps = [step for trajectory in generated() for step in trajectory.steps]
    tools_s = np.array([step.work_s for step in steps if step.kind == TOOL])
    rewards_s = np.array([step.work_s for step in steps if step.kind == REWARD])
    assert tools_s.min() < 0.002
    assert np.median(tools_s) < 0.3
    assert all((step.least, step.most) == (1, 1) for step in steps if step.kind == TOOL)
    assert all((step.least, step.most) == (1, 32) for step in steps if step.kind == REWARD)
    assert np.quantile(rewards_s, 0.99) > 5 * np.median(rewards_s)


def test_every_trajectory_ends_with_its_groups_reward() -> None:
    batch = generated(size=100)
    groups = Counter(trajectory.group for trajectory in batch)
    assert len(batch) == 100
    assert sorted(groups.values()) == [4, *[ASSUMED.group_size] * 12]
    for trajectory in batch:
        assert [step.kind for step in trajectory.steps].index(REWARD) == len(trajectory.steps) - 1
    profiles = {(trajectory.group, trajectory.steps[-1].profile_s) for trajectory in batch}
    assert len(profiles) == len(groups), "one test suite, one profile"


def test_the_same_seed_gives_the_same_batch_and_another_one_another() -> None:
    assert generated(7, 64) == generated(7, 64)
    assert generated(7, 64) != generated(8, 64)


def test_a_recorded_batch_has_the_turns_of_its_recordings_and_all_sources_alike() -> None:
    recordings = (
        *(Recording("many", ((1.0 + number, 0.5),)) for number in range(50)),
        Recording("one", ((100.0, 2.0), (200.0, 3.0))),
    )
    batch = resample(np.random.default_rng(1), 800, recordings)
    from_one = [trajectory for trajectory in batch if len(trajectory.steps) == 3]
    assert 0.3 < len(from_one) / len(batch) < 0.7
    for trajectory in from_one:
        assert [(step.think_s, step.work_s) for step in trajectory.steps[:-1]] == [(100.0, 2.0), (200.0, 3.0)]
        assert trajectory.steps[-1].think_s in (100.0, 200.0)
        assert trajectory.steps[-1].kind == REWARD


def test_an_episode_of_0_s_is_not_active() -> None:
    assert Trajectory("t", "g", (TrajectoryStep(0.0, TOOL, 0.0),)).active_share == 0.0
