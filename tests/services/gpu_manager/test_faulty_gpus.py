"""GPUs that NVML reports as lost: their engines leave, nothing is granted on them, and they come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.gpu_manager.devices import GpuDevice
from services.gpu_manager.engine_use import NotServed
from services.gpu_manager.faulty_gpus import FaultyGpus
from shared.runtime.clock import SYSTEM_CLOCK
from tests.services.gpu_manager.test_ownership import Owner, is_in
from tests.services.gpu_manager.test_serving import Memory, Node
from tests.shared.bus.soon import soon

LOST = "NVML: GPU is lost"


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node()
    async with asyncio.timeout(20):
        yield node
        await node.serving.stop(5.0)


async def test_the_engines_of_a_lost_gpu_leave_and_its_holders_are_postponed(node: Node) -> None:
    reports: list[dict[int, str]] = []
    faulty = FaultyGpus(node.memory, node.serving)
    faulty.changed = lambda: reports.append(dict(faulty.reasons))
    async with node.using("h1", "a"):
        pass
    faulty.apply({0: LOST})
    faulty.apply({0: LOST})
    with pytest.raises(NotServed) as refused:
        async with node.using("h2", "a"):
            pass
    assert "GPU is lost" in str(refused.value.reason)
    assert refused.value.retry_in_s is not None, "another node may have the service"

    async def gone() -> bool:
        return not node.awake

    await soon(gone)
    faulty.apply({})
    async with node.using("h3", "a"):
        assert node.awake == {"a"}
    assert reports == [{0: LOST}, {}], "one report for each change"


async def test_a_gpu_that_is_given_away_stays_fenced_when_its_fault_ends(node: Node) -> None:
    faulty = FaultyGpus(node.memory, node.serving, is_fenced=lambda gpu: gpu == 0)
    faulty.apply({0: LOST})
    faulty.apply({})
    with pytest.raises(NotServed):
        async with node.using("h1", "a"):
            pass


async def test_a_lost_gpu_that_is_taken_back_stays_fenced(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.records.write([0], "released", 0.0)
    owner.usage.own(1, SYSTEM_CLOCK.monotonic())
    async with owner.running() as owned:
        owned.faulty = lambda: (0,)
        await is_in(owned, "held")
        with pytest.raises(NotServed):
            async with owner.node.using("h1", "a"):
                pass


async def test_the_watch_reads_the_faults_of_all_gpus(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    device = node.memory.devices[0]
    node.memory.devices = (device, replace(device, number=1))
    monkeypatch.setattr(type(node.memory), "fault", lambda _, number: LOST if number == 1 else "")
    faulty = FaultyGpus(node.memory, node.serving)
    watching = asyncio.create_task(faulty.run(0.01))

    async def found() -> bool:
        return faulty.reasons == {1: LOST}

    await soon(found)
    watching.cancel()
    await asyncio.wait([watching])


class Unreadable(Memory):
    """The first of its GPUs cannot be read, by a bug of ours."""

    def fault(self, number: int) -> str:
        if number == 0:
            raise LookupError("a bug")
        return LOST


async def test_a_gpu_that_cannot_be_read_stays_as_it_is_and_the_others_are_checked(node: Node) -> None:
    devices = Unreadable(tuple(GpuDevice(number, 24.0, "described", False) for number in range(2)))
    faulty = FaultyGpus(devices, node.serving)
    checking = asyncio.create_task(faulty.run(0.001))

    async def found() -> bool:
        return faulty.reasons == {1: LOST}

    await soon(found)
    await asyncio.sleep(0.05)
    assert not checking.done()
    checking.cancel()
