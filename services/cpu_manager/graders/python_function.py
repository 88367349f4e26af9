"""`python.function`: the trainer's own `compute_score` module, run inside the walls.

The module defines the trainer's rewards; the solution is data to it. But many such modules execute the solution, so no
part of the module runs outside, and the evidence is always `in-process`.

| what happened | verdict |
| --- | --- |
| the process ended, or an exception, before the call began | `refused` |
| an ordinary exception in the call, or a result that is no score | `refused`, or the stage's `exception_score` |
| exit, BaseException, signal, memory or output limit after the call began | not passed, the stage's `error_score` |
| time limit | `timeout` |

A sample that ends its grader is scored, not masked. Otherwise a policy would learn to end it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from services.cpu_manager.graders.harness_report import HarnessReport, new_nonce, pack, unpack
from services.cpu_manager.graders.programs import limits_of
from services.cpu_manager.graders.protocol import GradingContext, Verdict
from services.cpu_manager.graders.verdicts import ERROR_CLASSES, charged, how_it_ended, refused, tail, verdict_of_end
from services.cpu_manager.kinds import PythonFunction
from services.cpu_manager.sandbox.harnesses.function import BEGUN
from services.cpu_manager.sandbox.protocol import Exit, PythonJob
from shared.policy.model.results import Evidence


class PythonFunctionGrader:
    """The score is the function's result; keys beside `score` are kept in the output."""

    kind = "python.function"
    params = PythonFunction
    evidence: Evidence = "in-process"

    async def grade(self, params: PythonFunction, context: GradingContext) -> Verdict:
        """Call the function with verl's four keyword arguments."""
        nonce = new_nonce()
        arguments = {
            "data_source": params.data_source,
            "solution_str": params.solution_str,
            "ground_truth": params.ground_truth,
            "extra_info": params.extra_info,
        }
        wall_s = min(params.timeout_s, context.timeout_s)
        job = PythonJob(
            harness="function",
            source=params.module,
            payload=pack(nonce, {"function": params.function, "arguments": arguments}),
            limits=limits_of(wall_s, len(context.cores), params.memory_mb),
            zygote=zygote_of(context.tenant, params.module),
        )
        end = await context.sandbox.run(job, context.cores)
        begun = end.report.startswith(BEGUN)
        report = unpack(end.report.removeprefix(BEGUN), nonce)
        return charged(_Outcome(params.function, context, begun=begun).verdict(end, report), [end])


def zygote_of(tenant: str, module: str) -> str:
    """Return the name of the zygote for one tenant and one module. No other code is forked from it."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (tenant, module):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(encoded) + encoded)
    return f"function-{digest.hexdigest()}"


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Converts the end of one call to a verdict."""

    function: str
    context: GradingContext
    begun: bool
    """True if the call had begun."""

    def verdict(self, end: Exit, report: HarnessReport | None) -> Verdict:
        decided = verdict_of_end(end)
        if decided is not None and decided.status != "ok":
            return decided
        if decided is not None:
            output = {**decided.output, "stderr_tail": tail(end.stderr)}
            return self._ended(f"{self.function} met its {end.ended_by}. {end.detail}".strip(), output)
        if report is None:
            output = {"error_class": ERROR_CLASSES.get(end.ended_by, "EarlyExit"), "stderr_tail": tail(end.stderr)}
            return self._ended(f"The process {how_it_ended(end)} before {self.function} returned.", output)
        return _scored(report.details) if report.authentic else self._raised(report.details)

    def _raised(self, details: dict[str, Any]) -> Verdict:
        reason = f"{self.function} raised {details.get('exception')}: {details.get('message', '')}"
        output = {"error_class": "FunctionRaised", "traceback_tail": str(details.get("traceback", ""))}
        if details.get("ordinary") is not True:
            return self._ended(reason, output)
        if self.begun and self.context.exception_score is not None:
            return _not_passed(self.context.exception_score, reason, output)
        return refused(reason, output)

    def _ended(self, reason: str, output: dict[str, Any]) -> Verdict:
        return _not_passed(self.context.error_score, reason, output) if self.begun else refused(reason, output)


def _not_passed(score: float, reason: str, output: dict[str, Any]) -> Verdict:
    return Verdict(status="ok", passed=False, score=score, output=output, reason=reason)


def _scored(details: dict[str, Any]) -> Verdict:
    kind = details["type"]
    return Verdict(
        status="ok",
        passed=bool(details["score"]) if kind == "bool" else None,
        score=float(details["score"]),
        output=details["extra"],
    )
