"""Blocks of the client's leases: one block at a time, released whatever the exit meets."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.proxy.app import create_app
from services.proxy.settings import ProxySettings
from shared.kinds import formulation
from tests.services.proxy.in_process import serving
from treadle.client.answers import QuotaLease
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.blocking import Treadle
from treadle.client.errors import BadRequest, LeaseLost, TreadleError
from treadle.client.leases import MOST_AMOUNT, AsyncLease

LATE_S = 30
ONCE = r"write client\.quota\(\{'search': 1\.0\}\) for each block"


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[AsyncTreadle]:
    """The client of a proxy with a quota of five slots."""
    settings = ProxySettings.model_validate({"treadle": {"redis_url": redis_url}})
    async with serving(create_app(settings)) as url, AsyncTreadle(url) as client:
        await client.quotas.set("search", concurrency=5)
        yield client


async def until_nothing_is_held(client: AsyncTreadle) -> None:
    async with asyncio.timeout(LATE_S):
        while (await client.quotas.view("search")).held:  # noqa: ASYNC110  # polls the mesh
            await asyncio.sleep(0.02)


def renewals() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if "renewal" in task.get_name()]


async def test_tasks_cannot_share_a_lease_object(client: AsyncTreadle) -> None:
    lease = client.quota("search", ttl_s=60)
    entered: list[int] = []

    async def block(number: int) -> None:
        async with lease:
            entered.append(number)
            await asyncio.sleep(0.1)

    ends = await asyncio.gather(*[block(number) for number in range(5)], return_exceptions=True)
    assert entered == [0]
    assert [type(end) for end in ends] == [type(None)] + [RuntimeError] * 4
    assert renewals() == []
    await until_nothing_is_held(client)


async def test_a_nested_block_of_a_lease_object_says_what_to_write(client: AsyncTreadle) -> None:
    async with client.quota("search", ttl_s=60) as lease:
        with pytest.raises(RuntimeError, match=ONCE):
            async with lease:
                pass
        assert (await client.quotas.view("search")).held == 1.0, "the outer block has its lease"
    await until_nothing_is_held(client)
    assert renewals() == []


async def test_a_lease_object_serves_one_block_after_the_other(client: AsyncTreadle) -> None:
    lease = client.quota("search", wait_s=0.1, ttl_s=60)
    fences = []
    for _ in range(2):
        async with lease:
            fences.append(lease.fence)
    assert fences[0] < fences[1]
    await client.quotas.set("search", concurrency=0)
    for _ in range(2):
        with pytest.raises(TreadleError, match="search"):  # not granted, so it may be tried again
            await lease.acquire()
    await client.quotas.set("search", concurrency=5)
    async with lease:
        pass
    await until_nothing_is_held(client)


async def test_a_lease_object_that_was_lost_is_released_after_its_next_block(client: AsyncTreadle) -> None:
    lease = client.quota("search", ttl_s=60)

    async def lose() -> None:
        async with lease:
            lease._lose(LeaseLost("expired"))
            await asyncio.sleep(LATE_S)

    with pytest.raises(LeaseLost):
        await lose()
    async with lease:
        lease.check()
        fence = lease.fence
    assert fence
    async with asyncio.timeout(LATE_S):
        while (await client.quotas.view("search")).held > 1.0:  # noqa: ASYNC110  # polls the mesh
            await asyncio.sleep(0.02)


async def test_threads_cannot_share_a_lease_object(client: AsyncTreadle) -> None:
    def share() -> list[str]:
        errors: list[str] = []
        with Treadle(client.url) as blocking:
            lease = blocking.quota("search", ttl_s=60)

            def enter() -> None:
                try:
                    with lease:
                        raise AssertionError("entered")
                except RuntimeError as error:
                    errors.append(str(error))

            with lease:
                threads = [threading.Thread(target=enter) for _ in range(3)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            with lease:
                pass
        return errors

    errors = await asyncio.to_thread(share)
    assert [error.partition(": ")[2] for error in errors] == ["write client.quota({'search': 1.0}) for each block"] * 3
    await until_nothing_is_held(client)


HELD = QuotaLease(lease="a" * 24, fence=1, expires_in_s=1.0, expires_at=0.0)
"""A lease that the mesh does not know."""
OUTSIDE = "call settle inside the block"


async def test_a_settlement_outside_the_block_is_an_error(client: AsyncTreadle) -> None:
    lease = client.quota("search", ttl_s=60)
    with pytest.raises(RuntimeError, match=OUTSIDE):
        lease.settle({"search": 0})
    async with lease:
        lease.settle({"search": 1})
        lease.settle({"search": 0.5})
    with pytest.raises(RuntimeError, match=OUTSIDE):
        lease.settle({"search": 0})
    await until_nothing_is_held(client)


async def test_a_settlement_after_a_blocking_block_is_an_error(client: AsyncTreadle) -> None:
    def late() -> None:
        with Treadle(client.url) as blocking:
            with blocking.quota("search", ttl_s=60) as lease:
                lease.settle({"search": 1})
            with pytest.raises(RuntimeError, match=OUTSIDE):
                lease.settle({"search": 0})

    await asyncio.to_thread(late)
    await until_nothing_is_held(client)


@pytest.mark.parametrize("amount", [-1, -1e-9, math.nan, math.inf, -math.inf, 2e9, 10**400, True, "1", None])
async def test_an_amount_that_the_mesh_would_reject_is_rejected_at_once(amount: Any) -> None:
    assert formulation.MOST_AMOUNT == MOST_AMOUNT
    async with AsyncTreadle("http://127.0.0.1:1") as client:
        lease = client.quota({"search": 1, "tokens": 800})
        lease._lease = HELD
        with pytest.raises(ValueError, match="is no used amount of 'tokens'; write a number from 0 to 1e") as error:
            lease.settle({"search": 1, "tokens": amount})
        assert 'settle({"tokens": 1})' in str(error.value)
        assert lease._used == {}
        lease.settle({"search": 0, "tokens": MOST_AMOUNT})


class Broken(Exception):
    pass


async def block(lease: AsyncLease, error: Exception | None, **changed: Any) -> None:
    """Run a block that ends with `error`, and change fields of its lease before."""
    async with lease:
        vars(lease).update(changed)
        if error is not None:
            raise error


REJECTED = {"_used": {"search": -1.0}}
"""A settlement that the mesh rejects, as a newer one may reject what this client accepts."""


async def test_a_rejected_settlement_releases_the_lease(client: AsyncTreadle) -> None:
    with pytest.raises(BadRequest, match="at least 0"):
        await block(client.quota("search", ttl_s=600), None, **REJECTED)
    await until_nothing_is_held(client)
    with pytest.raises(Broken) as broken:
        await block(client.quota("search", ttl_s=600), Broken(), **REJECTED)
    assert "the lease could not be released: BadRequest: used" in broken.value.__notes__[0]
    await until_nothing_is_held(client)


async def test_a_lost_lease_does_not_hide_the_bodys_error(client: AsyncTreadle) -> None:
    with pytest.raises(LeaseLost):
        await block(client.quota("search", ttl_s=600), None, _lease=HELD)
    with pytest.raises(Broken) as broken:
        await block(client.quota("search", ttl_s=600), Broken(), _lease=HELD)
    assert "LeaseLost" in broken.value.__notes__[0]


@pytest.mark.parametrize("closed", [False, True])
async def test_an_exit_of_a_blocking_block_does_not_hide_the_bodys_error(client: AsyncTreadle, closed: bool) -> None:
    def broken() -> None:
        with Treadle(client.url) as blocking, blocking.quota("search", ttl_s=600) as lease:
            vars(lease._twin).update(REJECTED)
            if closed:
                blocking.close()
            raise Broken

    with pytest.raises(Broken) as error:
        await asyncio.to_thread(broken)
    assert ("RuntimeError" if closed else "BadRequest") in error.value.__notes__[0]
    if not closed:
        await until_nothing_is_held(client)
