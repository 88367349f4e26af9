"""Kinds without a sandbox: they measure the mesh and represent work that waits."""

from __future__ import annotations

import asyncio

from services.cpu_manager.graders.protocol import GradingContext, Verdict
from services.cpu_manager.kinds import Noop, Sleep
from shared.policy.model.results import Evidence


class NoopGrader:
    """Answers at once with what it received."""

    kind = "noop"
    params = Noop
    evidence: Evidence = ""

    async def grade(self, params: Noop, context: GradingContext) -> Verdict:
        """Return the echo, if there is one."""
        del context
        return Verdict(status="ok", output={"echo": params.echo} if params.echo else {})


class SleepGrader:
    """Waits without a core. If it is longer than the stage's limit, it times out exactly at the limit."""

    kind = "sleep"
    params = Sleep
    evidence: Evidence = ""

    async def grade(self, params: Sleep, context: GradingContext) -> Verdict:
        """Return after `seconds`, or after the stage's limit if that is shorter."""
        await asyncio.sleep(min(params.seconds, context.timeout_s))
        if params.seconds > context.timeout_s:
            return Verdict(
                status="timeout", reason=f"{params.seconds} s do not fit the stage's limit of {context.timeout_s} s."
            )
        return Verdict(status="ok")
