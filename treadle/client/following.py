"""Results of a batch, read from one connection after another until the batch has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from treadle.client.answers import BatchView, Result
from treadle.client.calls import Calls
from treadle.client.errors import DeadlineMissed, Transient, Unavailable, error_of
from treadle.client.http import PASSING
from treadle.client.lines import LineReader
from treadle.client.patience import Tries


async def follow_results(calls: Calls, batch: str, after: str, quiet_s: float) -> AsyncGenerator[list[Result], None]:
    """Yield pages of results, each result once; see `AsyncTreadle.results`."""
    loop = asyncio.get_running_loop()
    tries = Tries(calls.patience, f"reading results from {calls.url}", calls.rng)
    heard_at, ended = loop.time(), False
    while True:
        opened = False
        try:
            async with aclosing(_pages(calls, batch, after, follow=not ended)) as pages:
                async for page in pages:
                    opened = True
                    tries.succeeded()
                    if page:
                        after, heard_at = page[-1].cursor, loop.time()
                        yield page
            if ended:
                return
            ended = await _has_ended(calls, batch)
            if not ended:
                await tries.failed(Unavailable("the stream of results ended before the batch"))
        except (*PASSING, Transient) as error:
            silent = isinstance(error, TimeoutError) and opened and not ended
            if not silent:  # a follower receives nothing while nothing is answered
                await tries.failed(error)
        if loop.time() - heard_at > quiet_s:
            raise DeadlineMissed(f"batch {batch} gave no answer for {quiet_s:g} s; read on after={after!r}")


async def _has_ended(calls: Calls, batch: str) -> bool:
    return (await calls.read(BatchView, "GET", f"/v1/batches/{batch}")).ended_at is not None


async def _pages(calls: Calls, batch: str, after: str, *, follow: bool) -> AsyncGenerator[list[Result], None]:
    """Results as one connection sends them; an empty page first, when the proxy has begun to answer."""
    query = {"follow": "true" if follow else "false", "after": after}
    async with calls.session.get(f"/v1/batches/{batch}/results", params=query) as reply:
        if reply.status != 200:
            raise error_of(reply.status, await reply.read(), str(reply.url), reply.headers.get("retry-after"))
        reader = LineReader()
        yield []
        async for data in reply.content.iter_any():
            yield reader.feed(data)
