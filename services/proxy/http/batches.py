"""/v1/batches: read progress and results, report progress, seal, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import StreamingResponse

from services.proxy.http.openapi.parts import lines
from services.proxy.state import CurrentState, ProxyState
from shared.api.batches import BatchList, BatchView, ProgressReceipt, ProgressReport
from shared.bus.archive import StoredResult
from shared.runtime.app import problem_responses
from shared.runtime.patterns import BATCH, CURSOR

router = APIRouter(prefix="/v1/batches", tags=["batches"])

BatchName = Annotated[str, Path(pattern=BATCH, description="Id of the batch.")]

LOOK_S = 5.0
"""Interval at which a follower reads the batch's record, also without a wake-up."""
PAGE = 1000
"""Results read in one round trip."""


@router.get("", summary="Open batches", responses=problem_responses(422, 503))
async def list_batches(proxy: CurrentState) -> BatchList:
    open_now = await proxy.store.open_batches()
    return BatchList(batches=[await proxy.batches.view(batch.id) for batch in open_now[:100]])


@router.get("/{batch}", summary="Progress of a batch", responses=problem_responses(404, 422, 503))
async def get_batch(batch: BatchName, proxy: CurrentState) -> BatchView:
    return await proxy.batches.view(batch)


@router.post(
    "/{batch}/seal",
    summary="Seal a batch: it accepts no more requests",
    responses=problem_responses(404, 409, 413, 422, 503),
)
async def seal_batch(batch: BatchName, proxy: CurrentState) -> BatchView:
    """The batch is complete when all submitted requests are answered."""
    return await proxy.batches.end(batch, "sealed")


@router.post(
    "/{batch}/progress",
    summary="Report the progress of the rollout",
    responses=problem_responses(404, 409, 413, 422, 503),
)
async def report_progress(batch: BatchName, body: ProgressReport, proxy: CurrentState) -> ProgressReceipt:
    """Optional and useful: the planner then expects reward requests when *this* rollout will send them.

    Without reports the planner expects them at the times of the task's last batches. If this rollout is slower, units
    wait without work. If it is faster, there are too few units. A report corrects the expectation at the planner's
    next review, about ten seconds later at most.

    Send a report every few seconds, from opening the batch to its last request. It has the number of samples that are
    still being generated and, if you have them, the tokens of each of these so far. Send `{"generating": 0}` when the
    last sample is done. A report replaces the one before. Of several within a second the first counts (`taken` shows
    whether this one did). Reports change no answer, so skip one rather than wait for it.
    """
    return await proxy.rollouts.report(batch, body)


@router.delete("/{batch}", summary="Cancel and delete a batch", responses=problem_responses(404, 409, 422, 503))
async def cancel_batch(batch: BatchName, proxy: CurrentState) -> BatchView:
    """Queued requests are answered `cancelled`; running ones are killed.

    Existing results can be read for five more minutes (`PROXY_KEEP_DELETED_S`), then they are deleted. This also holds
    for a batch that has ended. A repeat changes nothing.
    """
    return await proxy.batches.end(batch, "cancelled")


@router.get(
    "/{batch}/results",
    summary="Results in order of completion (NDJSON)",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "One answer per line, each with its `cursor`.",
            "content": lines("ResultLine"),
        },
        **problem_responses(404, 422, 503),
    },
)
async def get_results(
    batch: BatchName,
    proxy: CurrentState,
    follow: Annotated[bool, Query(description="Stream further results until the batch has ended.")] = False,
    after: Annotated[str, Query(pattern=CURSOR, description="Cursor of the last line you have; empty: all.")] = "",
) -> StreamingResponse:
    """Every result once, in the order of completion. Continue with `after=<cursor>`; no result is lost."""
    await proxy.batches.stored(batch)
    first = await proxy.store.results.page(batch, after, PAGE)  # so that an absent store gives a status
    lines = _follow(proxy, batch, after, first) if follow else _pages(proxy, batch, after, first)
    return StreamingResponse(lines, media_type="application/x-ndjson")


async def _pages(
    proxy: ProxyState, batch: str, after: str, rows: list[StoredResult] | None = None
) -> AsyncIterator[bytes]:
    """Yield the existing results after `after`. `rows`: the first page, if it has been read."""
    if rows is None:
        rows = await proxy.store.results.page(batch, after, PAGE)
    while rows:
        yield b"".join(_line(cursor, answer) for cursor, answer in rows)
        rows = await proxy.store.results.page(batch, rows[-1].cursor, PAGE)


async def _follow(proxy: ProxyState, batch: str, after: str, first: list[StoredResult]) -> AsyncIterator[bytes]:
    """Yield results until the batch has ended and all are sent; at the latest until its lifetime is over.

    If a store goes away, the stream breaks. The reader continues after its last cursor.
    """
    if first:
        yield b"".join(_line(cursor, answer) for cursor, answer in first)
        after = first[-1].cursor
    async with proxy.waiters.following(batch) as news:
        while True:
            news.clear()
            stored = await proxy.store.batch(batch)  # read it before the results; later changes set the event again
            async for page in _pages(proxy, batch, after):
                after = _last_cursor(page)
                yield page
            if stored is None or stored.ended_at is not None:
                return
            try:
                async with asyncio.timeout(LOOK_S):
                    await news.wait()
            except TimeoutError:
                continue


def _line(cursor: str, answer: bytes) -> bytes:
    return b'{"cursor":"' + cursor.encode() + b'",' + answer[1:] + b"\n"


def _last_cursor(page: bytes) -> str:
    last = page[page.rfind(b"\n", 0, -1) + 1 :]
    return last[len(b'{"cursor":"') : last.index(b'",')].decode()
