"""Oracle of engines at rest: a machine that reads every active engine at each decision."""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose

from shared.policy.serving.instance import EngineInstance
from shared.policy.serving.node_serving import NodeServing
from shared.policy.serving.node_state import NodeState
from shared.policy.serving.resting import RestingEngines


@dataclass(slots=True)
class NoRest(RestingEngines):
    """Engines that come to rest stay among those that are read."""

    state: NodeState | None = None

    def add(self, one: EngineInstance) -> None:
        assert self.state is not None
        self.state.moving[one.id] = one
        for gpu in one.id.chunk.gpus:
            self.state.gpus[gpu][one.id] = one


def restless(serving: NodeServing) -> NodeServing:
    """Return the machine, in which no engine rests."""
    state = serving._state
    state.resting = NoRest([{} for _ in state.gpus], state=state)
    return serving


def check_resting(serving: NodeServing) -> None:
    """Check that exactly the engines with nothing to do rest, and what is counted of them."""
    state = serving._state
    active = [one for one in state.instances.values() if one.active]
    resting = {one.id for one in active if one.resting}
    assert state.moving.keys() == {one.id for one in active} - resting
    for gpu in range(len(state.gpus)):
        here = [one for one in active if gpu in one.id.chunk.gpus]
        assert state.resting.gpus[gpu].keys() == {one.id for one in here} & resting
        assert state.gpus[gpu].keys() == {one.id for one in here} - resting
        used_gb = state.resting.device_gb(gpu) + sum(one.device_gb for one in state.gpus[gpu].values())
        assert isclose(used_gb, sum(one.device_gb for one in here), abs_tol=1e-9)
        joined = {at for one in here if one.id in resting and one.claim != "cold" and one.id.chunk.size > 1
                  for at in one.id.chunk.gpus}  # fmt: skip
        assert {at for at in range(len(state.gpus)) if state.resting.joined(gpu) >> at & 1} == joined
    assert isclose(state.memory.host_gb - state.host_free_gb(), sum(one.host_gb for one in active), abs_tol=1e-9)
