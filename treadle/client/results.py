"""Results of a batch, read from one connection after another until the batch has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from treadle.client.answers import BatchView, Result
from treadle.client.errors import UNREADABLE, DeadlineMissed, Transient, Unavailable, Unexpected, error_of
from treadle.client.retry import CONNECTION_ERRORS, RetryState
from treadle.client.transport import Transport, quoted

_decoder = msgspec.json.Decoder(Result)


async def follow_results(
    transport: Transport, batch: str, after: str, answer_timeout_s: float
) -> AsyncGenerator[list[Result], None]:
    """Yield pages of results, each result once; see `AsyncTreadle.results`."""
    loop = asyncio.get_running_loop()
    retries = RetryState(transport.retry_policy, f"reading results from {transport.url}", transport.rng)
    received_at, ended = loop.time(), False
    while True:
        opened = False
        try:
            async with aclosing(_pages(transport, batch, after, follow=not ended)) as pages:
                async for page in pages:
                    opened = True
                    retries.reset()
                    if page:
                        after, received_at = page[-1].cursor, loop.time()
                        yield page
            if ended:
                return
            ended = await _has_ended(transport, batch)
            if not ended:
                await retries.backoff(Unavailable("the stream of results ended before the batch"))
        except (*CONNECTION_ERRORS, Transient) as error:
            silent = isinstance(error, TimeoutError) and opened and not ended
            if not silent:  # a follower receives nothing while nothing is answered
                await retries.backoff(error)
        if loop.time() - received_at > answer_timeout_s:
            raise DeadlineMissed(f"batch {batch} gave no answer for {answer_timeout_s:g} s; read on after={after!r}")


async def _has_ended(transport: Transport, batch: str) -> bool:
    return (await transport.call(BatchView, "GET", f"/v1/batches/{quoted(batch)}")).ended_at is not None


async def _pages(transport: Transport, batch: str, after: str, *, follow: bool) -> AsyncGenerator[list[Result], None]:
    """Results as one connection sends them. The first page is empty: the proxy has begun to answer."""
    path, query = f"/v1/batches/{quoted(batch)}/results", {"follow": "true" if follow else "false", "after": after}
    with transport.http_errors(path):
        async with transport.request("GET", path, query) as reply:
            if reply.status != 200:
                raise error_of(reply.status, await reply.read(), str(reply.url), reply.headers.get("retry-after"))
            decoder = ResultDecoder()
            yield []
            async for data in reply.content.iter_any():
                yield decoder.feed(data)


class ResultDecoder:
    """Decoder of NDJSON from a connection that may break anywhere: a line is complete with its line feed."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> list[Result]:
        """Return the results that are complete now.

        Raises:
            Unexpected: a line is no result.
        """
        if b"\n" not in data:
            self._tail += data
            return []
        *lines, self._tail = (self._tail + data).split(b"\n")
        try:
            return [_decoder.decode(line) for line in lines if line]
        except UNREADABLE as error:
            raise Unexpected(f"the stream of results has a line that is no result ({error})") from error
