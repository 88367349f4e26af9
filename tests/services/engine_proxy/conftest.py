"""An engine proxy with a scripted engine behind it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.services.engine_proxy.knocking import Doorstep, doorstep


@pytest_asyncio.fixture
async def step(tmp_path: Path) -> AsyncIterator[Doorstep]:
    async with doorstep(tmp_path) as step:
        yield step
