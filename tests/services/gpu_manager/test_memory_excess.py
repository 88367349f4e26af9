"""Engines that take more memory than their described device has are stopped."""

from __future__ import annotations

from dataclasses import replace

from services.gpu_manager.backends.protocol import Footprint
from services.gpu_manager.devices import GIB
from services.gpu_manager.memory_excess import MemoryExcess
from tests.services.gpu_manager.test_serving import Node, WrittenBackend
from tests.shared.bus.soon import soon


class MeasuredBackend(WrittenBackend):
    """A written backend whose memory a test sets."""

    gb = 16.0

    async def footprint(self) -> Footprint:
        return Footprint(round(self.gb * GIB), None)


async def resident(gb: float) -> Node:
    """Return a node of 24 GB where `a`, declared with 16 GB, has so many."""
    node = Node()
    backend = MeasuredBackend("a", node.awake)
    backend.gb = gb
    node.backends["a"] = backend
    async with node.using("h", "a"):
        pass
    node.memory.used = round(gb * GIB)
    return node


async def stopped(node: Node) -> None:
    async def nothing_runs() -> bool:
        return not node.awake

    await soon(nothing_runs)


async def test_an_engine_that_exceeds_its_device_is_stopped_with_the_reason() -> None:
    node = await resident(40.0)
    await MemoryExcess(node.memory, node.serving).check()
    await stopped(node)
    why = node.machine.view()[0].why
    assert "out of memory: GPU 0 has 24.0 GB, 40.0 GB are in use, 40.0 GB of them by a, which has 16.0 GB" in why
    await node.serving.stop(5.0)


async def test_an_engine_that_exceeds_its_declaration_and_not_its_device_is_left() -> None:
    node = await resident(20.0)
    await MemoryExcess(node.memory, node.serving).check()
    assert node.state("a") == "resident"
    await node.serving.stop(5.0)


async def test_an_engine_within_its_declaration_is_left_whatever_else_uses_the_device() -> None:
    node = await resident(16.0)
    node.memory.used = 40 * GIB
    await MemoryExcess(node.memory, node.serving).check()
    assert node.state("a") == "resident"
    await node.serving.stop(5.0)


async def test_a_gpu_that_nvml_measures_is_left() -> None:
    node = await resident(40.0)
    node.memory.devices = tuple(replace(one, measured=True) for one in node.memory.devices)
    await MemoryExcess(node.memory, node.serving).check()
    assert node.state("a") == "resident"
    await node.serving.stop(5.0)


async def test_an_action_during_which_its_engine_exceeds_the_device_is_refused_for_a_repeat() -> None:
    node = await resident(40.0)
    async with node.serving.using("i", node.machine.view()[0].instance, float("inf")) as use:
        await MemoryExcess(node.memory, node.serving).check()
        refusal = await use.refused
    assert ("out of memory" in refusal.reason, refusal.retry_in_s is None) == (True, False)
    await stopped(node)
    await node.serving.stop(5.0)
