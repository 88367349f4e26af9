"""Executor of a CPU host: graders in the sandbox, and actions in environments, on exclusive cores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.cpu_manager.cores import Cores
from services.cpu_manager.environment_registry import EnvironmentRegistry
from services.cpu_manager.grading import Grading
from services.cpu_manager.kinds import CORES, IN_ENVIRONMENTS, MEMORY, SLOTS, STARTS
from shared.messages.grants import Granted
from shared.node.executor import Offer
from shared.node.resource_usage import ResourceUsage
from shared.policy.model.results import AttemptResult


def units_of(cores: Cores, *, slots: int, memory_mb: int, starts: int) -> dict[str, ResourceUsage]:
    """Return the units of a CPU host. Only cores have a queue on the node.

    `memory_mb` and `starts` are for environments; 0: the node creates none.
    """
    units = {CORES: ResourceUsage(len(cores.all), prefetches=True), SLOTS: ResourceUsage(slots)}
    if memory_mb:
        units |= {MEMORY: ResourceUsage(memory_mb), STARTS: ResourceUsage(starts)}
    return units


@dataclass(slots=True)
class CpuExecutor:
    """Starts each grant on its cores: in its trajectory's environment if it has one, else with its kind's grader."""

    resources: Mapping[str, ResourceUsage]
    cores: Cores
    grading: Grading
    registry: EnvironmentRegistry
    labels: Mapping[str, str] = field(default_factory=dict)
    _assigned: dict[asyncio.Task[AttemptResult], frozenset[int]] = field(default_factory=dict)
    """Attempt -> its cores; a parked one has none."""
    _resuming: set[asyncio.Task[None]] = field(default_factory=set)

    def offer(self) -> Offer:
        """Return the kinds of all graders, and those of environments if a runtime can create them."""
        runtimes = self.registry.acting.runtimes.names
        kinds = [*self.grading.graders, *(IN_ENVIRONMENTS if runtimes else ())]
        return Offer(kinds, dict(self.labels), runtimes)

    def start(self, grant: Granted) -> asyncio.Task[AttemptResult]:
        """Assign cores and start the attempt."""
        cores = self.cores.take(grant.units.get(CORES, 0))
        if grant.trajectory:
            task = self.registry.start(grant, cores)
        else:
            task = asyncio.create_task(self.grading.grade(grant, cores), name=f"attempt {grant.action}")
        self._assigned[task] = cores
        return task

    async def park(self, task: asyncio.Task[AttemptResult]) -> bool:
        """Freeze the attempt's environment and release its cores."""
        if not await self.registry.park(task):
            return False
        self.cores.give_back(self._assigned.pop(task, frozenset()))
        return True

    def resume(self, grant: Granted, task: asyncio.Task[AttemptResult]) -> None:
        """Assign cores again, maybe other ones, and thaw the environment on them."""
        cores = self._assigned[task] = self.cores.take(grant.units.get(CORES, 0))
        resuming = asyncio.create_task(self.registry.resume(task, cores), name=f"resume {grant.action}")
        self._resuming.add(resuming)
        resuming.add_done_callback(self._resuming.discard)

    def release(self, grant: Granted, task: asyncio.Task[AttemptResult]) -> None:
        """Release the cores, and detach the attempt from its environment."""
        self.cores.give_back(self._assigned.pop(task, frozenset()))
        if grant.trajectory:
            self.registry.detach(task)
