"""Engines that take more memory than their described device has are stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.gpu_manager.backends.protocol import Footprint
from services.gpu_manager.devices import GIB, GpuDevice
from services.gpu_manager.memory_excess import MemoryExcess
from shared.policy.model.chunks import Chunk
from shared.policy.serving.model import InstanceId
from tests.services.gpu_manager.test_serving import Memory, Node, WrittenBackend
from tests.shared.bus.soon import soon


class MeasuredBackend(WrittenBackend):
    """A written backend whose memory a test sets."""

    gb = 16.0
    unreadable = False

    async def footprint(self) -> Footprint:
        if self.unreadable:
            raise LookupError("a bug")
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
    assert "out of memory: a declares 16.0 GB, and uses 40.0 GB; GPU 0 has 24.0 GB, and 40.0 GB are in use" in why
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


EVENTS = ("device_not_measured", "engine_exceeds_memory", "engine_exceeds_memory")
"""Of two checks: the first device is logged once."""


class Unreadable(Memory):
    """The first of its devices cannot be measured, by a bug of ours."""

    def used_bytes(self, number: int) -> int | None:
        if number == 0:
            raise LookupError("a bug")
        return self.used


async def test_a_device_that_cannot_be_measured_stops_no_check_of_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The engine is on both devices, and exceeds the second one."""
    node = await resident(40.0)
    memory = Unreadable(tuple(GpuDevice(number, 24.0, "described", False) for number in range(2)))
    memory.used = 40 * GIB
    excess, chunk = MemoryExcess(memory, node.serving), Chunk(0, 2)
    node.serving._backends[InstanceId("a", chunk)] = node.backends["a"]
    for _ in range(2):
        await excess.check()
    logged = [line for line in capsys.readouterr().out.splitlines() if "[error" in line]
    assert [event in line for line, event in zip(logged, EVENTS, strict=True)] == [True] * 3
    await node.serving.stop(5.0)


async def test_an_engine_that_cannot_be_measured_is_left_until_it_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    node = await resident(40.0)
    backend = node.backends["a"]
    assert isinstance(backend, MeasuredBackend)
    backend.unreadable = True
    await MemoryExcess(node.memory, node.serving).check()
    assert "engine_not_measured" in capsys.readouterr().out
    assert node.state("a") == "resident"
    backend.unreadable = False
    await MemoryExcess(node.memory, node.serving).check()
    await stopped(node)
    await node.serving.stop(5.0)


async def test_an_action_during_which_its_engine_exceeds_the_device_is_refused_for_a_repeat() -> None:
    node = await resident(40.0)
    async with node.serving.using("i", node.machine.view()[0].instance, float("inf")) as use:
        await MemoryExcess(node.memory, node.serving).check()
        refusal = await use.refused
    assert ("out of memory" in refusal.reason, refusal.retry_in_s is None) == (True, False)
    await stopped(node)
    await node.serving.stop(5.0)
