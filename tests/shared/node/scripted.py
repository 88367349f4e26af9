"""A scripted executor, and attempts on it with a manual clock and recorded reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from shared.messages.grants import Granted
from shared.messages.outcomes import Finished, Outcome
from shared.node.attempts import Attempts
from shared.node.executor import Offer
from shared.node.identity import NodeIdentity
from shared.node.resource_usage import ResourceUsage
from shared.policy.model.results import AttemptResult
from shared.runtime.units import Seconds

DONE = AttemptResult("ok", passed=True, score=1.0)


def grant(
    action: str = "a", *, attempt: int = 1, stage: int = 0, epoch: int = 1, tokens: int = 1, **rest: Any
) -> Granted:
    fields = {"tenant": "ada", "work": "work", "params": b"{}", "timeout_s": 10.0, "budget_s": 60.0, **rest}
    fields.setdefault("units", {"tokens": tokens})
    return Granted(action=action, epoch=epoch, attempt=attempt, stage=stage, **fields)


async def turns(count: int = 5) -> None:
    """Run all ready tasks."""
    for _ in range(count):
        await asyncio.sleep(0)


class StoppedClock:
    """Time that the test sets."""

    def __init__(self, now: Seconds = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> Seconds:
        return self.now

    def unix(self) -> Seconds:
        return self.now


class ScriptedExecutor:
    """Executes any kind: four tokens with a queue, eight seats without one. Records what it has begun and released."""

    def __init__(self) -> None:
        self.resources = {"tokens": ResourceUsage(4, prefetches=True), "seats": ResourceUsage(8)}
        self.offered = Offer(["work"])
        self.waits = False
        """Every attempt waits for `go`."""
        self.go = asyncio.Event()
        self.act: Callable[[Granted], AttemptResult] = lambda _: DONE
        self.cleanup_turns = 0
        """Turns of the loop that a cancelled attempt takes to end."""
        self.begun: list[Granted] = []
        self.released: list[Granted] = []
        self.may_park = asyncio.Event()
        self.may_park.set()
        self.parks = True
        self.park_error: BaseException | None = None
        self.resumed: list[str] = []

    def offer(self) -> Offer:
        return self.offered

    def start(self, grant: Granted) -> asyncio.Task[AttemptResult]:
        return asyncio.create_task(self._execute(grant))

    def release(self, grant: Granted, task: asyncio.Task[AttemptResult]) -> None:
        assert task.done()
        self.released.append(grant)

    async def park(self, task: asyncio.Task[AttemptResult]) -> bool:
        await self.may_park.wait()
        if self.park_error is not None:
            raise self.park_error
        return self.parks and not task.done()

    def resume(self, grant: Granted, task: asyncio.Task[AttemptResult]) -> None:
        assert not task.done()
        self.resumed.append(grant.action)

    async def _execute(self, grant: Granted) -> AttemptResult:
        self.begun.append(grant)
        try:
            if self.waits:
                await self.go.wait()
        except asyncio.CancelledError:
            await turns(self.cleanup_turns)
            raise
        return self.act(grant)


class AttemptsUnderTest:
    """Attempts of a scripted executor, and everything they report."""

    def __init__(self) -> None:
        self.clock = StoppedClock()
        self.executor = ScriptedExecutor()
        self.units = self.executor.resources
        self.reports: list[Outcome] = []
        self.used_when_reported: list[int] = []
        self.attempts = Attempts(NodeIdentity("n", "1"), self.executor, self.report, self.clock, parking=self.executor)

    def report(self, outcome: Outcome) -> None:
        self.reports.append(outcome)
        if isinstance(outcome, Finished):
            self.used_when_reported.append(self.units["tokens"].used)

    def finished(self) -> list[Finished]:
        return [one for one in self.reports if isinstance(one, Finished)]

    async def settled(self) -> list[Finished]:
        """Wait until no attempt runs; return the finished ones."""
        async with asyncio.timeout(20):
            while len(self.attempts):  # noqa: ASYNC110  # waits until none is left
                await asyncio.sleep(0.001)
        return self.finished()
