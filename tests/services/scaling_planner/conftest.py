"""A bus on which tests publish, with a node that has sent its hello."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shared.bus import functions
from shared.bus.connection import connect
from shared.messages.nodes import Hello
from shared.store import database
from tests.services.scaling_planner.mesh import Mesh


@pytest.fixture
async def mesh(redis_url: str, database_url: str) -> AsyncIterator[Mesh]:
    async with connect(redis_url, name="test") as redis, database.connect(database_url, name="test") as sessions:
        await functions.load(redis)
        mesh = Mesh(redis, sessions)
        await mesh.publish(Hello(node="n", incarnation="1", node_class="default", capacity={"cores": 8}, kinds=[]))
        yield mesh
