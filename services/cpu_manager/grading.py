"""Attempts that need only a sandbox: parse a grant's parameters, grade, return the verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from services.cpu_manager.graders.protocol import Grader, GradingContext, Verdict
from services.cpu_manager.outputs import encode_output
from services.cpu_manager.sandbox.protocol import Exit, Job, JobCut, PythonJob, Sandbox
from shared.messages.grants import Granted
from shared.node.artifacts import ArtifactDelayed, Artifacts, ArtifactUnavailable, NoArtifacts
from shared.policy.model.results import AttemptResult, lost, refused
from shared.runtime import log

_log = log.get(__name__)


@dataclass(slots=True)
class Grading:
    """The graders of this node and the sandbox that they use."""

    graders: Mapping[str, Grader[Any]]
    """By action kind."""
    sandbox: Sandbox
    output_bytes: int
    guard_s: float
    """Seconds past its limit after which an attempt that has not ended counts as our failure."""
    artifacts: Artifacts = field(default_factory=NoArtifacts)
    artifact_bytes: int = 4 << 20
    """Largest artifact."""

    async def grade(self, grant: Granted, cores: frozenset[int]) -> AttemptResult:
        """Execute the grant on these cores. If it is cancelled, it returns `cancelled` with what it has used, or raises
        its cancellation if that is nothing.
        """
        grader = self.graders.get(grant.work)
        if grader is None:
            return refused(f"this node does not execute {grant.work}")
        sandbox = TenantSandbox(self.sandbox, grant.tenant)
        try:
            params = msgspec.json.decode(grant.params, type=grader.params)
            context = GradingContext(
                sandbox=sandbox,
                cores=cores,
                timeout_s=grant.timeout_s,
                tenant=grant.tenant,
                error_score=grant.error_score,
                exception_score=grant.exception_score,
                artifact=partial(self.artifacts.read, grant),
            )
            async with asyncio.timeout(grant.timeout_s + self.guard_s):
                verdict = await grader.grade(params, context)
            verdict = await self._with_artifact(grant, verdict)
            output = encode_output(verdict.output, self.output_bytes)
        except asyncio.CancelledError:
            if not sandbox.cpu_s:
                raise
            failure = AttemptResult("cancelled")
        except ArtifactUnavailable as error:
            failure = _without_artifact(error)
        except TimeoutError:
            failure = lost(f"no end {self.guard_s:g} s after its limit of {grant.timeout_s:g} s")
        except (ValueError, msgspec.MsgspecError) as error:
            failure = refused(str(error))
        except Exception as error:  # noqa: BLE001  # a grader's bug is our failure, never a verdict
            _log.exception("grader_failed", action=grant.action, work=grant.work)
            failure = lost(f"the grader failed: {type(error).__name__}")
        else:
            return AttemptResult(
                verdict.status,
                verdict.passed,
                verdict.score,
                output,
                verdict.reason,
                {"cpu_s": verdict.cpu_s},
                verdict.peak_memory_bytes,
                evidence="" if verdict.status == "lost" else verdict.evidence or grader.evidence,
            )
        return msgspec.structs.replace(failure, usage={"cpu_s": sandbox.cpu_s}) if sandbox.cpu_s else failure

    async def _with_artifact(self, grant: Granted, verdict: Verdict) -> Verdict:
        """Store the artifact of a verdict before it is reported. One that is too large has failed."""
        if verdict.artifact is None:
            return verdict
        if (size := len(verdict.artifact)) > self.artifact_bytes:
            reason = f"The artifact has {size} bytes, and may have {self.artifact_bytes}."
            output = {**verdict.output, "error_class": "ArtifactTooLarge"}
            return msgspec.structs.replace(verdict, passed=False, score=0.0, output=output, reason=reason)
        await self.artifacts.store(grant, verdict.artifact)
        return verdict


def _without_artifact(error: ArtifactUnavailable) -> AttemptResult:
    """Return a failure of ours: an artifact could not be read or stored."""
    if isinstance(error, ArtifactDelayed):
        return AttemptResult("postponed", reason=str(error), retry_in_s=error.retry_in_s)
    return lost(str(error))


class TenantSandbox:
    """The node's sandbox, with separate zygotes for this tenant.

    Zygotes hold no payload and no secret, so no leak between tenants is known. Separate zygotes also prevent unknown
    ones. The default tenant uses the zygotes that were started first.
    """

    def __init__(self, sandbox: Sandbox, tenant: str) -> None:
        self._sandbox = sandbox
        self._tenant = tenant
        self.cpu_s = 0.0
        """CPU seconds of its jobs so far, also of those that were cut."""

    async def run(self, job: Job, cores: frozenset[int]) -> Exit:
        """Run one job (see `Sandbox.run`)."""
        if isinstance(job, PythonJob) and self._tenant != "default":
            job = msgspec.structs.replace(job, zygote=f"{job.zygote}@{self._tenant}")
        try:
            end = await self._sandbox.run(job, cores)
        except asyncio.CancelledError as error:
            self.cpu_s += sum(one.cpu_s for one in error.args if isinstance(one, JobCut))
            raise
        self.cpu_s += end.cpu_s
        return end

    async def close(self) -> None:
        """Does nothing: the node closes its sandbox itself."""
