"""Runs lines through the mesh, batch after batch: opens, submits, follows, and ends every wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from shared.api.batches import BatchView
from shared.api.requests import Rejection, RewardRequest
from shared.runtime.errors import TreadleError
from shared.runtime.units import Seconds
from treadle.client.rest import Client
from treadle.client.results import Result
from treadle.grading.format import Line

CANCEL_S: Seconds = 5.0
"""After Ctrl-C so long is spent on cancelling the batch."""
QUIET_MARGIN_S: Seconds = 60.0
"""Beyond a request's budget, after which the mesh answers in any case."""

_encoder = msgspec.json.Encoder()


class Watcher(Protocol):
    """Hears how a run goes on."""

    def submitted(self, requests: int) -> None: ...

    def answered(self, results: Sequence[Result]) -> None: ...


@dataclass(slots=True)
class GradedBatch:
    """One batch when it has ended."""

    view: BatchView
    answers: dict[str, Result] = field(default_factory=dict)
    """By id of the line, in the order of completion."""
    rejected: dict[str, Rejection] = field(default_factory=dict)
    """What the mesh did not accept, by id."""
    repeated: int = 0
    """Answers to a request that had one already: 0, or the mesh broke its promise."""

    def take(self, page: Sequence[Result]) -> None:
        for result in page:
            if result.request_id in self.answers:
                self.repeated += 1
            else:
                self.answers[result.request_id or result.id] = result


def to_request(line: Line) -> RewardRequest:
    """What travels of a line."""
    return RewardRequest(
        request_id=line.id,
        params=msgspec.Raw(_encoder.encode(line.params)),
        stage_params={name: msgspec.Raw(_encoder.encode(params)) for name, params in line.stage_params.items()},
        priority=line.priority,
    )


async def grade_batch(
    client: Client, task: str, lines: Sequence[Line], *, key: str, budget_s: Seconds, watcher: Watcher
) -> GradedBatch:
    """Open a batch of these lines, submit them and read every answer.

    Args:
        key: opens the batch; grading again with the same key and lines takes up where an earlier run broke off.
        budget_s: the task's; without any answer for longer than that, waiting ends.
    Raises:
        TreadleError: the door was away for longer than the client is patient; the batch goes on meanwhile.
    Cancelled (Ctrl-C), it cancels the batch.
    """
    view = await client.open_batch(task, size=len(lines), key=key)
    graded = GradedBatch(view)
    try:
        await _exchange(client, graded, lines, budget_s + QUIET_MARGIN_S, watcher)
    except asyncio.CancelledError:
        with contextlib.suppress(TreadleError, TimeoutError):
            async with asyncio.timeout(CANCEL_S):
                await client.cancel(view.id)
        raise
    graded.view = await client.batch(view.id)
    return graded


async def _exchange(
    client: Client, graded: GradedBatch, lines: Sequence[Line], quiet_s: Seconds, watcher: Watcher
) -> None:
    """Submit and read at the same time: the first answers are back before the last request has left."""
    failed: TreadleError | None = None
    try:
        async with asyncio.TaskGroup() as group, aclosing(client.results(graded.view.id, quiet_s=quiet_s)) as pages:
            group.create_task(_submit(client, graded, lines, watcher))
            async for page in pages:
                graded.take(page)
                watcher.answered(page)
    except* TreadleError as errors:
        failed = _first(errors)
    if failed is not None:  # raised out here: Python 3.11.2 wraps what is raised in an except* into a group again
        raise failed


async def _submit(client: Client, graded: GradedBatch, lines: Sequence[Line], watcher: Watcher) -> None:
    requests = [to_request(line) for line in lines]
    receipt = await client.submit(graded.view.id, requests, taken=watcher.submitted)
    for rejection in receipt.rejected:
        graded.rejected[lines[rejection.line - 1].id] = rejection
    if receipt.rejected:  # the batch waits for requests that will not come
        await client.seal(graded.view.id)


def _first(errors: BaseExceptionGroup[TreadleError]) -> TreadleError:
    for error in errors.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("an exception group holds at least one")
