"""Blocks of the client's leases: one block at a time, released whatever the exit meets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from services.proxy.app import create_app
from services.proxy.settings import ProxySettings
from tests.services.proxy.in_process import serving
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.blocking import Treadle
from treadle.client.errors import LeaseLost, TreadleError

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
