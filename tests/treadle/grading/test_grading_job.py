"""A run of a job without a mesh: rejected lines, Ctrl-C, a proxy that is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import msgspec
import pytest

from shared.runtime.errors import BadRequest
from tests.treadle.grading.answers import answer
from treadle.client.answers import BatchView, BulkReceipt, Rejection, Result
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.errors import Unavailable
from treadle.client.graded import NoProgress
from treadle.client.requests import RewardRequest
from treadle.grading.format import GradingLine
from treadle.grading.job import GradingJob, run_job, workflow_of


def view(batch: str, size: int) -> BatchView:
    return BatchView(
        id=batch,
        task="t",
        tenant="default",
        state="complete",
        size=size,
        submitted=size,
        answered=size,
        opened_at=0,
        first_arrival_at=1.0,
        ended_at=3.0,
        expected_completion_at=None,
        extra_delay_s=None,
        overhead_s=None,
        stages=[],
    )


class FakeMesh(AsyncTreadle):
    """Answers everything it accepts, in one page."""

    def __init__(
        self, *, bad: Sequence[str] = (), stuck: bool = False, away: bool = False, twice: bool = False
    ) -> None:
        self._bad, self._stuck, self._away, self._twice = bad, stuck, away, twice
        self._accepted: dict[str, list[str]] = {}
        self.calls: list[tuple[str, str]] = []
        self._submitted = asyncio.Event()
        self.reading = asyncio.Event()

    async def open_batch(self, task: str, *, size: int | None = None, key: str | None = None) -> BatchView:
        self.calls.append(("open", key or ""))
        self._submitted.clear()
        return view(key or "", size or 0)

    async def _submit_lines(
        self, batch: str, lines: Sequence[bytes], on_accepted: Callable[[int], None] | None
    ) -> BulkReceipt:
        if self._away:
            raise Unavailable("away")
        ids = [msgspec.json.decode(line, type=RewardRequest).request_id or "" for line in lines]
        rejected = [
            Rejection(line=place, problem=BadRequest(what="odd").problem())
            for place, id_ in enumerate(ids, 1)
            if id_ in self._bad
        ]
        self._accepted[batch] = [id_ for id_ in ids if id_ not in self._bad]
        if not self._stuck:
            self._submitted.set()
        return BulkReceipt(accepted=len(ids) - len(rejected), repeated=0, rejected=rejected)

    async def results(self, batch: str, **_: Any) -> AsyncGenerator[list[Result], None]:
        self.reading.set()
        await self._submitted.wait()
        page = [answer(id_) for id_ in self._accepted[batch]]
        yield page
        if self._twice:
            yield page[:1]

    async def batch(self, batch: str) -> BatchView:
        return view(batch, len(self._accepted[batch]))

    async def seal(self, batch: str) -> BatchView:
        self.calls.append(("seal", batch))
        return view(batch, 0)

    async def cancel(self, batch: str) -> BatchView:
        self.calls.append(("cancel", batch))
        return view(batch, 0)


def job(*ids: str, batch_size: int | None = None) -> GradingJob:
    return GradingJob("t", workflow_of("noop"), [GradingLine(id=id_) for id_ in ids], "key", batch_size=batch_size)


async def test_batches_come_one_after_the_other_in_the_order_of_the_file() -> None:
    mesh = FakeMesh()
    report, batches = await run_job(mesh, job("a", "b", "c", batch_size=2), NoProgress())
    assert mesh.calls == [("open", "key/0"), ("open", "key/1")]
    assert [list(batch.answers) for batch in batches] == [["a", "b"], ["c"]]
    assert (report.rewards.requests, report.unanswered, report.repeated) == (3, 0, 0)
    assert [batch.duration_s for batch in report.batches] == [2.0, 2.0]


async def test_a_batch_with_rejected_lines_is_sealed_or_it_would_wait_for_them() -> None:
    mesh = FakeMesh(bad=["b"])
    report, _ = await run_job(mesh, job("a", "b"), NoProgress())
    assert ("seal", "key/0") in mesh.calls
    assert report.rejected == {"b": "odd"}
    assert (report.rewards.requests, report.unanswered) == (1, 0)


async def test_an_answer_that_comes_twice_is_counted_once_and_reported() -> None:
    report, _ = await run_job(FakeMesh(twice=True), job("a", "b"), NoProgress())
    assert (report.rewards.requests, report.repeated) == (2, 1)


async def test_ctrl_c_cancels_the_batch() -> None:
    mesh = FakeMesh(stuck=True)
    run = asyncio.create_task(run_job(mesh, job("a"), NoProgress()))
    await mesh.reading.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert mesh.calls[-1] == ("cancel", "key/0")


async def test_when_the_proxy_is_unreachable_the_batch_continues() -> None:
    mesh = FakeMesh(away=True)
    with pytest.raises(Unavailable):
        await run_job(mesh, job("a"), NoProgress())
    assert [name for name, _ in mesh.calls] == ["open"]
