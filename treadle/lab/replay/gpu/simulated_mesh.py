"""The mesh in virtual time: the leader's dispatcher grants chunks of GPUs, and nodes make services resident there.

All decisions are those of `shared/policy`: the order, the degree, the chunk, batching before a swap (`dispatch`), and
evictions and restores (`serving`). Nodes report residency as the GPU manager does. The simulation checks each grant:
a chunk is aligned, and its GPUs have no call of another service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.service_stimuli import ServicesReported
from shared.policy.dispatch.stimuli import (
    AttemptsEnded,
    AttemptStarted,
    InventoryReported,
    NodeJoined,
    NodeSeen,
    RequestsSubmitted,
    Stimulus,
    TickPassed,
)
from shared.policy.elastic.scheduling import ElasticRules, Rule
from shared.policy.model.chunks import ServedModel
from shared.policy.model.formulation import AnswerAction, Command, Grant, Request, Work
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.resources.chunks import GPUS
from treadle.lab.replay.gpu.assumptions import Engines, GpuCluster
from treadle.lab.replay.gpu.measures import GpuRun
from treadle.lab.replay.gpu.rollout import Done
from treadle.lab.replay.gpu.simulated_node import SimulatedGpuNode, restore_s
from treadle.lab.replay.gpu.trace import GpuCall, ModelService
from treadle.lab.replay.search.virtual_time import VirtualTime
from treadle.lab.replay.tangram.simulated_mesh import SimulationError

NODE_CLASS: Final = "default"
RESOURCE: Final = "gpus"
INCARNATION: Final = "1"
TICK_S: Final = 0.25
"""Interval of the leader's ticks."""
TIMEOUT_S: Final = 600.0
BATCH: Final = "step"
"""All calls are of one batch, so their order is that of arrival, as the paper's (§4.2)."""
BUDGET_S: Final = 1e6


@dataclass(frozen=True)
class GpuRules:
    """Rules of our side."""

    rule: Rule | None = "priced"
    """Rule of the degree: ours, or the paper's Algorithm 1. None: the fewest GPUs."""
    degree: int | None = None
    """Fixed degree."""
    swap_wait_s: float = 5.0
    """Turn of a service on its chunk, before one in demand is evicted."""

    def work(self, service: ModelService, degrees: tuple[int, ...]) -> Work:
        """Return a call of a service as the dispatcher receives it."""
        fewest = degrees[0] if self.degree is None else self.degree
        amounts = degrees if self.degree is None else ()
        elasticity, profile_s = service.elasticity, service.profile_s
        return Work(
            service.name, "model", f"{RESOURCE}@{NODE_CLASS}", {RESOURCE: fewest}, TIMEOUT_S, True, amounts,
            elasticity if amounts else None, profile_s if amounts else service.seconds(profile_s, fewest),
            service=service.name,
        )  # fmt: skip


@dataclass(slots=True)
class _Calling:
    """One unanswered call."""

    call: GpuCall
    done: Done
    granted_s: float = 0.0


class GpuMesh:
    """Calls of trajectories as actions of the mesh."""

    def __init__(
        self, time: VirtualTime, services: Mapping[str, ModelService], cluster: GpuCluster, engines: Engines,
        rules: GpuRules, run: GpuRun,
    ) -> None:  # fmt: skip
        self._time, self._services, self._cluster, self._engines, self._run = time, services, cluster, engines, run
        if rules.degree is not None:
            services = {name: replace(one, degrees=(rules.degree,)) for name, one in services.items()}
            self._services = services
        self._degrees = {name: _fitting(one, cluster, engines) for name, one in services.items()}
        self._works = {name: rules.work(one, self._degrees[name]) for name, one in services.items()}
        self._gb = {
            name: {degree: one.weights_gb / degree + engines.work_gb for degree in self._degrees[name]}
            for name, one in services.items()
        }
        """Memory on each GPU by service and degree."""
        self._restore_s = {
            name: {degree: restore_s(one, degree, engines) + engines.canary_s for degree in self._degrees[name]}
            for name, one in services.items()
        }
        """Seconds of a restore by service and degree."""
        self._calling: dict[str, _Calling] = {}
        self._serial = 0
        config = DispatchConfig(swap_wait_s=rules.swap_wait_s, elastic=ElasticRules(rule=rules.rule))
        self.dispatcher = Dispatcher(config, {RESOURCE: GPUS})
        self._nodes: dict[str, SimulatedGpuNode] = {}
        for number in range(cluster.nodes):
            name = f"node-{number}"
            self._nodes[name] = SimulatedGpuNode(time, services, cluster, engines, partial(self._report, name))
            self._handle(NodeJoined(name, INCARNATION, NODE_CLASS, {RESOURCE: cluster.gpus}, frozenset({"model"})))
            self._report(name)
            self._handle(InventoryReported(name, INCARNATION, {}))
        time.after(TICK_S, self._tick)

    def call(self, call: GpuCall, done: Done) -> None:
        """Submit an action."""
        self._serial += 1
        name, now = str(call.trajectory), self._time.now
        self._calling[name] = _Calling(call, done)
        arrival = (int(now * 1000), self._serial)
        work = self._works[call.service]
        self._handle(RequestsSubmitted((Request(name, "tenant", "task", BATCH, arrival, (work,), now + BUDGET_S),)))

    # ---- the leader --------------------------------------------------------------------------------------------

    def _handle(self, *stimuli: Stimulus) -> None:
        self._execute(self.dispatcher.handle(self._time.now, *stimuli))

    def _tick(self) -> None:
        self._handle(*(NodeSeen(name, INCARNATION) for name in self._nodes), TickPassed())
        self._time.after(TICK_S, self._tick)

    def _report(self, name: str) -> None:
        served = {
            service: ServedModel(
                self._degrees[service],
                self._services[service].concurrency,
                resident=chunks,
                awake_gb_by=self._gb[service],
                restore_s=self._restore_s[service],
                evict_s=dict.fromkeys(self._degrees[service], self._engines.evict_s),
            )
            for service, chunks in self._nodes[name].resident().items()
        }
        device_gb = (self._cluster.device_gb,) * self._cluster.gpus
        self._handle(ServicesReported(name, INCARNATION, RESOURCE, served, device_gb))

    def _execute(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Grant):
                self._begin(command)
            elif isinstance(command, AnswerAction):
                if command.ended != "ok":
                    raise SimulationError(f"{command.action} was answered {command.ended}: {command.reason}")
                self._calling.pop(command.action).done()

    # ---- the nodes ---------------------------------------------------------------------------------------------

    def _begin(self, grant: Grant) -> None:
        one, numbers = self._calling[grant.action], grant.numbers
        size = grant.units[RESOURCE]
        if numbers != tuple(range(numbers[0], numbers[0] + size)) or numbers[0] % size:
            raise SimulationError(f"{grant.action} was granted {size} GPUs, and the chunk {numbers}")
        one.granted_s = self._time.now
        admitted = partial(self._admitted, grant)
        self._time.after(0.0, partial(self._nodes[grant.node].want, grant.action, one.call.service, numbers, admitted))

    def _admitted(self, grant: Grant) -> None:
        one = self._calling[grant.action]
        degree = grant.units[RESOURCE]
        execution_s = self._services[one.call.service].seconds(one.call.single_s, degree)
        overhead_s = self._time.now - one.granted_s + self._engines.action_s
        self._run.add(one.granted_s - one.call.due_s, execution_s, overhead_s, degree)
        self._handle(AttemptStarted(grant.action, grant.attempt))
        self._time.after(execution_s + self._engines.action_s, partial(self._end, grant, execution_s))

    def _end(self, grant: Grant, execution_s: float) -> None:
        self._nodes[grant.node].end(grant.action)
        self._run.restores = sum(node.restores for node in self._nodes.values())
        result = AttemptResult("ok")
        ended = Ended(grant.action, grant.node, grant.attempt, 0, result, 0.0, execution_s, grant.units)
        self._handle(AttemptsEnded((ended,)))


def _fitting(service: ModelService, cluster: GpuCluster, engines: Engines) -> tuple[int, ...]:
    """Degrees at which an engine of the service fits into the memory of its GPUs."""
    most_gb = cluster.device_gb - engines.work_gb
    return tuple(degree for degree in service.degrees if service.weights_gb / degree <= most_gb)
