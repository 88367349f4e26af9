"""The Kubernetes baseline: waits for pods, shared cores and time-outs, against cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from shared.policy.model.elasticity import Elasticity
from treadle.lab.replay.tangram.assumptions import Cluster, PodRules
from treadle.lab.replay.tangram.measures import ENVIRONMENT, EXECUTION, QUEUEING, REWARD, SystemRun
from treadle.lab.replay.tangram.simulated_pods import SimulatedPods
from treadle.lab.replay.tangram.trace import Batch, Trajectory, TrajectoryStep

ONE_NODE = Cluster(nodes=1, cores=4)
RULES = PodRules(creations_per_s=1.0, timeout_s=100.0, backoff_s=2.0, most_backoff_s=8.0, start_s=0.5)
HALVES = Elasticity("power", exponent=0.5)
"""Four cores make it twice as fast."""


def batch(count: int, *steps: TrajectoryStep) -> Batch:
    return tuple(Trajectory(f"t{number}", "g", steps) for number in range(count))


def ran(many: Batch, rules: PodRules, cluster: Cluster = ONE_NODE) -> SystemRun:
    return SimulatedPods("pods", many, cluster, rules).run()


def test_pods_are_made_one_after_another_and_cores_are_shared() -> None:
    # Ready at 1.5 and 2.5, then 1 s of thought each. The first has the node from 2.5 to 3.5, 4 processes wide: 4 of the
    # 8 / 2 * 4 = 16 core-seconds. Then both have two cores: the first ends after 12 / 2 = 6 s, at 9.5, with the other
    # at 12 of its 16; that one has all four cores for the last 4, until 10.5.
    done = ran(batch(2, TrajectoryStep(1.0, "reward", 8.0, 1, 32, HALVES)), RULES)
    assert done.spent_s[:, ENVIRONMENT, QUEUEING].tolist() == pytest.approx([1.5, 2.5])
    assert done.spent_s[:, REWARD, EXECUTION].tolist() == pytest.approx([7.0, 7.0])
    assert done.done_s.tolist() == pytest.approx([9.5, 10.5])
    assert done.core_s == pytest.approx(32.0)
    assert done.widths == [4, 4]


def test_a_pod_waits_for_room_by_requests() -> None:
    # Two pods of two CPUs fill the node. The third is created at 3 and placed when the first ends, at 1.5 + 10.
    done = ran(batch(3, TrajectoryStep(0.0, "tool", 10.0)), PodRules(**{**vars(RULES), "request": 2.0}))
    assert done.spent_s[:, ENVIRONMENT, QUEUEING].tolist() == pytest.approx([1.5, 2.5, 12.0])
    assert done.spent_s[:, ENVIRONMENT, EXECUTION].tolist() == pytest.approx([10.0, 10.0, 10.0])


def test_a_creation_that_times_out_is_retried_and_still_costs_the_control_plane() -> None:
    # One a second, timeout 2.5 s: the first two are served. At 2.5 the others time out and retry at 4.5; their
    # old creations keep the control plane busy until 4, so the new ones are done with at 5.5 and 6.5.
    done = ran(batch(4, TrajectoryStep(0.0, "tool", 1.0)), PodRules(**{**vars(RULES), "timeout_s": 2.5}))
    assert done.spent_s[:, ENVIRONMENT, QUEUEING].tolist() == pytest.approx([1.5, 2.5, 6.0, 7.0])
    assert done.retries == 2


def test_patience_that_is_always_too_short_ends_through_backing_off() -> None:
    done = ran(batch(40, TrajectoryStep(0.0, "tool", 1.0)), PodRules(**{**vars(RULES), "timeout_s": 2.5}))
    assert np.all(done.done_s > 0)
    assert done.retries > 40


def test_a_timeout_that_no_execution_could_meet_is_refused() -> None:
    with pytest.raises(ValueError, match="a timeout must be longer"):
        PodRules(creations_per_s=0.1, timeout_s=10.0)


def test_rigid_work_wider_than_the_limit_has_no_more_than_the_limit() -> None:
    done = ran(batch(1, TrajectoryStep(0.0, "build", 6.0, 8, 8)), RULES, Cluster(nodes=1, cores=64))
    assert done.spent_s[0, ENVIRONMENT, EXECUTION] == pytest.approx(12.0)


def test_pods_go_where_most_room_is() -> None:
    # Four rigid jobs of four cores on two nodes of eight: two a node, so that no core is shared.
    done = ran(batch(4, TrajectoryStep(0.0, "build", 60.0, 4, 4)), RULES, Cluster(nodes=2, cores=8))
    assert done.spent_s[:, ENVIRONMENT, EXECUTION].tolist() == pytest.approx([60.0] * 4)
