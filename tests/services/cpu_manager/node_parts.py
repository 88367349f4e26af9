"""Parts of a node with a manual clock, scripted graders and recorded reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from services.cpu_manager.acting import Acting
from services.cpu_manager.cores import Cores
from services.cpu_manager.cpu_executor import CpuExecutor, units_of
from services.cpu_manager.environment_registry import EnvironmentRegistry
from services.cpu_manager.environments.protocol import ActEnd, Environment
from services.cpu_manager.environments.runtimes import Runtimes
from services.cpu_manager.graders.protocol import GradingContext, Verdict
from services.cpu_manager.grading import Grading
from services.cpu_manager.kinds import MEMORY
from services.cpu_manager.sandbox.protocol import Exit, Job
from shared.kinds.spec import Params as KindParams
from shared.messages.environments import EnvironmentSpec
from shared.messages.grants import Granted
from shared.messages.outcomes import EnvironmentEnded, Finished, Outcome
from shared.node.attempts import Attempts
from shared.node.identity import NodeIdentity
from shared.policy.model.results import Evidence
from shared.policy.resources.cores import Topology
from shared.runtime.units import Seconds


class ManualClock:
    """Time that the test sets."""

    def __init__(self, now: Seconds = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> Seconds:
        return self.now

    def unix(self) -> Seconds:
        return self.now


class NoSandboxHere:
    """A sandbox that records jobs and runs nothing."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    async def run(self, job: Job, cores: frozenset[int]) -> Exit:
        self.jobs.append(job)
        return Exit(ended_by="exit", exit_code=0)

    async def close(self) -> None:
        """Nothing to close."""


async def turns(count: int = 5) -> None:
    """Run all ready tasks."""
    for _ in range(count):
        await asyncio.sleep(0)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number: int = 0


@dataclass
class ScriptedGrader:
    """A grader with scripted verdicts that records its calls."""

    kind: str = "work"
    params: type[Any] = Params
    evidence: Evidence = ""
    act: Callable[[Params, GradingContext], Verdict] = lambda _, __: Verdict(status="ok", passed=True, score=1.0)
    waits: bool = False
    """Every call waits for `go`."""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    begun: list[GradingContext] = field(default_factory=list)

    async def grade(self, params: Params, context: GradingContext) -> Verdict:
        self.begun.append(context)
        if self.waits:
            await self.go.wait()
        return self.act(params, context)


def in_environment(
    action: str = "a", trajectory: str = "t", *, line: str = "true", begins: bool = False, **rest: Any
) -> Granted:
    """A grant to act in a trajectory's environment; `begins`: with the specification to create it."""
    fields = {"work": "env.bash", "params": msgspec.json.encode({"line": line}), **rest}
    return grant(action, trajectory=trajectory, environment=SPEC if begins else None, **fields)


def grant(
    action: str = "a", *, attempt: int = 1, stage: int = 0, epoch: int = 1, cores: int = 1, **rest: Any
) -> Granted:
    fields = {"tenant": "ada", "work": "work", "params": b"{}", "timeout_s": 10.0, "budget_s": 60.0, **rest}
    fields.setdefault("units", {"cores": cores})
    return Granted(action=action, epoch=epoch, attempt=attempt, stage=stage, **fields)


SPEC = EnvironmentSpec(memory_mb=100)


class FakeEnvironment:
    """An environment with scripted ends that records its actions and its closing."""

    def __init__(self, trajectory: str, spec: EnvironmentSpec, runtime: FakeRuntime) -> None:
        self.trajectory, self.spec, self.alive = trajectory, spec, True
        self.age_s = 0.0
        self.closed = False
        self.acts: list[tuple[str, KindParams, frozenset[int], float]] = []
        self.resumed: list[frozenset[int]] = []
        """Cores of each continuation."""
        self.used_s: float | None = 1.0
        """CPU time."""
        self.cleaned = 0
        """Actions that were cut and ended their processes."""
        self._runtime = runtime

    async def act(self, kind: str, params: KindParams, cores: frozenset[int], timeout_s: float) -> ActEnd:
        self.acts.append((kind, params, cores, timeout_s))
        try:
            if self._runtime.waits:
                await self._runtime.go.wait()
        except asyncio.CancelledError:
            await turns()
            self.cleaned += 1
            raise
        return self._runtime.act(self)

    async def park(self) -> bool:
        return self._runtime.waits and not self._runtime.go.is_set()

    async def resume(self, cores: frozenset[int]) -> None:
        self.resumed.append(cores)

    async def cpu_s(self) -> float | None:
        return self.used_s

    async def close(self) -> None:
        await self._runtime.may_close.wait()
        self.alive, self.closed = False, True


@dataclass
class FakeRuntime:
    """Runtime of scripted environments; only for unit tests."""

    name: str = "local"
    act: Callable[[FakeEnvironment], ActEnd] = lambda _: ActEnd(ended_by="done", passed=True, output={"exit_code": 0})
    waits: bool = False
    """Every action waits for `go`."""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    create_waits: bool = False
    fails: Exception | None = None
    """Error of every creation."""
    may_close: asyncio.Event = field(default_factory=asyncio.Event)
    made: list[FakeEnvironment] = field(default_factory=list)
    making: int = 0
    standing_by: list[Environment] = field(default_factory=list)
    """Survivors of an earlier manager."""
    prepared: list[str] = field(default_factory=list)
    has: set[str] = field(default_factory=set)
    """Images."""
    closed: bool = False

    def __post_init__(self) -> None:
        self.may_close.set()

    async def create(self, trajectory: str, spec: EnvironmentSpec, cores: frozenset[int]) -> FakeEnvironment:
        self.making += 1
        try:
            if self.create_waits:
                await self.go.wait()
            if self.fails is not None:
                raise self.fails
        finally:
            self.making -= 1
        self.made.append(FakeEnvironment(trajectory, spec, self))
        return self.made[-1]

    async def survivors(self) -> list[Environment]:
        return self.standing_by

    def images(self) -> frozenset[str]:
        return frozenset(self.has)

    async def prepare(self, image: str) -> None:
        self.prepared.append(image)
        await self.go.wait()

    async def close(self) -> None:
        self.closed = True


class NodeParts:
    """Attempts on four cores with one scripted grader and one fake runtime, and everything they report."""

    def __init__(
        self,
        *,
        cores: Iterable[int] = range(4),
        output_bytes: int = 1000,
        guard_s: float = 5.0,
        memory_mb: int = 1000,
        runtimes: Runtimes | None = None,
    ) -> None:
        """`runtimes`: real ones, instead of the fake."""
        self.clock = ManualClock()
        self.cores = Cores(Topology((tuple((core,) for core in cores),)))
        self.units = units_of(self.cores, slots=8, memory_mb=memory_mb, starts=2)
        self.memory = self.units[MEMORY]
        self.grader = ScriptedGrader()
        self.sandbox = NoSandboxHere()
        self.runtime = FakeRuntime()
        self.reports: list[Outcome] = []
        self.runtimes = runtimes or Runtimes([self.runtime])
        self.registry = EnvironmentRegistry(
            node="n",
            incarnation="1",
            acting=Acting(self.runtimes, self.clock, output_bytes, guard_s),
            memory=self.memory,
            report=self.report,
            clock=self.clock,
        )
        grading = Grading({"work": self.grader}, self.sandbox, output_bytes, guard_s)
        self.executor = CpuExecutor(self.units, self.cores, grading, self.registry)
        self.attempts = Attempts(
            NodeIdentity("n", "1"), self.executor, self.report, self.clock, self.registry, self.executor
        )
        self.used_when_reported: list[int] = []

    def report(self, outcome: Outcome) -> None:
        self.reports.append(outcome)
        if isinstance(outcome, Finished):
            self.used_when_reported.append(self.units["cores"].used)

    def finished(self) -> list[Finished]:
        return [one for one in self.reports if isinstance(one, Finished)]

    def ended(self) -> list[tuple[str, str]]:
        """(trajectory, end) of the environments that were reported as ended."""
        return [(one.trajectory, one.ended) for one in self.reports if isinstance(one, EnvironmentEnded)]

    async def settled(self) -> list[Finished]:
        """Wait until no attempt runs; return the finished ones."""
        async with asyncio.timeout(20):
            while len(self.attempts):  # noqa: ASYNC110  # waits until none is left
                await asyncio.sleep(0.001)
        return self.finished()
