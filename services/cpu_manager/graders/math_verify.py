"""`math.verify`: a model's answer against gold, by the math-verify library.

Its parser processes hostile text with backtracking patterns and sympy, which no exception can stop. So it runs inside
the walls, in an interpreter that has already imported it (the `math` zygote).
"""

from __future__ import annotations

from typing import Final

from services.cpu_manager.graders.harness_report import new_nonce, pack, unpack
from services.cpu_manager.graders.protocol import GradingContext, Verdict
from services.cpu_manager.graders.verdicts import charged, how_it_ended, refused, tail, verdict_of_end, wrong
from services.cpu_manager.kinds import MathVerify
from services.cpu_manager.sandbox.protocol import Exit, Limits, PythonJob
from shared.policy.model.results import Evidence

MEMORY_BYTES: Final = 1 << 30
"""sympy needs 60 MB; the rest is for numbers such as 9^9^9^9, which reach this limit."""


class MathVerifyGrader:
    """Right if math-verify considers the parsed answers equal."""

    kind = "math.verify"
    params = MathVerify
    evidence: Evidence = "separate"

    async def grade(self, params: MathVerify, context: GradingContext) -> Verdict:
        """Parse and compare. A response without an answer is wrong; a gold that does not parse is refused."""
        nonce = new_nonce()
        wall_s = min(params.timeout_s, context.timeout_s)
        job = PythonJob(
            harness="math",
            payload=pack(nonce, {"response": params.response, "gold": params.gold}),
            limits=Limits(wall_s=wall_s, cpu_s=wall_s + 1.0, memory_bytes=MEMORY_BYTES),
            zygote="math",
        )
        end = await context.sandbox.run(job, context.cores)
        decided = verdict_of_end(end)
        if decided is not None:
            return decided
        report = unpack(end.report, nonce)
        if report is None or not report.authentic:
            return charged(_no_report(end), [end])
        details = report.details
        if not details["gold"]:
            return charged(refused("The gold answer holds nothing that math-verify can parse.", details), [end])
        passed = bool(details["equal"])
        reason = "" if passed else ("Not equal." if details["response"] else "The response holds no answer.")
        return charged(
            Verdict(
                status="ok",
                passed=passed,
                score=float(passed),
                output={"gold": details["gold"], "extracted": details["response"]},
                reason=reason,
            ),
            [end],
        )


def _no_report(end: Exit) -> Verdict:
    """A crash is caused by the text: wrong. A normal exit without an answer is the library's fault: refused."""
    reason = f"math-verify gave no answer: the job {how_it_ended(end)}."
    if end.ended_by == "signal":
        return wrong(end, "ParserCrashed", reason)
    return refused(reason, {"error_class": "ParserFailed", "stderr_tail": tail(end.stderr)})
