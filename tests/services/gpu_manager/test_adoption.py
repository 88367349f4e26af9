"""Engines of a former manager: one that fits is adopted, each other one is killed."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.gpu_manager.adoption import adopt_engines
from services.gpu_manager.backends.engine_folders import EngineFolder, EngineFolders
from services.gpu_manager.backends.engine_http import open_engines
from services.gpu_manager.backends.protocol import Backend
from services.gpu_manager.described_memory import DescribedMemory
from services.gpu_manager.devices import GpuDevice
from services.gpu_manager.engine_factory import EngineFactory
from services.gpu_manager.serving import Serving
from services.gpu_manager.specs import spec_of
from shared.model_services.entries import ServiceEntry, read_entries
from shared.policy.model.chunks import Chunk
from shared.policy.serving.model import InstanceId, NodeMemory
from shared.policy.serving.node_serving import NodeServing
from shared.runtime.clock import SYSTEM_CLOCK
from tests.services.gpu_manager.backends.engines import until
from treadle.lab.bench import judge_engine

FIRST, SECOND = InstanceId("judge", Chunk(0, 1)), InstanceId("judge", Chunk(1, 1))


def entry(**changes: Any) -> ServiceEntry:
    command = [sys.executable, judge_engine.__file__, "--port", "{port}"]
    fields = {"backend": "process", "model": "judge", "command": command, "memory_gb": {"awake": 1},
              "canary": {"prompt": "2+2=", "expect": "4"}}  # fmt: skip
    return read_entries(msgspec.json.encode({"judge": fields | changes}))["judge"]


class Node:
    """A manager's parts with so many GPUs, on the folder of its predecessor."""

    def __init__(self, http: Any, root: Path, gpus: int, entries: Mapping[str, ServiceEntry]) -> None:
        memory = DescribedMemory(tuple(GpuDevice(number, 8.0, "described", False) for number in range(gpus)))
        self.folders = EngineFolders(root)
        self.factory = EngineFactory(http, memory, self.folders)
        self.machine = NodeServing(NodeMemory((8.0,) * gpus))
        self.serving = Serving(self.machine, self.factory.backend, memory, SYSTEM_CLOCK)
        for name, one in entries.items():
            self.serving.set_service(name, one, spec_of(name, one))

    def states(self) -> dict[InstanceId, str]:
        return {one.instance: one.state for one in self.machine.view() if one.state != "cold"}


@asynccontextmanager
async def started(root: Path, *instances: InstanceId) -> AsyncIterator[tuple[Any, list[int]]]:
    """Engines of a former manager. Yields the HTTP client and their processes, in the order of their start."""
    async with open_engines() as http:
        former = Node(http, root, 2, {"judge": entry()})
        backends = [former.factory.backend(instance, entry()) for instance in instances]
        try:
            for backend in backends:
                await backend.prepare()
            yield http, [folder.pid for folder in reversed(former.folders.found())]
        finally:
            for backend in backends:
                await backend.stop()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_an_engine_that_fits_is_adopted_and_found_resident(tmp_path: Path) -> None:
    async with started(tmp_path, FIRST) as (http, (pid,)):
        node = Node(http, tmp_path, 1, {"judge": entry(concurrency=4)})
        await adopt_engines(node.factory, node.serving)
        await until(lambda: node.states() == {FIRST: "resident"})
        assert runs(pid)
        assert [folder.pid for folder in node.folders.found()] == [pid]
        await node.serving.stop(10.0)
        assert not runs(pid), "a stop of the manager stops what it has adopted"


@pytest.mark.parametrize(
    "entries",
    [{}, {"judge": entry(env={"SEED": "2"})}, {"judge": entry(model="other")}, {"another": entry()}],
    ids=["nothing is declared", "another environment", "another model", "another service"],
)
async def test_an_engine_that_would_not_be_started_so_today_is_killed(
    tmp_path: Path, entries: dict[str, ServiceEntry]
) -> None:
    async with started(tmp_path, FIRST) as (http, (pid,)):
        node = Node(http, tmp_path, 1, entries)
        await adopt_engines(node.factory, node.serving)
        assert not runs(pid)
        assert not node.folders.found()
        assert not node.states()


async def test_an_engine_on_a_gpu_that_the_node_no_longer_has_is_killed(tmp_path: Path) -> None:
    async with started(tmp_path, FIRST, SECOND) as (http, (first, second)):
        node = Node(http, tmp_path, 1, {"judge": entry()})
        await adopt_engines(node.factory, node.serving)
        assert (runs(first), runs(second)) == (True, False)
        await until(lambda: node.states() == {FIRST: "resident"})
        await node.serving.stop(10.0)


async def test_of_two_engines_on_one_chunk_the_newer_one_is_adopted(tmp_path: Path) -> None:
    async with started(tmp_path, FIRST, FIRST) as (http, (older, newer)):
        node = Node(http, tmp_path, 1, {"judge": entry()})
        await adopt_engines(node.factory, node.serving)
        assert (runs(older), runs(newer)) == (False, True)
        await until(lambda: node.states() == {FIRST: "resident"})
        await node.serving.stop(10.0)


async def test_an_engine_with_an_unconfirmed_change_is_killed(tmp_path: Path) -> None:
    async with started(tmp_path, FIRST) as (http, (pid,)):
        node = Node(http, tmp_path, 1, {"judge": entry()})
        (folder,) = node.folders.found()
        (folder.path / "step").write_text("evict")
        await adopt_engines(node.factory, node.serving)
        assert not runs(pid)
        assert not node.folders.found()


async def test_an_engine_whose_adoption_raises_an_unexpected_error_is_killed_and_the_others_are_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of one engine would end the manager at each of its starts (ADR 0093)."""

    def fails(self: EngineFactory, instance: InstanceId, entry: ServiceEntry, folder: EngineFolder) -> Backend | None:
        if instance == SECOND:
            raise LookupError("a bug")
        return adopt(self, instance, entry, folder)

    adopt = EngineFactory.adopt
    monkeypatch.setattr(EngineFactory, "adopt", fails)
    async with started(tmp_path, FIRST, SECOND) as (http, (first, second)):
        node = Node(http, tmp_path, 2, {"judge": entry()})
        await adopt_engines(node.factory, node.serving)
        assert (runs(first), runs(second)) == (True, False)
        await until(lambda: node.states() == {FIRST: "resident"})
        await node.serving.stop(10.0)
