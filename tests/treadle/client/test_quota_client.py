"""The client's quotas: what `set` accepts, for both clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.proxy.app import create_app
from services.proxy.settings import ProxySettings
from tests.services.proxy.in_process import serving
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.blocking import Treadle
from treadle.client.requests import QuotaRate

EXAMPLE = r"write rates=\[treadle\.QuotaRate\(limit=10, period_s=1\)\]"
WRONG = [
    ([{"limit": 10, "period_s": 1}], "a rate must be a treadle.QuotaRate, not {'limit': 10, 'period_s': 1}"),
    ([(10, 1)], r"not \(10, 1\)"),
    ([QuotaRate(limit=1.0), 10], "a rate must be a treadle.QuotaRate, not 10"),
    (QuotaRate(limit=10.0), r"rates must be a list of treadle.QuotaRate, not QuotaRate\("),
    ({"limit": 10}, "rates must be a list of treadle.QuotaRate, not {'limit': 10}"),
    ("10/s", "rates must be a list of treadle.QuotaRate, not '10/s'"),
    (None, "rates must be a list of treadle.QuotaRate, not None"),
]


@pytest.fixture
async def url(redis_url: str) -> AsyncIterator[str]:
    settings = ProxySettings.model_validate({"treadle": {"redis_url": redis_url}})
    async with serving(create_app(settings)) as url:
        yield url


@pytest.mark.parametrize(("rates", "words"), WRONG, ids=repr)
async def test_rates_of_another_type_are_an_error_that_says_what_to_pass(rates: Any, words: str) -> None:
    async with AsyncTreadle("http://127.0.0.1:1") as client:
        with pytest.raises(TypeError, match=f"{words}.*; {EXAMPLE}"):
            await client.quotas.set("search", rates=rates)


@pytest.mark.parametrize(("rates", "words"), WRONG, ids=repr)
def test_rates_of_another_type_are_an_error_of_the_blocking_client_too(rates: Any, words: str) -> None:
    with Treadle("http://127.0.0.1:1") as client, pytest.raises(TypeError, match=f"{words}.*; {EXAMPLE}"):
        client.quotas.set("search", rates=rates)


async def test_every_collection_of_rates_is_accepted(url: str) -> None:
    rates = [QuotaRate(limit=10.0, period_s=1.0), QuotaRate(limit=50.0)]
    given: list[Any] = [rates, tuple(rates), iter(rates)]

    def blocking() -> int:
        with Treadle(url) as client:
            return len(client.quotas.set("search", rates=rates).rates)

    async with AsyncTreadle(url) as client:
        for one in given:
            view = await client.quotas.set("search", rates=one)
            assert [rate.limit for rate in view.rates] == [10.0, 50.0]
    assert await asyncio.to_thread(blocking) == 2
