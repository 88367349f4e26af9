"""A node's parts with a hand on its clock, its graders and what it reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from services.cpu_manager.attempts import Attempts
from services.cpu_manager.cores import Cores
from services.cpu_manager.graders.protocol import Bench, Verdict
from services.cpu_manager.holding import Holding
from services.cpu_manager.sandbox.protocol import Exit, Job
from shared.messages.grants import Granted
from shared.messages.outcomes import Finished, Started
from shared.units import Seconds


class ManualClock:
    """Time passes when the test says so."""

    def __init__(self, now: Seconds = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> Seconds:
        return self.now

    def unix(self) -> Seconds:
        return self.now


class NoSandboxHere:
    """Nothing in these tests runs a program."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    async def run(self, job: Job, cores: frozenset[int]) -> Exit:
        self.jobs.append(job)
        return Exit(ended_by="exit", exit_code=0)

    async def close(self) -> None:
        """Nothing to close."""


async def turns(count: int = 5) -> None:
    """Let everything that is ready go on."""
    for _ in range(count):
        await asyncio.sleep(0)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number: int = 0


@dataclass
class Scripted:
    """A grader that does what the test tells it to, and notes on what it was called."""

    kind: str = "work"
    params: type[Any] = Params
    repeatable: bool = True
    act: Callable[[Params, Bench], Verdict] = lambda _, __: Verdict(status="ok", passed=True, score=1.0)
    waits: bool = False
    """Every call waits for `go`."""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    begun: list[Bench] = field(default_factory=list)

    async def grade(self, params: Params, bench: Bench) -> Verdict:
        self.begun.append(bench)
        if self.waits:
            await self.go.wait()
        return self.act(params, bench)


def grant(
    action: str = "a", *, attempt: int = 1, stage: int = 0, epoch: int = 1, cores: int = 1, **rest: Any
) -> Granted:
    fields = {"tenant": "ada", "work": "work", "params": b"{}", "timeout_s": 10.0, "budget_s": 60.0, **rest}
    fields.setdefault("units", {"cores": cores})
    return Granted(action=action, epoch=epoch, attempt=attempt, stage=stage, **fields)


class Bed:
    """Attempts on four cores with one scripted grader, and everything they report."""

    def __init__(self, *, cores: int = 4, output_bytes: int = 1000, guard_s: float = 5.0) -> None:
        self.clock = ManualClock()
        self.cores, self.slots = Cores(frozenset(range(cores))), Holding(8, owned=8)
        self.grader = Scripted()
        self.sandbox = NoSandboxHere()
        self.reports: list[Started | Finished] = []
        self.attempts = Attempts(
            node="n",
            incarnation="1",
            cores=self.cores,
            slots=self.slots,
            sandbox=self.sandbox,
            graders={"work": self.grader},
            report=self.report,
            clock=self.clock,
            output_bytes=output_bytes,
            guard_s=guard_s,
        )
        self.used_when_told: list[int] = []

    def report(self, outcome: Started | Finished) -> None:
        self.reports.append(outcome)
        if isinstance(outcome, Finished):
            self.used_when_told.append(self.cores.used)

    def finished(self) -> list[Finished]:
        return [one for one in self.reports if isinstance(one, Finished)]

    async def settled(self) -> list[Finished]:
        """Until nothing runs any more."""
        async with asyncio.timeout(20):
            while len(self.attempts):  # noqa: ASYNC110  # what is waited for is that nothing is left
                await asyncio.sleep(0.001)
        return self.finished()
