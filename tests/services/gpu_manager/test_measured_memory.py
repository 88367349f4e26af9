"""Engines that use more memory than they declare, and the engines that find too little memory because of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf

import msgspec
import pytest

from services.gpu_manager.backends.protocol import Capabilities, Footprint, Level
from services.gpu_manager.described_memory import DescribedMemory
from services.gpu_manager.devices import GIB, GpuDevice
from services.gpu_manager.engine_use import NotServed
from services.gpu_manager.memory_excess import MemoryExcess
from services.gpu_manager.serving import Serving
from services.gpu_manager.specs import spec_of
from shared.model_services.entries import ServiceEntry, read_entries
from shared.policy.model.chunks import Chunk
from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import InstanceId, NodeMemory
from shared.policy.serving.node_serving import NodeServing
from shared.runtime.clock import SYSTEM_CLOCK
from tests.services.gpu_manager.backends.engines import until
from tests.services.gpu_manager.test_serving import ENTRY, WrittenBackend

DECLARED_GB = {"small": 4, "hog": 4, "large": 14}
"""Together they fit: the GPU has 24 GB."""

EVICT_S: dict[Level, float] = {"cold": 60.0, "asleep1": 0.0, "asleep2": 60.0}
"""Engines sleep where they can."""


class MeasuredBackend(WrittenBackend):
    """A written backend whose memory counts while it is awake. Others may be awake beside it."""

    gb = 0.0
    unreadable = False

    async def prepare(self) -> None:
        await self._step("prepare")
        self.awake.add(self.name)

    async def footprint(self) -> Footprint:
        if self.unreadable:
            raise LookupError("a bug")
        return Footprint(round(self.gb * GIB) if self.name in self.awake else 0, None)


class Memory(DescribedMemory):
    """A device on which the awake engines, and a stranger, have memory."""

    engines: dict[str, MeasuredBackend]
    stranger_gb = 0.0

    def used_bytes(self, number: int) -> int | None:
        del number
        awake_gb = sum(one.gb for one in self.engines.values() if one.name in one.awake)
        return round((awake_gb + self.stranger_gb) * GIB)


class Node:
    """One GPU of 24 GB, and three services that fit there by their declarations."""

    def __init__(self, **used_gb: float) -> None:
        self.awake: set[str] = set()
        self.engines = {name: MeasuredBackend(name, self.awake) for name in DECLARED_GB}
        self.memory = Memory((GpuDevice(0, 24.0, "described", False),))
        self.memory.engines = self.engines
        self.machine = NodeServing(
            NodeMemory((24.0,)), ServingConfig(max_wait_s=1.0, first_probe_s=60.0, evict_s=EVICT_S)
        )
        self.serving = Serving(self.machine, self._backend, self.memory, SYSTEM_CLOCK)
        for name, declared_gb in DECLARED_GB.items():
            self.engines[name].gb = used_gb.get(name, declared_gb)
            fields = ENTRY | {"memory_gb": {"awake": declared_gb}}
            entry = read_entries(msgspec.json.encode({name: fields}))[name]
            self.serving.set_service(name, entry, spec_of(name, entry))

    def _backend(self, instance: InstanceId, _: ServiceEntry) -> MeasuredBackend:
        return self.engines[instance.service]

    async def use(self, *names: str) -> None:
        for name in names:
            deadline = SYSTEM_CLOCK.monotonic() + 5.0
            async with self.serving.using(f"holder of {name}", InstanceId(name, Chunk(0, 1)), deadline) as use:
                use.ok = True

    def shown(self, name: str) -> tuple[str, str]:
        return next((view.state, view.why) for view in self.machine.view() if view.instance.service == name)


@asynccontextmanager
async def running(**used_gb: float) -> AsyncIterator[Node]:
    node = Node(**used_gb)
    async with asyncio.timeout(20):
        yield node
        await node.serving.stop(5.0)
    assert not node.serving._failed.is_set()


async def test_the_engine_beyond_its_declaration_is_stopped_and_not_the_least_recently_used_one() -> None:
    async with running(hog=12.0) as node:
        await node.use("small", "hog", "large")
        assert node.awake == {"small", "large"}
        reason = "its engine died: out of memory: hog declares 4.0 GB, and uses 12.0 GB; GPU 0 has 24.0 GB, and large "
        assert node.shown("hog") == ("cold", reason + "needs 14.0 GB")
        assert node.engines["large"].steps["prepare"] == 1, "it was not started into memory in use"


class Sleeper(MeasuredBackend):
    """A written backend that keeps all of its memory as it sleeps, like a process on a described device."""

    flags = Capabilities(("asleep1", "cold"), False, False, False, False)

    async def evict(self, level: Level) -> None:
        await self._step(f"evict {level}")

    async def restore(self) -> None:
        await self._step("restore")


async def test_a_sleeping_engine_beyond_what_it_declares_asleep_is_stopped() -> None:
    async with running() as node:
        node.engines["hog"] = Sleeper("hog", node.awake)
        node.engines["hog"].gb = 12.0
        fields = ENTRY | {"backend": "vllm", "memory_gb": {"awake": 12, "asleep": 1}}
        entry = read_entries(msgspec.json.encode({"hog": fields}))["hog"]
        node.serving.set_service("hog", entry, spec_of("hog", entry))
        await node.use("hog", "large")
        assert node.awake == {"large"}
        assert node.engines["hog"].steps == {"prepare": 1, "canary": 1, "evict asleep1": 1, "stop": 1}
        assert "out of memory: hog declares 1.0 GB asleep, and uses 12.0 GB" in node.shown("hog")[1]


async def test_of_two_engines_beyond_their_declarations_the_one_with_more_is_stopped_first() -> None:
    async with running(hog=12.0, small=5.0) as node:
        await node.use("small", "hog", "large")
        assert node.awake == {"small", "large"}
    async with running(hog=8.0, small=9.0) as node:
        await node.use("hog", "small", "large")
        assert node.awake == {"hog", "large"}
        assert "small declares 4.0 GB, and uses 9.0 GB" in node.shown("small")[1]


async def test_memory_that_no_engine_explains_evicts_the_least_recently_used_one_as_before() -> None:
    async with running(hog=5.0) as node:
        await node.use("small", "hog")
        node.memory.stranger_gb = 12.0
        with pytest.raises(NotServed, match="large needs 14"):
            await node.use("large")
        assert node.awake == {"hog"}
        await until(lambda: node.shown("large")[0] == "quarantined")


async def test_an_engine_that_cannot_be_measured_is_not_stopped_and_ends_nothing() -> None:
    async with running(hog=12.0) as node:
        await node.use("small", "hog")
        node.engines["hog"].unreadable = True
        with pytest.raises(NotServed, match="large needs 14"):
            await node.use("large")
        await node.use("small")
        assert node.awake == {"small", "hog"}


async def test_an_engine_that_is_stopped_for_its_memory_again_and_again_is_quarantined_and_the_other_stays() -> None:
    async with running(hog=12.0) as node:
        await node.use("large")
        excess = MemoryExcess(node.memory, node.serving)
        instance = InstanceId("hog", Chunk(0, 1))
        for _ in range(3):
            async with node.serving.using("holder of hog", instance, inf) as use:
                await excess.check()
                assert "hog declares 4.0 GB, and uses 12.0 GB" in (await use.refused).reason
            await until(lambda: node.awake == {"large"})
        assert node.shown("hog")[0] == "quarantined"
        assert "hog declares 4.0 GB, and uses 12.0 GB" in node.shown("hog")[1]
        await node.use("large")
        assert node.engines["large"].steps == {"prepare": 1, "canary": 1}
