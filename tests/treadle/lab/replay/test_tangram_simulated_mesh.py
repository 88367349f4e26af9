"""The mesh in virtual time: grants of its dispatcher and their reported cost, seen from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import AttemptsEnded
from shared.policy.model.elasticity import Elasticity
from shared.policy.model.formulation import AnswerAction, CloseEnvironment, Command, Grant
from treadle.lab.replay.tangram.assumptions import Cluster, Overheads
from treadle.lab.replay.tangram.measures import ENVIRONMENT, EXECUTION, OVERHEAD, QUEUEING, REWARD, SystemRun
from treadle.lab.replay.tangram.simulated_mesh import CORES, SimulatedMesh, SimulationError, System
from treadle.lab.replay.tangram.trace import Batch, Trajectory, TrajectoryStep

SMALL = Cluster(nodes=2, cores=8, memory_mb=64_000)
FREE = Overheads(action_s=0.0, begin_s=0.0)
SYSTEMS = (System("ours"), System("paper", "paper"), System("fewest", None), System("DoP 4", dop=4))

seconds = st.integers(0, 20).map(float)
tools = st.builds(TrajectoryStep, seconds, st.just("tool"), seconds)
rewards = st.builds(
    TrajectoryStep, seconds, st.just("reward"), st.integers(1, 60).map(float), st.just(1), st.sampled_from([4, 8]),
    st.sampled_from([Elasticity("amdahl", serial=0.1), Elasticity("power", exponent=0.8)]),
    st.sampled_from([None, 30.0]),
)  # fmt: skip
ways = st.tuples(st.lists(tools, max_size=3), rewards).map(lambda found: (*found[0], found[1]))
batches = st.lists(ways, min_size=1, max_size=14).map(
    lambda many: tuple(Trajectory(f"t{number}", "g", steps) for number, steps in enumerate(many))
)


class AuditedDispatcher:
    """A dispatcher, and a separate ledger of its grants and inputs."""

    def __init__(self, watched: Dispatcher, cluster: Cluster) -> None:
        self._watched, self._cores = watched, cluster.cores
        self.running: dict[str, Grant] = {}
        self.most: Counter[str] = Counter()
        """Most cores granted at a time, by node."""
        self.placements: dict[str, set[str]] = {}
        """Nodes on which a trajectory acted, by trajectory."""
        self.begun: Counter[str] = Counter()
        self.answered: list[str] = []
        self.closed: list[str] = []

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._watched, name)

        def ask(*arguments: Any) -> Any:
            for stimulus in arguments[1:]:
                for end in stimulus.ends if isinstance(stimulus, AttemptsEnded) else ():
                    del self.running[end.action]
            found = asked(*arguments)
            if isinstance(found, list):
                self._see(found)
            self._watched.check()
            return found

        return ask if callable(asked) else asked

    def _see(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Grant):
                trajectory = command.action.split(".")[0]
                assert command.action not in self.running
                assert not any(other.split(".")[0] == trajectory for other in self.running), "one action at a time"
                self.running[command.action] = command
                self.placements.setdefault(trajectory, set()).add(command.node)
                self.begun[trajectory] += command.begins
                held = sum(grant.units[CORES] for grant in self.running.values() if grant.node == command.node)
                assert held <= self._cores
                self.most[command.node] = max(self.most[command.node], held)
            elif isinstance(command, AnswerAction):
                self.answered.append(command.action)
            elif isinstance(command, CloseEnvironment):
                self.closed.append(command.trajectory)


def watched(system: System, batch: Batch, cluster: Cluster = SMALL) -> tuple[SystemRun, AuditedDispatcher]:
    simulated = SimulatedMesh(system, batch, cluster, Overheads())
    watching: Any = AuditedDispatcher(simulated.dispatcher, cluster)
    simulated.dispatcher = watching
    return simulated.run(), watching


@given(batches, st.sampled_from(SYSTEMS))
def test_grants_never_exceed_a_node_and_every_trajectory_acts_in_one_place_to_its_end(
    batch: Batch, system: System
) -> None:
    run, seen = watched(system, batch)
    assert not seen.running
    assert sorted(seen.answered) == sorted(
        f"{number}.{step}" for number, trajectory in enumerate(batch) for step in range(len(trajectory.steps))
    )
    assert all(len(nodes) == 1 for nodes in seen.placements.values())
    assert seen.begun == Counter({str(number): 1 for number in range(len(batch))})
    assert sorted(seen.closed) == sorted(trajectory.name for trajectory in batch)
    assert np.all(run.done_s >= 0)


@given(batches, st.sampled_from(SYSTEMS))
def test_thinking_and_completion_times_add_up_to_each_trajectorys_life(batch: Batch, system: System) -> None:
    run = SimulatedMesh(system, batch, SMALL, Overheads()).run()
    thought_s = [trajectory.think_s for trajectory in batch]
    assert run.done_s.tolist() == pytest.approx((run.acts_s + np.array(thought_s)).tolist())
    assert (run.spent_s >= 0).all()
    assert sum(run.parts_s) == pytest.approx(run.act_s)
    assert run.phase_s(ENVIRONMENT) + run.phase_s(REWARD) == pytest.approx(run.act_s)
    overheads_s = [0.01 * len(trajectory.steps) + 1.0 for trajectory in batch]
    assert run.spent_s[:, :, OVERHEAD].sum(axis=1).tolist() == pytest.approx(overheads_s)


@given(batches, st.sampled_from(SYSTEMS))
def test_the_same_batch_runs_the_same_way_again(batch: Batch, system: System) -> None:
    one, other = (SimulatedMesh(system, batch, SMALL, FREE).run() for _ in range(2))
    assert one.spent_s.tolist() == other.spent_s.tolist()
    assert one.widths == other.widths


@given(batches)
def test_execution_time_follows_the_elasticity_of_the_granted_cores(batch: Batch) -> None:
    run = SimulatedMesh(System("DoP 4", dop=4), batch, SMALL, FREE).run()
    for number, trajectory in enumerate(batch):
        assert run.spent_s[number, REWARD, EXECUTION] == pytest.approx(trajectory.steps[-1].seconds(4))
        tools_s = sum(step.work_s for step in trajectory.steps[:-1])
        assert run.spent_s[number, ENVIRONMENT, EXECUTION] == pytest.approx(tools_s)
    assert run.widths == [4] * len(batch)


def test_alone_an_elastic_action_takes_all_it_can_use() -> None:
    step = TrajectoryStep(1.0, "reward", 64.0, 1, 8, Elasticity("power", exponent=1.0), 64.0)
    run = SimulatedMesh(System("ours"), (Trajectory("t", "g", (step,)),), SMALL, FREE).run()
    assert run.widths == [8]
    assert run.act_s == pytest.approx(8.0)


def test_an_unprofiled_action_takes_the_fewest_cores() -> None:
    step = TrajectoryStep(1.0, "reward", 64.0, 1, 8, Elasticity("power", exponent=1.0))
    run = SimulatedMesh(System("ours"), (Trajectory("t", "g", (step,)),), SMALL, FREE).run()
    assert run.widths == [1]


def test_what_does_not_fit_queues_in_the_order_of_arrival() -> None:
    # One node of 8 cores: two rigid actions of 4 run, the third waits for the first of them.
    many = tuple(
        Trajectory(f"t{number}", "g", (TrajectoryStep(float(number), "build", 10.0 + number, 4, 4),))
        for number in range(3)
    )
    run = SimulatedMesh(System("ours"), many, Cluster(nodes=1, cores=8), FREE).run()
    assert run.spent_s[:, ENVIRONMENT, QUEUEING].tolist() == pytest.approx([0.0, 0.0, 8.0])


def test_work_that_no_node_could_ever_take_is_an_error_and_not_a_wait_for_ever() -> None:
    many = (Trajectory("t", "g", (TrajectoryStep(0.0, "build", 1.0, 9, 9),)),)
    with pytest.raises(SimulationError, match="no event is left"):
        SimulatedMesh(System("ours"), many, SMALL, FREE).run()


def test_batches_of_one_size_are_measured_together() -> None:
    steps = (TrajectoryStep(1.0, "tool", 2.0),)
    runs = [
        SimulatedMesh(System("ours"), (Trajectory(name, "g", steps * count),), SMALL, FREE).run()
        for name, count in (("a", 1), ("b", 3))
    ]
    both = SystemRun.together(runs)
    assert both.act_s == pytest.approx((2.0 + 6.0) / 2)
    assert both.step_s == pytest.approx((3.0 + 9.0) / 2)
    assert both.document()["batches"] == 2
