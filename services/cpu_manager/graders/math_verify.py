"""`math.verify`: a model's answer against gold, by the math-verify library.

Its parser walks hostile text with backtracking patterns and sympy, which no exception can stop. So it runs in the
walls, in an interpreter that has it imported already (the `math` zygote).
"""

from __future__ import annotations

from typing import Final

from services.cpu_manager.graders.protocol import Bench, Verdict
from services.cpu_manager.graders.seal import new_nonce, pack, unpack
from services.cpu_manager.graders.verdicts import charged, how_it_ended, refused, verdict_of_end, wrong
from services.cpu_manager.sandbox.protocol import Limits, PythonJob
from shared.messages.kinds import MathVerify

MEMORY_BYTES: Final = 1 << 30
"""sympy is 60 MB; the rest is for numbers such as 9^9^9^9, which end here."""


class MathVerifyGrader:
    """Right when math-verify holds the parsed answers equal."""

    kind = "math.verify"
    params = MathVerify
    repeatable = True

    async def grade(self, params: MathVerify, bench: Bench) -> Verdict:
        """Parse and compare. A response without an answer is wrong; a gold that does not parse is refused."""
        nonce = new_nonce()
        wall_s = min(params.timeout_s, bench.timeout_s)
        job = PythonJob(
            harness="math",
            payload=pack(nonce, {"response": params.response, "gold": params.gold}),
            limits=Limits(wall_s=wall_s, cpu_s=wall_s + 1.0, memory_bytes=MEMORY_BYTES),
            zygote="math",
        )
        end = await bench.sandbox.run(job, bench.cores)
        decided = verdict_of_end(end)
        if decided is not None:
            return decided
        report = unpack(end.report, nonce)
        if report is None or not report.sealed:
            told = report.told.get("message", "") if report is not None else ""
            reason = f"math-verify gave no answer: the job {how_it_ended(end)}. {told}"
            return charged(wrong(end, "ParserFailed", reason.strip()), [end])
        told_output = report.told
        if not told_output["gold"]:
            return charged(refused("The gold answer holds nothing that math-verify can parse.", told_output), [end])
        passed = bool(told_output["equal"])
        reason = "" if passed else ("Not equal." if told_output["response"] else "The response holds no answer.")
        return charged(
            Verdict(
                status="ok",
                passed=passed,
                score=float(passed),
                output={"gold": told_output["gold"], "extracted": told_output["response"]},
                reason=reason,
            ),
            [end],
        )
