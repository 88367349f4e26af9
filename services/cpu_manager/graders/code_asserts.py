"""`code.asserts`: a program and asserts (HumanEval, MBPP).

If the tests can be expressed as calls and comparisons (`splitting`), only the calls enter the sandbox. The program
returns data; expected values and comparisons stay here (`evidence` is `separate`). All other tests run in the program's
interpreter (`in-process`). They pass only if the harness's report contains this run's nonce, which it writes only after
the last assert (`sandbox/harnesses/asserts.py`). docs/graders.md lists what that cannot prevent. Only the text of the
tests decides between the two.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from services.cpu_manager.graders.harness_report import HarnessReport, new_nonce, pack, unpack
from services.cpu_manager.graders.programs import limits_of
from services.cpu_manager.graders.protocol import GradingContext, Verdict
from services.cpu_manager.graders.splitting.judging import Finding, Judge, raised
from services.cpu_manager.graders.splitting.plan import SplitPlan
from services.cpu_manager.graders.splitting.reading import PlanCache
from services.cpu_manager.graders.verdicts import (
    ERROR_CLASSES,
    LOST,
    charged,
    how_it_ended,
    lost,
    refused,
    tail,
    verdict_of_end,
    wrong,
)
from services.cpu_manager.kinds import CodeAsserts
from services.cpu_manager.sandbox.protocol import Exit, PythonJob
from shared.policy.model.results import Evidence

_INLINE_BYTES: Final = 16 << 10
"""Longer reports are judged in a thread; a MiB of small values takes about half a second."""


class CodeAssertsGrader:
    """Passed, failed (an assert was false), error (another exception), or timeout."""

    kind = "code.asserts"
    params = CodeAsserts
    evidence: Evidence = "in-process"

    def __init__(self) -> None:
        self._plans = PlanCache()

    async def grade(self, params: CodeAsserts, context: GradingContext) -> Verdict:
        """Run `code`, then `tests`, then `check(entry_point)`, as one program would."""
        text = asserts_of(params)
        plan = await self._plans.get(text)
        if plan is not None:
            verdict = await _separate(plan, params, context)
        else:
            verdict = await _in_process(text, params, context)
        return msgspec.structs.replace(verdict, evidence="in-process" if plan is None else "separate")


def asserts_of(params: CodeAsserts) -> str:
    """Return the text that follows the program's: the tests and, for HumanEval, the call of `check`."""
    if params.entry_point is None:
        return params.tests
    return f"{params.tests}\ncheck({params.entry_point})\n"


async def _separate(plan: SplitPlan, params: CodeAsserts, context: GradingContext) -> Verdict:
    judge = Judge(plan)

    def enough(report: bytes) -> bool:
        if judge.waiting + len(report) - judge.taken > _INLINE_BYTES:
            return False
        return judge.take(report[judge.taken :]).decided in ("failed", "error")

    job = _job("calls", params, context, plan.payload)
    end = await context.sandbox.run(msgspec.structs.replace(job, enough=enough), context.cores)
    rest = end.report[judge.taken :]
    inline = judge.waiting + len(rest) <= _INLINE_BYTES
    finding = judge.take(rest) if inline else await asyncio.to_thread(judge.take, rest)
    return charged(_found(end, finding), [end])


async def _in_process(text: str, params: CodeAsserts, context: GradingContext) -> Verdict:
    nonce = new_nonce()
    end = await context.sandbox.run(_job("asserts", params, context, pack(nonce, text)), context.cores)
    report = unpack(end.report, nonce)
    if report is not None and report.authentic and "fault" in report.details and end.ended_by not in LOST:
        return charged(refused(f"The tests cannot run: {report.details['fault']}"), [end])
    finding = _finding_of(report)
    if finding.decided != "passed" and verdict_of_end(end) is not None:
        finding = Finding()  # the limit counts, not the program's report about itself
    return charged(_found(end, finding), [end])


def _job(harness: str, params: CodeAsserts, context: GradingContext, payload: bytes) -> PythonJob:
    wall_s = min(params.timeout_s, context.timeout_s)
    limits = limits_of(wall_s, len(context.cores), params.memory_mb)
    return PythonJob(harness=harness, source=params.code, payload=payload, limits=limits)


def _finding_of(report: HarnessReport | None) -> Finding:
    if report is None:
        return Finding()
    if report.authentic:
        return Finding(decided="passed")
    return raised(report.details)


def _found(end: Exit, finding: Finding) -> Verdict:
    if end.ended_by in LOST:
        return lost(end)
    if finding.decided == "passed":
        return Verdict(status="ok", passed=True, score=1.0, output={"verdict": "passed"})
    if finding.decided == "undecided":
        return _cut_short(end)
    return wrong(
        end,
        "AssertionFailed" if finding.decided == "failed" else "UncaughtException",
        f"{finding.exception}: {finding.message}" if finding.message else finding.exception,
        verdict=finding.decided,
        exception=finding.exception,
        traceback_tail=finding.traceback,
        stdout_tail=tail(end.stdout),
    )


def _cut_short(end: Exit) -> Verdict:
    decided = verdict_of_end(end)
    if decided is None:
        error_class = ERROR_CLASSES.get(end.ended_by, "EarlyExit")
        reason = f"The program {how_it_ended(end)} before its last assert."
        return wrong(end, error_class, reason, verdict="error", stderr_tail=tail(end.stderr))
    verdict = "timeout" if decided.status == "timeout" else "error"
    return msgspec.structs.replace(decided, output={**decided.output, "verdict": verdict})
