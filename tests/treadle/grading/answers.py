"""Answers for tests of the report's arithmetic."""

from __future__ import annotations

from treadle.client.answers import Act, Ending, Result, StageReport


def answer(
    request: str,
    *,
    arrived: float = 0.0,
    stages: list[tuple[str, float, float]] | None = None,
    overhead: float = 0.0,
    units: int = 1,
    passed: bool | None = True,
    score: float | None = 1.0,
    ended: Ending = "ok",
    mask: bool = False,
    reason: str = "",
    output: object = None,
) -> Result:
    """A finished answer; `stages` are (name, queueing, execution)."""
    legs = stages if stages is not None else [("run", 0.0, 1.0)]
    queueing, execution = sum(leg[1] for leg in legs), sum(leg[2] for leg in legs)
    return Result(
        id=f"r{request}",
        state="finished",
        request_id=request,
        arrived_at=arrived,
        ended=ended,
        mask=mask,
        passed=passed,
        score=score,
        reason=reason,
        output=output,
        act=Act(queue_s=queueing, execution_s=execution, overhead_s=overhead, total_s=queueing + execution + overhead),
        stages=[
            StageReport(name=name, queue_s=queue, execution_s=run, node="n", attempts=1, units=units)
            for name, queue, run in legs
        ],
        cursor="1-0",
    )
