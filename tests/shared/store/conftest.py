from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shared.store.database import Sessions, connect


@pytest.fixture
async def sessions(database_url: str) -> AsyncIterator[Sessions]:
    async with connect(database_url, name="test") as sessions:
        yield sessions
