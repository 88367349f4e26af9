"""/v1/batches: watch, read results, report progress, seal, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import StreamingResponse

from services.proxy.http.openapi.parts import lines
from services.proxy.state import CurrentState, ProxyState
from shared.api.batches import BatchList, BatchView, ProgressReceipt, ProgressReport
from shared.bus.archive import Result
from shared.runtime.app import problem_responses

router = APIRouter(prefix="/v1/batches", tags=["batches"])

BatchName = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="Id of the batch.")]

LOOK_S = 5.0
"""A follower looks at the batch itself so often, whatever wake-ups it gets."""
PAGE = 1000
"""Results read at once."""


@router.get("", summary="Open batches", responses=problem_responses(422, 503))
async def list_batches(proxy: CurrentState) -> BatchList:
    open_now = await proxy.store.open_batches()
    return BatchList(batches=[await proxy.batches.view(batch.id) for batch in open_now[:100]])


@router.get("/{batch}", summary="Progress of a batch", responses=problem_responses(404, 422, 503))
async def get_batch(batch: BatchName, proxy: CurrentState) -> BatchView:
    return await proxy.batches.view(batch)


@router.post("/{batch}/seal", summary="End a batch short", responses=problem_responses(404, 409, 413, 422, 503))
async def seal_batch(batch: BatchName, proxy: CurrentState) -> BatchView:
    """No more requests come; it is complete when what was submitted is answered."""
    return await proxy.batches.end(batch, "sealed")


@router.post(
    "/{batch}/progress", summary="Say how far the rollout is", responses=problem_responses(404, 409, 413, 422, 503)
)
async def report_progress(batch: BatchName, body: ProgressReport, proxy: CurrentState) -> ProgressReceipt:
    """Optional, and worth sending: reward requests are then expected when *this* rollout will send them.

    Without it the planner expects a batch's requests when those of the task's last batches came. A rollout that is
    slower than those keeps units waiting for nothing; a faster one finds too few. A report corrects that at the
    planner's next look, some ten seconds later at most.

    Send one every few seconds from opening the batch to its last request: how many samples are still being generated,
    and, if you have them, how many tokens each of those has so far. Send `{"generating": 0}` when the last sample is
    done. A report replaces the one before; of several within a second the first counts (`taken` says which did).
    Nothing waits for it, and no answer changes with it: leave one out rather than wait.
    """
    return await proxy.rollouts.report(batch, body)


@router.delete("/{batch}", summary="Cancel and delete a batch", responses=problem_responses(404, 409, 422, 503))
async def cancel_batch(batch: BatchName, proxy: CurrentState) -> BatchView:
    """Queued requests are answered `cancelled`, running ones are killed.

    Results there are can be read for five more minutes (`PROXY_KEEP_DELETED_S`); then they are deleted. So are those of
    a batch that has ended. A repeat changes nothing.
    """
    return await proxy.batches.end(batch, "cancelled")


@router.get(
    "/{batch}/results",
    summary="Results as they come (NDJSON)",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "One answer a line, each with its `cursor`.",
            "content": lines("ResultLine"),
        },
        **problem_responses(404, 422, 503),
    },
)
async def get_results(
    batch: BatchName,
    proxy: CurrentState,
    follow: Annotated[
        bool, Query(description="Stay and send results as they come, until the batch has ended.")
    ] = False,
    after: Annotated[
        str, Query(pattern=r"^(\d{1,18}-\d{1,18})?$", description="Cursor of the last line you have; empty: all.")
    ] = "",
) -> StreamingResponse:
    """Every result once, in the order of completion. Read on with `after=<cursor>`: nothing is missed."""
    await proxy.batches.stored(batch)
    first = await proxy.store.results.page(batch, after, PAGE)  # a store that is away is a status, not a broken stream
    lines = _follow(proxy, batch, after, first) if follow else _pages(proxy, batch, after, first)
    return StreamingResponse(lines, media_type="application/x-ndjson")


async def _pages(proxy: ProxyState, batch: str, after: str, rows: list[Result] | None = None) -> AsyncIterator[bytes]:
    """Every result behind `after` that there is now; `rows`: the first page, if it has been read."""
    if rows is None:
        rows = await proxy.store.results.page(batch, after, PAGE)
    while rows:
        yield b"".join(_line(cursor, answer) for cursor, answer in rows)
        rows = await proxy.store.results.page(batch, rows[-1].cursor, PAGE)


async def _follow(proxy: ProxyState, batch: str, after: str, first: list[Result]) -> AsyncIterator[bytes]:
    """Until the batch has ended and all its results are sent; ends with the batch's lifetime at the latest.

    A store that goes away breaks the stream; the reader reads on behind its last cursor.
    """
    if first:
        yield b"".join(_line(cursor, answer) for cursor, answer in first)
        after = first[-1].cursor
    async with proxy.waiters.following(batch) as news:
        while True:
            news.clear()
            stored = await proxy.store.batch(batch)  # before the results: what comes later wakes us again
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
