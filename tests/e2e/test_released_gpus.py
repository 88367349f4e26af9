"""GPUs that nobody needs are given away by the operator's hook, and acquired before the next use, whatever fails."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.e2e.test_model_services import ENGINE, check, engines, entry, judge, shown
from tests.shared.bus.soon import soon
from treadle.client.answers import GpuView
from treadle.client.asynchronous import AsyncTreadle
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

WAIT_S = 120
HOOK = Path(__file__).with_name("gpu_hook.py")


@dataclass
class Host:
    """A stack with two described GPUs, and the folder of their hook."""

    stack: RunningStack
    folder: Path
    client: AsyncTreadle

    def calls(self) -> list[dict[str, Any]]:
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def mode(self, event: str, text: str) -> None:
        (self.folder / f"mode-{event}").write_text(text)

    async def gpus(self) -> list[GpuView]:
        return (await self.client.model_services.overview()).gpus

    async def until(self, *states: str, why: str = "") -> None:
        """Wait until the GPUs have these states, and one of them has this reason."""

        async def there() -> bool:
            gpus = await self.gpus()
            return sorted(one.ownership for one in gpus) == sorted(states) and any(why in one.why for one in gpus)

        await soon(there, within_s=WAIT_S)

    async def until_called(self, event: str, before: int) -> None:
        async def called() -> bool:
            return any(call["event"] == event for call in self.calls()[before:])

        await soon(called, within_s=WAIT_S)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[RunningStack, Path]]:
    with temporary_home() as root, TemporaryDirectory() as named:
        folder = Path(named)
        declared = folder / "services.json"
        declared.write_text(json.dumps({"small": entry("small"), "wide": entry("wide", degrees=[2])}))
        hook = json.dumps([sys.executable, str(HOOK), named, str(ENGINE)])
        environ = {
            "GPU_MANAGER_DEVICES": '[{"memory_gb": 24}, {"memory_gb": 24}]',
            "GPU_MANAGER_SERVICES": str(declared),
            "GPU_MANAGER_ON_RELEASE": hook,
            "GPU_MANAGER_ON_ACQUIRE": hook,
            "GPU_MANAGER_HOOK_S": "10",
            "GPU_MANAGER_RELEASE_AFTER_S": "1",
        }
        with running_stack(root, services="proxy,scaling_planner,gpu_manager", environ=environ) as stack:
            yield stack, folder


@pytest.fixture
async def host(running: tuple[RunningStack, Path]) -> AsyncIterator[Host]:
    """A host whose GPUs are all given away."""
    stack, folder = running
    async with AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        host = Host(stack, folder, client)
        host.mode("release", "")
        host.mode("acquire", "")
        await host.until("released", "released")
        yield host


async def restart(host: Host) -> None:
    killed = host.stack.kill("gpu_manager")
    await asyncio.to_thread(host.stack.await_healthy, "gpu_manager", other_than=killed)


async def test_idle_gpus_are_given_away_and_an_action_brings_one_back(host: Host) -> None:
    before = len(host.calls())
    check(await judge(host.client, "small", 4), "small", 4)
    first = host.calls()[before]
    assert (first["event"], len(first["gpus"]), first["engines"]) == ("acquire", 1, [])
    (engine,) = engines()
    assert sorted(one.ownership for one in await host.gpus()) == ["held", "released"]
    assert "released" in await shown(host.stack, "ls")
    await host.until("released", "released")
    assert not engine.is_running(), "it was drained"
    assert all(not call["engines"] for call in host.calls()), "no engine ran on a GPU that was given away"


async def test_an_action_of_degree_two_gets_both(host: Host) -> None:
    before = len(host.calls())
    check(await judge(host.client, "wide", 3, units={"gpus": 2}), "wide", 3)
    assert {gpu for call in host.calls()[before:] if call["event"] == "acquire" for gpu in call["gpus"]} == {0, 1}


async def test_released_gpus_stay_released_after_a_crash(host: Host) -> None:
    before = len(host.calls())
    await restart(host)
    await asyncio.sleep(3.0)
    await host.until("released", "released")
    assert host.calls()[before:] == [], "no hook was called"
    check(await judge(host.client, "small", 2), "small", 2)


async def test_held_gpus_stay_held_after_a_crash_and_their_engine_is_adopted(host: Host) -> None:
    check(await judge(host.client, "small", 2), "small", 2)
    before, (engine,) = len(host.calls()), engines()
    await restart(host)
    check(await judge(host.client, "small", 3), "small", 3)
    assert engines() == [engine]
    assert [call for call in host.calls()[before:] if call["event"] == "acquire"] == []


@pytest.mark.parametrize("event", ["acquire", "release"])
async def test_a_manager_killed_during_a_hook_calls_it_again(host: Host, event: str) -> None:
    before = len(host.calls())
    host.mode(event, "hang")
    answering = asyncio.create_task(judge(host.client, "small", 6))
    await host.until_called(event, before)
    killed = host.stack.kill("gpu_manager")
    host.mode(event, "")
    await asyncio.to_thread(host.stack.await_healthy, "gpu_manager", other_than=killed)
    check(await answering, "small", 6)
    await host.until("released", "released")
    calls = [call for call in host.calls()[before:] if call["event"] == event]
    assert len(calls) == 2
    assert calls[0]["gpus"] == calls[1]["gpus"]
    assert all(not call["engines"] for call in host.calls())


async def test_a_hook_that_fails_delays_and_says_why(host: Host) -> None:
    before = len(host.calls())
    host.mode("acquire", "the trainer uses it")
    answering = asyncio.create_task(judge(host.client, "small", 5))
    await host.until("released", "unknown", why="the trainer uses it")
    assert "the trainer uses it" in await shown(host.stack, "ls")
    assert not answering.done()
    assert not engines(), "a GPU that may be in use elsewhere has no engine"
    host.mode("acquire", "")
    check(await answering, "small", 5)
    assert [call["event"] for call in host.calls()[before:]].count("acquire") >= 2


async def test_a_hook_that_hangs_is_killed_and_called_again(host: Host) -> None:
    before = len(host.calls())
    host.mode("acquire", "hang")
    answering = asyncio.create_task(judge(host.client, "small", 7))
    await host.until_called("acquire", before)
    await host.until("released", "unknown", why="did not end")
    host.mode("acquire", "")
    check(await answering, "small", 7)
