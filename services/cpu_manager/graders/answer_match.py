"""`answer.match`: text equality after a named normalisation.

The normal forms are linear and run here. A task's own `extract` pattern may take exponential time to match and seconds
to compile, and Python's `re` holds the interpreter's lock during that time: one bad pattern would stop every grader of
this manager. So the pattern runs inside the walls, where a wall limit ends it. Only actions with a pattern pay for a
job.
"""

from __future__ import annotations

from typing import Final

from services.cpu_manager.graders.harness_report import new_nonce, pack, unpack
from services.cpu_manager.graders.normalise import normal_form
from services.cpu_manager.graders.protocol import GradingContext, Verdict
from services.cpu_manager.graders.verdicts import charged, lost, refused, verdict_of_end
from services.cpu_manager.kinds import AnswerMatch
from services.cpu_manager.sandbox.harnesses.function import BEGUN
from services.cpu_manager.sandbox.protocol import Limits, PythonJob
from shared.policy.model.results import Evidence

EXTRACT_S: Final = 5.0
"""Longest wall time of a pattern, in seconds. A sane one needs milliseconds for a response of a megabyte."""
SHOWN_CHARS: Final = 200

EXTRACTOR: Final = '''\
import re

def extract(pattern, response):
    """The last match's first group (or the whole match of a pattern without groups); None without a match."""
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"not a regular expression ({error})") from None
    last = None
    for last in compiled.finditer(response):
        pass
    if last is None:
        return {"score": 0, "text": None}
    return {"score": 1, "text": last.group(1) if last.re.groups else last.group()}
'''


class AnswerMatchGrader:
    """Right if the answer's normal form equals that of any gold text."""

    kind = "answer.match"
    params = AnswerMatch
    evidence: Evidence = "separate"

    async def grade(self, params: AnswerMatch, context: GradingContext) -> Verdict:
        """Extract if requested, then compare.

        Raises:
            ValueError: there is no gold text.
        """
        golds = [params.gold] if isinstance(params.gold, str) else params.gold
        if not golds:
            raise ValueError("answer.match needs at least one gold text")
        if params.extract is None:
            return _compared(params, golds, params.response)
        return await self._extracted(params, params.extract, golds, context)

    async def _extracted(self, params: AnswerMatch, pattern: str, golds: list[str], context: GradingContext) -> Verdict:
        nonce = new_nonce()
        request = {"function": "extract", "arguments": {"pattern": pattern, "response": params.response}}
        wall_s = min(EXTRACT_S, context.timeout_s)
        job = PythonJob(
            harness="function",
            source=EXTRACTOR,
            payload=pack(nonce, request),
            limits=Limits(wall_s=wall_s, cpu_s=wall_s + 1.0),
        )
        end = await context.sandbox.run(job, context.cores)
        decided = verdict_of_end(end)
        if decided is not None and decided.status != "ok":
            return decided
        report = unpack(end.report.removeprefix(BEGUN), nonce)
        if report is None:
            return lost(end)  # only our own program ran: without its report nothing is known of the answer
        if not report.authentic:
            return refused(f"extract failed: {report.details.get('message', '')}")
        text = report.details["extra"]["text"]
        return charged(_compared(params, golds, text), [end])


def _compared(params: AnswerMatch, golds: list[str], text: str | None) -> Verdict:
    if text is None:
        return Verdict(
            status="ok", passed=False, score=0.0, output={"extracted": None}, reason="The response holds no answer."
        )
    answer = normal_form(text, params.mode)
    passed = answer is not None and any(answer == normal_form(gold, params.mode) for gold in golds)
    return Verdict(
        status="ok",
        passed=passed,
        score=float(passed),
        output={"extracted": text[-SHOWN_CHARS:], "normalised": answer[-SHOWN_CHARS:] if answer is not None else None},
        reason="" if passed else "The answer is none of the gold texts.",
    )
