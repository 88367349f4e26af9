"""`python.function`: the trainer's own `compute_score` module, run in the walls.

The module is the trainer's word on its rewards; the solution is data to it. But many such modules execute the
solution, so nothing of it runs outside. When the function fails, that is no word on the solution: the answer is
`refused` with the traceback, never a score.
"""

from __future__ import annotations

import hashlib
from typing import Any

from services.cpu_manager.graders.programs import limits_of
from services.cpu_manager.graders.protocol import Bench, Verdict
from services.cpu_manager.graders.seal import Report, new_nonce, pack, unpack
from services.cpu_manager.graders.verdicts import ERROR_CLASSES, charged, how_it_ended, refused, tail, verdict_of_end
from services.cpu_manager.sandbox.protocol import Exit, PythonJob
from shared.messages.kinds import PythonFunction


class PythonFunctionGrader:
    """The score is what the function returned; keys beside `score` are kept in the output."""

    kind = "python.function"
    params = PythonFunction
    repeatable = True

    async def grade(self, params: PythonFunction, bench: Bench) -> Verdict:
        """Call the function with verl's four keyword arguments."""
        nonce = new_nonce()
        arguments = {
            "data_source": params.data_source,
            "solution_str": params.solution_str,
            "ground_truth": params.ground_truth,
            "extra_info": params.extra_info,
        }
        wall_s = min(params.timeout_s, bench.timeout_s)
        job = PythonJob(
            harness="function",
            source=params.module,
            payload=pack(nonce, {"function": params.function, "arguments": arguments}),
            limits=limits_of(wall_s, len(bench.cores), params.memory_mb),
            zygote=zygote_of(bench.tenant, params.module),
        )
        end = await bench.sandbox.run(job, bench.cores)
        return charged(_verdict(end, unpack(end.report, nonce), params.function), [end])


def zygote_of(tenant: str, module: str) -> str:
    """The interpreter that actions of one tenant and one module share; nobody else's code is ever forked from it."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (tenant, module):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(encoded) + encoded)
    return f"function-{digest.hexdigest()}"


def _verdict(end: Exit, report: Report | None, function: str) -> Verdict:
    decided = verdict_of_end(end)
    if decided is not None:
        if decided.status == "ok":  # the module broke a limit: its fault, whatever the solution was
            return refused(f"{function} met its {end.ended_by}. {end.detail}".strip(), decided.output)
        return decided
    if report is not None and report.sealed:
        return _scored(report.told)
    if report is not None:
        traceback_tail = str(report.told.get("traceback", ""))
        reason = f"{function} raised {report.told.get('exception')}: {report.told.get('message', '')}"
        return refused(reason, {"error_class": "FunctionRaised", "traceback_tail": traceback_tail})
    error_class = ERROR_CLASSES.get(end.ended_by, "EarlyExit")
    reason = f"The process {how_it_ended(end)} before {function} returned."
    return refused(reason, {"error_class": error_class, "stderr_tail": tail(end.stderr)})


def _scored(told: dict[str, Any]) -> Verdict:
    kind = told["type"]
    return Verdict(
        status="ok",
        passed=bool(told["score"]) if kind == "bool" else None,
        score=float(told["score"]),
        output=told["extra"],
    )
