"""Runs lines through the mesh, one batch each."""

from __future__ import annotations

from collections.abc import Sequence

from shared.runtime.units import Seconds
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.graded import GradedBatch, ProgressListener
from treadle.client.requests import RewardRequest
from treadle.grading.format import Line

BUDGET_MARGIN_S: Seconds = 60.0
"""Seconds beyond a request's budget. The mesh answers by then in any case."""


def to_request(line: Line) -> RewardRequest:
    """Return the reward request of a line."""
    return RewardRequest(request_id=line.id, params=line.params, stage_params=line.stage_params, priority=line.priority)


async def grade_batch(
    client: AsyncTreadle, task: str, lines: Sequence[Line], *, key: str, budget_s: Seconds, progress: ProgressListener
) -> GradedBatch:
    """Open a batch of these lines, submit them and read every answer; see `AsyncTreadle.grade`.

    Args:
        budget_s: the task's. If no answer comes for this time plus `BUDGET_MARGIN_S`, waiting ends.
    """
    requests = [to_request(line) for line in lines]
    return await client.grade(task, requests, key=key, answer_timeout_s=budget_s + BUDGET_MARGIN_S, progress=progress)
