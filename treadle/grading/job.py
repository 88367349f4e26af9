"""A job: lines to be graded under one task, in one batch or several."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from shared.api.tasks import StageTemplate, Task
from shared.kinds.registry import all_kinds
from shared.runtime.units import Seconds
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.errors import NotFound
from treadle.client.graded import GradedBatch, ProgressListener
from treadle.client.requests import RewardRequest
from treadle.grading.format import Expected, GradingLine
from treadle.grading.report import GradingReport, report_of

STAGE_LIMIT_S: Seconds = 60.0
"""Execution limit of a workflow made from a kind alone. The kind's own time limits (params) are lower."""
BUDGET_MARGIN_S: Seconds = 60.0
"""Seconds beyond a request's budget. The mesh answers by then in any case."""


@dataclass(frozen=True, slots=True)
class GradingJob:
    """The lines of one run, with their task."""

    task: str
    workflow: Task
    lines: Sequence[GradingLine]
    key: str
    """Name of the run. Grading again with it continues where the run stopped."""
    batch_size: int | None = None
    """Requests per batch; None: all in one."""
    expected: Mapping[str, Expected] = field(default_factory=dict)

    def batches(self) -> list[tuple[str, Sequence[GradingLine]]]:
        """Return (key, lines) of each batch, in the order of the file."""
        size = self.batch_size or max(1, len(self.lines))
        starts = range(0, len(self.lines), size)
        return [(f"{self.key}/{number}", self.lines[start : start + size]) for number, start in enumerate(starts)]


def workflow_of(kind: str) -> Task:
    """Return a workflow of one stage of this kind.

    Raises:
        ValueError: there is no such kind.
    """
    all_kinds().kind(kind)  # raises if there is none
    return Task(stages=[StageTemplate(name="run", kind=kind, timeout_s=STAGE_LIMIT_S)])


async def declared(client: AsyncTreadle, name: str) -> Task:
    """Return the workflow of a task of the mesh.

    Raises:
        NotFound: the mesh has no such task. The message says how to name a workflow.
    """
    try:
        view = await client.task(name)
    except NotFound as error:
        hint = "give --kind, or a header with a workflow (docs/grade.md), or the --task that you declared"
        raise NotFound(f"{error}; {hint}", error.problem) from error
    known = {name: value for name, value in msgspec.to_builtins(view).items() if name in Task.model_fields}
    return Task.model_validate_json(msgspec.json.encode(known))


async def run_job(
    client: AsyncTreadle, job: GradingJob, progress: ProgressListener
) -> tuple[GradingReport, list[GradedBatch]]:
    """Grade one batch after another, each when the previous one has ended, as training steps do.

    Raises:
        TreadleError: the mesh rejects a call, or was away for longer than the client waits.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    graded = [
        await grade_batch(client, job.task, lines, key=key, budget_s=job.workflow.budget_s, progress=progress)
        for key, lines in job.batches()
    ]
    elapsed_s = loop.time() - started
    report = report_of(job.task, job.workflow, job.lines, graded, elapsed_s=elapsed_s, expected=job.expected)
    return report, graded


def to_request(line: GradingLine) -> RewardRequest:
    """Return the reward request of a line."""
    return RewardRequest(request_id=line.id, params=line.params, stage_params=line.stage_params, priority=line.priority)


async def grade_batch(
    client: AsyncTreadle,
    task: str,
    lines: Sequence[GradingLine],
    *,
    key: str,
    budget_s: Seconds,
    progress: ProgressListener,
) -> GradedBatch:
    """Open a batch of these lines, submit them and read every answer; see `AsyncTreadle.grade`.

    Args:
        budget_s: the task's. If no answer comes for this time plus `BUDGET_MARGIN_S`, waiting ends.
    """
    requests = [to_request(line) for line in lines]
    return await client.grade(task, requests, key=key, answer_timeout_s=budget_s + BUDGET_MARGIN_S, progress=progress)
