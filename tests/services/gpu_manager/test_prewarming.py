"""Restores before the first request of a batch, with written engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.gpu_manager.backends.protocol import EngineError
from services.gpu_manager.prewarming import FRESH_S, Prewarming
from shared.messages.targets import ResidencyWanted
from shared.runtime.clock import SYSTEM_CLOCK
from tests.services.gpu_manager.test_serving import Node
from tests.shared.bus.soon import soon

POOL = "gpus@default"


class Wisher:
    """One GPU, of which the node owns as many as a test says."""

    def __init__(self) -> None:
        self.node = Node()
        self.usable = {0}
        self.owned = 1
        self.prewarming = Prewarming(
            self.node.serving, POOL, lambda: self.usable, lambda: self.owned, 0.9, SYSTEM_CLOCK
        )

    def wish(self, service: str, *, degree: int = 1, pool: str = POOL, age_s: float = 0.0) -> None:
        message = ResidencyWanted(pool=pool, service=service, degree=degree, batch="b")
        self.prewarming.receive(message, SYSTEM_CLOCK.unix() - age_s)

    async def is_resident(self, service: str) -> None:
        async def there() -> bool:
            return self.node.state(service) == "resident"

        await soon(there)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.prewarming.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_a_wanted_service_is_restored_and_nobody_uses_it() -> None:
    wisher = Wisher()
    async with wisher.running():
        wisher.wish("a")
        await wisher.is_resident("a")
        assert wisher.node.backends["a"].steps["prepare"] == 1
        async with wisher.node.using("h", "a"):
            assert wisher.node.backends["a"].steps["prepare"] == 1


@pytest.mark.parametrize("missing", ["a share", "a usable GPU"])
async def test_it_waits_for_a_gpu_that_the_node_owns_and_may_use(missing: str) -> None:
    wisher = Wisher()
    if missing == "a share":
        wisher.owned = 0
    else:
        wisher.usable = set()
    async with wisher.running():
        wisher.wish("a")
        await asyncio.sleep(0.5)
        assert wisher.node.state("a") == ""
        wisher.owned, wisher.usable = 1, {0}
        await wisher.is_resident("a")


async def test_an_action_goes_first_and_a_wish_that_was_met_is_forgotten() -> None:
    wisher = Wisher()
    async with wisher.running():
        async with wisher.node.using("h", "b"):
            wisher.wish("a")
            await asyncio.sleep(0.5)
            assert wisher.node.awake == {"b"}
        await wisher.is_resident("a")
        async with wisher.node.using("i", "b"):
            pass
        await asyncio.sleep(0.5)
        assert wisher.node.awake == {"b"}, "an action has evicted it, and nobody wishes it again"
        wisher.wish("a")
        await wisher.is_resident("a")


async def test_repeated_wishes_for_two_services_on_one_gpu_restore_one_of_them_and_evict_nothing() -> None:
    wisher = Wisher()
    async with wisher.running():
        for _ in range(4):
            wisher.wish("a")
            wisher.wish("b")
            await asyncio.sleep(0.5)
        assert wisher.node.awake == {"a"}
        assert wisher.node.backends["a"].steps["prepare"] == 1
        assert not wisher.node.backends["b"].steps


async def test_a_met_wish_protects_its_engine_until_its_time_is_over() -> None:
    wisher = Wisher()
    async with wisher.running():
        wisher.wish("a", age_s=FRESH_S - 2.0)
        await wisher.is_resident("a")
        wisher.wish("b")
        await asyncio.sleep(0.5)
        assert wisher.node.awake == {"a"}
        await wisher.is_resident("b")


@pytest.mark.parametrize(
    "fields", [{"pool": "gpus@other"}, {"degree": 2}, {"age_s": FRESH_S}], ids=["pool", "degree", "age"]
)
async def test_a_wish_that_does_not_count_restores_nothing(fields: dict[str, object]) -> None:
    wisher = Wisher()
    async with wisher.running():
        wisher.wish("a", **fields)  # type: ignore[arg-type]
        wisher.wish("nobody")
        await asyncio.sleep(0.5)
        assert (wisher.node.state("a"), wisher.node.awake) == ("", set())


async def test_a_restore_that_fails_ends_and_the_node_goes_on() -> None:
    wisher = Wisher()
    wisher.node.backends["a"].fails["prepare"] = EngineError("no such model")
    async with wisher.running():
        wisher.wish("a")

        async def failed() -> bool:
            return wisher.node.state("a") == "quarantined"

        await soon(failed)
        wisher.wish("b")
        await wisher.is_resident("b")
