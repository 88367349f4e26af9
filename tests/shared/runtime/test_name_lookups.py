"""Lookups of names: slow ones of one owner do not stop the others, and each wait ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextvars import copy_context

import pytest

from shared.runtime import http_addresses
from shared.runtime.http_addresses import LOOKUPS_EACH, SystemResolver, owner


class NameServer:
    """Answers names that begin with `slow` after `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked: list[str] = []
        self.arrived = threading.Semaphore(0)

    def look_up(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        self.arrived.release()
        if host.startswith("slow"):
            assert self.go.wait(20)
        return [f"{host} has this"]


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    server = NameServer()
    yield server
    server.go.set()


def looked_up(resolver: SystemResolver, who: str, host: str) -> asyncio.Task[Sequence[str]]:
    context = copy_context()
    context.run(owner.set, who)

    async def look_up() -> Sequence[str]:
        return await resolver(host)

    return asyncio.get_running_loop().create_task(look_up(), context=context)


async def test_slow_names_of_one_owner_do_not_stop_another(server: NameServer) -> None:
    resolver = SystemResolver(server.look_up)
    slow = [looked_up(resolver, "ada", f"slow{number}") for number in range(40)]
    assert await asyncio.wait_for(looked_up(resolver, "bob", "fast"), 10) == ["fast has this"]
    assert len(server.asked) == LOOKUPS_EACH + 1 == 5
    server.go.set()
    assert await asyncio.gather(*slow) == [[f"slow{number} has this"] for number in range(40)]
    await asyncio.sleep(0)
    assert not resolver._turns, "nothing is kept of an owner without lookups"
    resolver.close()


async def test_a_lookup_waits_for_its_turn_up_to_a_limit(server: NameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_addresses, "TURN_S", 0.05)
    resolver = SystemResolver(server.look_up)
    slow = [looked_up(resolver, "ada", f"slow{number}") for number in range(5)]
    with pytest.raises(OSError, match="earlier lookups of names are slow"):
        await slow[4]
    assert len(server.asked) == 4
    server.go.set()
    await asyncio.gather(*slow[:4])
    resolver.close()


async def test_a_caller_that_has_gone_leaves_the_turn_to_its_thread(server: NameServer) -> None:
    resolver = SystemResolver(server.look_up)
    slow = [looked_up(resolver, "ada", f"slow{number}") for number in range(4)]
    for _ in slow:
        assert await asyncio.to_thread(server.arrived.acquire, timeout=10)
    for task in slow:
        task.cancel()
    await asyncio.wait(slow)
    next_one = looked_up(resolver, "ada", "fast")
    await asyncio.sleep(0.05)
    assert "fast" not in server.asked, "four threads are still at work"
    server.go.set()
    assert await asyncio.wait_for(next_one, 10) == ["fast has this"]
    resolver.close()
