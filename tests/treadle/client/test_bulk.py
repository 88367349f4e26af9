"""Bulk calls that a full mesh accepts in part, and batches with rejected requests."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from shared.runtime import errors as served
from tests.treadle.client.test_rest_client import FakeProxy, problem, requests, serving
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.errors import Conflict, Overloaded
from treadle.client.requests import RewardRequest
from treadle.client.retry import RetryPolicy

ONE_FAILURE = RetryPolicy(give_up_after_s=0.06, first_backoff_s=0.05, max_backoff_s=0.5)
"""Two failures without a success between them take longer than it allows."""
FULL = served.Overloaded(what="full", retry_after_s=0.0).problem()


class SealingProxy(FakeProxy):
    """A proxy that also opens and seals the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.sealed: list[str] = []
        """Batches in the order of the calls that sealed them."""

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_post("/v1/tasks/{task}/batches", self.batch)
        app.router.add_post("/v1/batches/{batch}/seal", self.seal)
        return app

    async def seal(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["batch"] == "cancelled":
            return problem(served.Conflict(what="the batch is cancelled"))
        self.sealed.append(request.match_info["batch"])
        return await self.batch(request)


def rejecting(count: int, accepted: int) -> dict[str, object]:
    """Receipt of a call with `count` lines: the first ones are accepted, the mesh is full for the others."""
    rejected = [{"line": line, "request_id": None, "problem": FULL} for line in range(accepted + 1, count + 1)]
    return {"accepted": accepted, "repeated": 0, "rejected": rejected}


async def test_each_accepted_line_resets_the_retries() -> None:
    proxy = FakeProxy()
    proxy.bulk_replies = [rejecting(count, 1) for count in range(6, 0, -1)]
    async with asyncio.timeout(30), serving(proxy.app()) as url, AsyncTreadle(url, retry_policy=ONE_FAILURE) as client:
        receipt = await client.submit("b", requests(6))
    assert (receipt.accepted, receipt.rejected) == (6, [])
    assert [len(bulk) for bulk in proxy.bulks] == [6, 5, 4, 3, 2, 1]


async def test_a_mesh_that_accepts_no_line_is_not_asked_for_ever() -> None:
    proxy = FakeProxy()
    proxy.bulk_replies = [rejecting(2, 0)] * 10_000
    async with asyncio.timeout(30), serving(proxy.app()) as url, AsyncTreadle(url, retry_policy=ONE_FAILURE) as client:
        with pytest.raises(Overloaded, match="full"):
            await client.submit("b", requests(2))
    assert len(proxy.bulks) <= 2


async def test_a_sealed_batch_is_returned_and_another_end_is_a_conflict() -> None:
    proxy = SealingProxy()
    async with serving(proxy.app()) as url, AsyncTreadle(url) as client:
        view = await client.seal("a batch/b")
        assert (view.id, proxy.sealed) == ("b", ["a batch/b"])
        with pytest.raises(Conflict, match="the batch is cancelled"):
            await client.seal("cancelled")


@pytest.mark.parametrize("rejected", [True, False])
async def test_a_batch_is_sealed_if_the_mesh_rejects_one_of_its_requests(rejected: bool) -> None:
    """Otherwise it would wait for a request that does not come."""
    proxy = SealingProxy()
    odd = served.BadRequest(what="odd").problem()
    if rejected:
        proxy.bulk_replies = [{"accepted": 8, "repeated": 0, "rejected": [{"line": 9, "problem": odd}]}]
    async with asyncio.timeout(30), serving(proxy.app()) as url, AsyncTreadle(url) as client:
        graded = await client.grade("t", [RewardRequest() for _ in range(9)])
    assert proxy.sealed == (["b"] if rejected else [])
    assert list(graded.rejected) == (["8"] if rejected else [])
