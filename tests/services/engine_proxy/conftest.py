"""An engine proxy with a scripted engine behind it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.services.engine_proxy.scripted_engine import ProxyUnderTest, proxy_under_test


@pytest_asyncio.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[ProxyUnderTest]:
    async with proxy_under_test(tmp_path) as proxy:
        yield proxy
