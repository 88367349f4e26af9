"""The report of a run. `treadle grade --json` prints it (docs/grade.md), and `render` shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shared.api.tasks import Task
from shared.runtime.units import Seconds
from treadle.client.answers import Result
from treadle.client.graded import GradedBatch
from treadle.client.verdicts import verdict_of
from treadle.grading.agreement import Agreement, compare
from treadle.grading.format import Expected, GradingLine
from treadle.grading.resources import PoolUse, added, pools_by_stage, uses_of
from treadle.grading.rewards import Masked, Rewards, masked_of, rewards_of
from treadle.grading.timing import Acts, StageActs, acts_of, extra_delay_s, stage_acts


class BatchReport(msgspec.Struct, frozen=True):
    """One batch."""

    id: str
    state: str
    requests: int
    duration_s: Seconds | None
    """From its first arrival to its end."""
    arrivals_s: Seconds
    """From its first arrival to its last. A rollout spreads them; a file's arrive at once."""
    extra_delay_s: Seconds


class GradingReport(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    task: str
    batches: list[BatchReport]
    elapsed_s: Seconds
    """From opening the first batch to the last answer, as measured by this client."""
    requests_per_s: float
    rewards: Rewards
    acts: Acts
    stages: list[StageActs]
    cpu_s: Seconds
    """CPU time of the graded programs."""
    pools: list[PoolUse]
    extra_delay_s: Seconds
    """d; the largest of several batches."""
    max_extra_delay_s: Seconds
    """D: extra delay that the task tolerates."""
    without_verdict: list[Masked]
    """Masked answers by end and reason, the most frequent first."""
    rejected: dict[str, str]
    """Lines that the mesh did not accept: id -> reason."""
    unanswered: int
    """Accepted, but not answered when the batch ended. Not 0: the batch was cancelled or abandoned."""
    repeated: int
    """Further answers to answered requests. Not 0: an error of the mesh."""
    agreement: Agreement | None = None
    """Comparison with recorded verdicts, if lines have any."""


class LineReport(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `--out`: the answer, and the file's other fields."""

    id: str
    group: str | None
    verdict: str
    score: float | None
    answer: Result | None
    """None: not accepted or not answered."""
    meta: dict[str, object]


def report_of(
    task_name: str,
    task: Task,
    lines: Sequence[GradingLine],
    batches: Sequence[GradedBatch],
    *,
    elapsed_s: Seconds,
    expected: Mapping[str, Expected],
) -> GradingReport:
    """Return the whole report of a run. O(n log n)."""
    pools = pools_by_stage(task.stages)
    groups = {line.id: line.group for line in lines if line.group is not None}
    answers = [answer for batch in batches for answer in batch.answers.values()]
    rejected = {id_: str(each.problem.get("detail")) for batch in batches for id_, each in batch.rejected.items()}
    return GradingReport(
        task=task_name,
        batches=[_batch(batch) for batch in batches],
        elapsed_s=elapsed_s,
        requests_per_s=len(answers) / elapsed_s if elapsed_s else 0.0,
        rewards=rewards_of(answers, groups),
        acts=acts_of(answers),
        stages=stage_acts(answers, pools),
        cpu_s=sum(answer.cpu_s for answer in answers),
        pools=added(uses_of(list(batch.answers.values()), pools) for batch in batches),
        extra_delay_s=max((extra_delay_s(batch.answers.values()) for batch in batches), default=0.0),
        max_extra_delay_s=task.max_extra_delay_s,
        without_verdict=masked_of(answers),
        rejected=rejected,
        unanswered=len(lines) - len(answers) - len(rejected),
        repeated=sum(batch.repeated for batch in batches),
        agreement=compare(expected, answers) if expected else None,
    )


def _batch(batch: GradedBatch) -> BatchReport:
    view = batch.view
    arrivals = [answer.arrived_at for answer in batch.answers.values()]
    ran = view.first_arrival_at is not None and view.ended_at is not None
    return BatchReport(
        id=view.id,
        state=view.state,
        requests=view.submitted,
        duration_s=(view.ended_at or 0.0) - (view.first_arrival_at or 0.0) if ran else None,
        arrivals_s=max(arrivals, default=0.0) - min(arrivals, default=0.0),
        extra_delay_s=extra_delay_s(batch.answers.values()),
    )


def line_report(line: GradingLine, batches: Sequence[GradedBatch]) -> LineReport:
    """Return a line with its answer."""
    answer = next((batch.answers[line.id] for batch in batches if line.id in batch.answers), None)
    return LineReport(
        id=line.id,
        group=line.group,
        verdict=verdict_of(answer) if answer is not None else "masked",
        score=answer.score if answer is not None and not answer.mask else None,
        answer=answer,
        meta=line.meta,
    )
