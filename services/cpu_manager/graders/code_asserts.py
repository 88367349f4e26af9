"""`code.asserts`: a program and asserts in one interpreter (HumanEval, MBPP).

The verdict is passed only when the harness's report carries this run's nonce, which it can only after the last assert
(`sandbox/harnesses/asserts.py`). Everything else, however the program ended, is not passed. docs/graders.md says what
asserts that share an interpreter with the program cannot prevent; `code.stdio` shares nothing.
"""

from __future__ import annotations

import msgspec

from services.cpu_manager.graders.programs import limits_of
from services.cpu_manager.graders.protocol import Bench, Verdict
from services.cpu_manager.graders.seal import Report, new_nonce, pack, unpack
from services.cpu_manager.graders.verdicts import (
    ERROR_CLASSES,
    LOST,
    charged,
    how_it_ended,
    lost,
    tail,
    verdict_of_end,
    wrong,
)
from services.cpu_manager.sandbox.protocol import Exit, PythonJob
from shared.messages.kinds import CodeAsserts


class CodeAssertsGrader:
    """Passed, failed (an assert said no), error (another exception), or timeout."""

    kind = "code.asserts"
    params = CodeAsserts
    repeatable = True

    async def grade(self, params: CodeAsserts, bench: Bench) -> Verdict:
        """Run `code`, then `tests`, then `check(entry_point)`, as one program would."""
        nonce = new_nonce()
        wall_s = min(params.timeout_s, bench.timeout_s)
        job = PythonJob(
            harness="asserts",
            source=params.code,
            payload=pack(nonce, asserts_of(params)),
            limits=limits_of(wall_s, len(bench.cores), params.memory_mb),
        )
        end = await bench.sandbox.run(job, bench.cores)
        return charged(_verdict(end, unpack(end.report, nonce)), [end])


def asserts_of(params: CodeAsserts) -> str:
    """The text that follows the program's: the tests and, for HumanEval, the call of `check`."""
    if params.entry_point is None:
        return params.tests
    return f"{params.tests}\ncheck({params.entry_point})\n"


def _verdict(end: Exit, report: Report | None) -> Verdict:
    if end.ended_by in LOST:
        return lost(end)
    if report is not None and report.sealed:
        return Verdict(status="ok", passed=True, score=1.0, output={"verdict": "passed"})
    decided = verdict_of_end(end)
    if decided is not None:
        verdict = "timeout" if decided.status == "timeout" else "error"
        return msgspec.structs.replace(decided, output={**decided.output, "verdict": verdict})
    if report is None:
        error_class = ERROR_CLASSES.get(end.ended_by, "EarlyExit")
        reason = f"The program {how_it_ended(end)} before its last assert."
        return wrong(end, error_class, reason, verdict="error", stderr_tail=tail(end.stderr))
    exception = str(report.told.get("exception", "Exception"))
    failed = exception == "AssertionError" or report.told.get("assertion") is True
    message = str(report.told.get("message", ""))
    return wrong(
        end,
        "AssertionFailed" if failed else "UncaughtException",
        f"{exception}: {message}" if message else exception,
        verdict="failed" if failed else "error",
        exception=exception,
        traceback_tail=str(report.told.get("traceback", "")),
        stdout_tail=tail(end.stdout),
    )
