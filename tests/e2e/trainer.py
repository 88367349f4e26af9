"""A trainer as documented: request ids, retries of temporary errors, results by cursor."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.e2e.samples import Sample

BROKEN = (aiohttp.ClientError, OSError, TimeoutError)
"""Errors of a connection to a dying service."""
PASSING = (502, 503, 504)
PAUSE_S = 0.1
LINES = 100
"""Requests of one bulk call."""

Json = dict[str, Any]


class Trainer:
    """Client of one proxy; every call ends within its timeout."""

    def __init__(self, session: aiohttp.ClientSession, *, timeout_s: float) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self.outages = 0
        """Broken calls and streams that were repeated."""

    async def call(self, method: str, path: str, **request: Any) -> tuple[int, Any]:
        """(status, JSON) of an idempotent call, repeated while the proxy is away or answers with Retry-After."""
        async with asyncio.timeout(self._timeout_s):
            while True:
                try:
                    async with self._session.request(method, path, **request) as response:
                        if response.status not in PASSING:
                            text = await response.text()
                            return response.status, json.loads(text) if text else None
                except BROKEN:
                    self.outages += 1
                await asyncio.sleep(PAUSE_S)

    async def declare(self, task: str, body: Json) -> None:
        status, view = await self.call("PUT", f"/v1/tasks/{task}", json=body)
        assert status == 200, view

    async def open(self, task: str, key: str, size: int | None = None) -> str:
        """The batch of this key, opened now or before (the reply to the first call may have been lost)."""
        status, view = await self.call("POST", f"/v1/tasks/{task}/batches", json={"key": key, "size": size})
        assert status in (200, 201), view
        return str(view["id"])

    async def view(self, batch: str) -> Json:
        status, view = await self.call("GET", f"/v1/batches/{batch}")
        assert status == 200, view
        return dict(view)

    async def send(self, batch: str, samples: Sequence[Sample]) -> int:
        """Bulk calls until every sample is in the journal; how many it had accepted before."""
        repeated = 0
        for start in range(0, len(samples), LINES):
            left = [sample.line() for sample in samples[start : start + LINES]]
            while left:
                path = f"/v1/rewards/bulk?batch={batch}"
                status, receipt = await self.call("POST", path, data=b"\n".join(left))
                assert status == 200, receipt
                repeated += receipt["repeated"]
                refused = receipt["rejected"]
                assert all(each["problem"]["status"] in PASSING for each in refused), refused
                left = [left[each["line"] - 1] for each in refused]
        return repeated

    async def follow(self, batch: str, on_result: Callable[[Json], None] | None = None) -> list[Json]:
        """Every result up to the batch's end, read on after the last cursor whenever the stream breaks."""
        answers: list[Json] = []
        cursor = ""
        async with asyncio.timeout(self._timeout_s):
            while True:
                try:
                    async for answer in self._lines(batch, cursor):
                        assert _order(answer["cursor"]) > _order(cursor), f"{answer['cursor']} after {cursor}"
                        cursor = answer["cursor"]
                        answers.append(answer)
                        if on_result is not None:
                            on_result(answer)
                except BROKEN:
                    self.outages += 1
                    await asyncio.sleep(PAUSE_S)
                else:
                    return answers

    async def _lines(self, batch: str, after: str) -> AsyncIterator[Json]:
        query = {"follow": "true", "after": after}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        async with self._session.get(f"/v1/batches/{batch}/results", params=query, timeout=timeout) as response:
            if response.status in PASSING:
                raise aiohttp.ClientPayloadError(f"{response.status}: come back later")
            assert response.status == 200, await response.text()
            async for line in response.content:
                yield json.loads(line)


def _order(cursor: str) -> tuple[int, int]:
    ms, _, seq = (cursor or "0-0").partition("-")
    return int(ms), int(seq)


@asynccontextmanager
async def trainer_at(url: str, *, tenant: str = "default", timeout_s: float = 120.0) -> AsyncIterator[Trainer]:
    """A trainer of that tenant, speaking to the proxy at `url`."""
    timeout = aiohttp.ClientTimeout(total=60, sock_connect=5)
    headers = {"Treadle-Tenant": tenant}
    async with aiohttp.ClientSession(url, timeout=timeout, headers=headers) as session:
        yield Trainer(session, timeout_s=timeout_s)
