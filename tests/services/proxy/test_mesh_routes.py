"""What is read back from streams: entries of another version do not stand in the way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from services.proxy.routes.mesh import _newest
from shared.bus.connection import command, connect
from shared.messages.base import ENTRY
from shared.messages.nodes import NODES, Bye


async def test_an_entry_that_cannot_be_read_hides_no_other(redis_url: str) -> None:
    bye = Bye(node="n", incarnation="1")
    async with connect(redis_url, name="test") as redis:
        for payload in (NODES.encode(bye), b'["hello.v1","not what it was"]', b"\xff", NODES.encode(bye)):
            await command(redis, "XADD", NODES.name, "*", ENTRY, payload)
        world: Any = SimpleNamespace(redis=redis)
        assert [message for _, message in await _newest(world, NODES, 10)] == [bye, bye]
