"""Ownership of GPUs on a node: fences, records and hooks, with written engines and real commands."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.gpu_manager.backends.protocol import Capabilities
from services.gpu_manager.engine_use import NotServed
from services.gpu_manager.ownership import OwnedGpus, check_no_release, hooks_of
from services.gpu_manager.ownership_records import OwnershipRecords
from services.gpu_manager.settings import GpuManagerSettings
from services.gpu_manager.specs import spec_of
from shared.model_services.entries import read_entries
from shared.node.resource_usage import ResourceUsage
from shared.policy.serving.ownership import GpuOwnership, Recorded
from shared.runtime.clock import SYSTEM_CLOCK
from shared.runtime.http import open_http
from shared.runtime.settings import WrongSetting
from tests.services.gpu_manager.test_serving import ENTRY, Node, SleepingBackend, WrittenBackend
from tests.shared.bus.soon import soon

HOOK = """
import json, os, pathlib, sys, time
folder, event = pathlib.Path(sys.argv[1]), os.environ["TREADLE_EVENT"]
recorded = {path.name: json.loads(path.read_text())["state"] for path in folder.glob("gpu-*.json")}
with (folder / "calls").open("a") as calls:
    print(json.dumps([event, json.load(sys.stdin)["gpus"], recorded]), file=calls)
mode = (folder / "mode").read_text() if (folder / "mode").exists() else ""
if mode == "hang":
    time.sleep(60)
sys.exit(mode or 0)
"""
"""A hook that writes its calls, and fails with the text of the file `mode`."""


def settings_of(**fields: Any) -> GpuManagerSettings:
    return GpuManagerSettings.model_validate(fields)


class Owner:
    """One described GPU with hooks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = OwnershipRecords(folder)
        self.node = Node()
        self.usage = ResourceUsage(1)

    @asynccontextmanager
    async def running(self, *, hook_s: float = 20.0, met_leader: bool = True) -> AsyncIterator[OwnedGpus]:
        command = json.dumps([sys.executable, "-c", HOOK, str(self.folder)])
        hooks = hooks_of(settings_of(on_release=command, on_acquire=command, hook_s=hook_s))
        assert hooks is not None
        machine = GpuOwnership(1, 0.0, 0.1, 0.1, recorded=self.records.read(1))
        async with open_http(lambda _: "") as http:
            owned = OwnedGpus(machine, self.records, self.node.serving, self.usage, hooks, http, "n", SYSTEM_CLOCK)
            owned.begin()
            task = asyncio.create_task(owned.run(lambda: met_leader, 0.0))
            try:
                yield owned
            finally:
                task.cancel()
                await asyncio.wait([task])

    def calls(self) -> list[tuple[str, list[int], Mapping[str, str]]]:
        path = self.folder / "calls"
        return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []

    def mode(self, text: str) -> None:
        (self.folder / "mode").write_text(text)


async def is_in(owned: OwnedGpus, state: str) -> None:
    async def there() -> bool:
        return owned.state_of(0)[0] == state

    await soon(there)


async def test_a_gpu_is_drained_released_and_acquired_again(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    async with owner.running() as owned:
        async with owner.node.using("h", "a"):
            owner.usage.own(0, SYSTEM_CLOCK.monotonic())
            await asyncio.sleep(0.5)
            assert (owned.state_of(0)[0], owner.calls()) == ("held", []), "an action uses it"
        await is_in(owned, "released")
        assert not owner.node.awake, "its engine was stopped before"
        assert owner.calls() == [("release", [0], {"gpu-0.json": "releasing"})]
        assert owner.records.read(1) == {0: "released"}
        with pytest.raises(NotServed, match="given away"):
            async with owner.node.using("i", "a"):
                pass
        owner.usage.own(1, SYSTEM_CLOCK.monotonic())
        await is_in(owned, "held")
        assert owner.calls()[1:] == [("acquire", [0], {"gpu-0.json": "acquiring"})]
        assert owner.records.read(1) == {0: "held"}
        assert owned.acquire_s > 0
        async with owner.node.using("j", "a"):
            assert owner.node.awake == {"a"}


class GivenBackend(SleepingBackend):
    """A written backend of an engine that runs already and can sleep."""

    flags = Capabilities(("asleep1",), False, False, False, False)


def declare_sleeper(owner: Owner, backend: WrittenBackend, **fields: Any) -> None:
    """Declare the service `s`, whose engine can sleep."""
    entry = read_entries(msgspec.json.encode({"s": {**ENTRY, "backend": "vllm", **fields}}))["s"]
    owner.node.backends["s"] = backend
    owner.node.serving.set_service("s", entry, spec_of("s", entry))


async def test_a_gpu_whose_given_engine_sleeps_is_released_although_the_engine_keeps_memory(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    given = {"command": None, "url": "http://127.0.0.1:1", "first_gpu": 0, "memory_gb": {"awake": 16, "asleep": 3}}
    backend = GivenBackend("s", owner.node.awake)
    declare_sleeper(owner, backend, **given)
    async with owner.running() as owned:
        async with owner.node.using("h", "s"):
            owner.usage.own(0, SYSTEM_CLOCK.monotonic())
            await asyncio.sleep(0.5)
            assert (owned.state_of(0)[0], owner.calls()) == ("held", []), "an action uses it"
        await is_in(owned, "released")
        assert not owner.node.awake, "it sleeps"
        assert backend.steps["evict"] == 1
        assert owner.node.machine.view()[0].device_gb == 3


async def test_an_engine_that_sleeps_without_device_memory_is_stopped_before_its_gpu_is_released(
    tmp_path: Path,
) -> None:
    owner = Owner(tmp_path)
    backend = SleepingBackend("s", owner.node.awake, slow_s={"stop": 1.0})
    declare_sleeper(owner, backend, memory_gb={"awake": 16, "asleep": 0, "host": 0})
    async with owner.running() as owned:
        async with owner.node.using("h", "s"):
            pass
        async with owner.node.using("i", "a"):
            assert owner.node.state("s") == "evicted"
        owner.node.serving.remove_service("a")
        await asyncio.sleep(0.1)
        assert [view.instance.service for view in owner.node.machine.view() if view.state != "cold"] == ["s"]
        owner.usage.own(0, SYSTEM_CLOCK.monotonic())
        await is_in(owned, "draining")
        await asyncio.sleep(0.5)
        assert owner.calls() == [], "its process has not ended"
        await is_in(owned, "released")
        assert backend.steps["stop"] == 1


@pytest.mark.parametrize("event", ["release", "acquire"])
async def test_a_failed_hook_is_called_again_and_its_gpu_is_not_used(tmp_path: Path, event: str) -> None:
    owner = Owner(tmp_path)
    if event == "acquire":
        owner.records.write([0], "released", 0.0)
    owner.usage.own(0 if event == "release" else 1, SYSTEM_CLOCK.monotonic())
    owner.mode("it is in use")
    async with owner.running() as owned:
        await is_in(owned, "unknown")
        assert owned.state_of(0)[1].endswith("it is in use")
        with pytest.raises(NotServed, match="given away"):
            async with owner.node.using("i", "a"):
                pass
        owner.mode("")
        await is_in(owned, "released" if event == "release" else "held")
        assert {call[0] for call in owner.calls()} == {event}


@pytest.mark.parametrize(("recorded", "calls"), [("held", 0), ("released", 0), ("releasing", 1), ("acquiring", 1)])
async def test_before_the_leader_was_met_only_interrupted_hooks_are_called(
    tmp_path: Path, recorded: Recorded, calls: int
) -> None:
    owner = Owner(tmp_path)
    owner.records.write([0], recorded, 0.0)
    owner.usage.own(0 if recorded in ("held", "acquiring") else 1, SYSTEM_CLOCK.monotonic())
    async with owner.running(met_leader=False):
        await asyncio.sleep(1.0)
    assert len(owner.calls()) == calls


async def test_a_hook_that_hangs_has_failed_after_its_limit(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.usage.own(0, SYSTEM_CLOCK.monotonic())
    owner.mode("hang")
    async with owner.running(hook_s=1.0) as owned:
        await is_in(owned, "unknown")
        assert "within 1 s" in owned.state_of(0)[1]


@pytest.mark.parametrize(("recorded", "event", "then"), [
    ("releasing", "release", "released"), ("acquiring", "acquire", "held"),
])  # fmt: skip
async def test_an_interrupted_hook_is_called_again_after_a_start(
    tmp_path: Path, recorded: Recorded, event: str, then: str
) -> None:
    owner = Owner(tmp_path)
    owner.usage.own(0 if event == "release" else 1, SYSTEM_CLOCK.monotonic())
    if event == "acquire":
        owner.records.write([0], "released", 0.0)
    owner.mode("hang")
    async with owner.running() as owned:

        async def called() -> bool:
            return bool(owner.calls())

        await soon(called)
    assert owner.records.read(1) == {0: recorded}
    owner.mode("")
    async with owner.running() as owned:
        await is_in(owned, then)
    assert [call[0] for call in owner.calls()] == [event, event]


async def test_a_hook_without_a_stored_record_is_not_called(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.usage.own(0, SYSTEM_CLOCK.monotonic())
    (tmp_path / "gpu-0.new").mkdir()
    async with owner.running() as owned:
        await is_in(owned, "unknown")
        assert "cannot be written" in owned.state_of(0)[1]
        assert owner.calls() == []
        (tmp_path / "gpu-0.new").rmdir()
        await is_in(owned, "released")


def test_without_hooks_a_gpu_that_is_away_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    records = OwnershipRecords(tmp_path)
    check_no_release(records, 2)
    records.write([0, 1], "held", 0.0)
    check_no_release(records, 2)
    records.write([1], "released", 0.0)
    with pytest.raises(WrongSetting, match=r"GPU 1 is released .* remove their gpu"):
        check_no_release(records, 2)


def test_a_record_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "gpu-1.json").write_text('{"state": "given", "at": 1}')
    assert OwnershipRecords(tmp_path).read(1) == {}
    with pytest.raises(WrongSetting, match=r"take GPU 1 back.* remove"):
        OwnershipRecords(tmp_path).read(2)


@pytest.mark.parametrize(("settings", "message"), [
    ({"on_release": "http://h/"}, "GPU_MANAGER_ON_ACQUIRE is empty"),
    ({"on_acquire": "http://h/"}, "GPU_MANAGER_ON_RELEASE is empty"),
    ({"on_release": "http://h/", "on_acquire": "acquire-gpus"}, "GPU_MANAGER_ON_ACQUIRE: write a URL"),
])  # fmt: skip
def test_hooks_that_cannot_be_used_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(WrongSetting, match=message):
        hooks_of(settings_of(**settings))


def test_no_hooks_are_allowed() -> None:
    assert hooks_of(settings_of()) is None
