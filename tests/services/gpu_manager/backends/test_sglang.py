"""SGLang's contract, line by line (facts A3), against a server that dies as SGLang does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from services.gpu_manager.backends.engine_server import EngineServer
from services.gpu_manager.backends.protocol import EngineError, EngineGone, OutOfMemory, WrongAnswer
from services.gpu_manager.backends.sglang import SglangBackend
from services.gpu_manager.described_memory import DescribedMemory
from services.gpu_manager.devices import GpuDevice
from tests.services.gpu_manager.backends.engines import Engines, command, until
from tests.services.gpu_manager.backends.sglang_server import TAGS, SglangServer, Switches, running_sglang


@asynccontextmanager
async def prepared(engines: Engines, **switches: Any) -> AsyncIterator[tuple[SglangServer, SglangBackend]]:
    """A server with switches, and the backend that has found it."""
    async with running_sglang(Switches(**switches)) as server:
        backend = engines.sglang(server.url, evict_s=1.5, restore_s=1.5)
        await backend.prepare()
        server.calls.clear()
        server.bodies.clear()
        yield server, backend


def posts(server: SglangServer) -> list[tuple[str, Any]]:
    """Return path and body of the calls that change something."""
    return [
        (call.removeprefix("POST "), msgspec.json.decode(body))
        for call, body in zip(server.calls, server.bodies, strict=True)
        if call.startswith("POST")
    ]


async def held(server: SglangServer, control: EngineServer) -> asyncio.Task[Any]:
    """Start a request that runs until it is aborted."""
    call = control.send("POST", "/v1/completions", {"prompt": "hold"}, within_s=30)
    request = asyncio.create_task(call)
    await until(lambda: server.running > 0)
    server.calls.clear()
    server.bodies.clear()
    return request


async def test_evict_pauses_waits_until_idle_and_releases(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        request = await held(server, engines.servers[-1])
        await backend.evict("asleep1")
        assert not server.is_dead, "a release while a request is shown would have killed it"
        assert posts(server) == [
            ("/pause_generation", {"mode": "abort"}),
            ("/release_memory_occupation", {"tags": list(TAGS)}),
        ]
        idle = server.calls.index("POST /release_memory_occupation")
        assert server.calls[:idle].count("GET /v1/loads") >= 4, "two readings of a request, and two of none"
        assert (await request).status == 200
        assert await backend.residency() == "asleep1"


async def test_restore_resumes_in_reverse_order_and_continues(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict("asleep1")
        server.calls.clear()
        server.bodies.clear()
        await backend.restore()
        assert posts(server) == [
            *(("/resume_memory_occupation", {"tags": [tag]}) for tag in reversed(TAGS)),
            ("/continue_generation", {}),
        ]
        await backend.canary()


async def test_a_release_of_a_busy_server_kills_it(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        control = engines.servers[-1]
        request = await held(server, control)
        with pytest.raises(EngineError):
            await control.call("POST", "/release_memory_occupation", {}, within_s=5)
        assert server.is_dead
        with pytest.raises(EngineGone):
            await request
        assert await backend.residency() == "unknown"


async def test_a_resume_of_what_is_not_released_kills_it_and_is_never_sent(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        for _ in range(2):
            await backend.restore()
            await backend.prepare()
        assert posts(server) == []
        with pytest.raises(EngineError):
            await engines.servers[-1].call("POST", "/resume_memory_occupation", {"tags": ["weights"]}, within_s=5)
        assert server.is_dead


async def test_a_busy_server_is_continued_and_nothing_is_released(engines: Engines) -> None:
    async with prepared(engines, never_idle=True) as (server, backend):
        with pytest.raises(EngineError, match="was not idle"):
            await backend.evict("asleep1")
        assert [path for path, _ in posts(server)] == ["/pause_generation", "/continue_generation"]
        assert await backend.residency() == "resident"
        await backend.canary()


async def test_an_unreadable_load_is_not_idle(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        server.switches.bad_gateways = ["/v1/loads"] * 8
        with pytest.raises(EngineError, match="reading of SGLang's load was answered with 502"):
            await backend.evict("asleep1")
        assert "POST /release_memory_occupation" not in server.calls
        assert await backend.residency() == "resident"


@pytest.mark.parametrize("path", ["/pause_generation", "/v1/loads", "/ready", "/continue_generation"])
async def test_a_502_of_a_call_that_may_be_repeated_is_repeated(engines: Engines, path: str) -> None:
    async with prepared(engines) as (server, backend):
        server.switches.bad_gateways = [path]
        await backend.evict("asleep1")
        await backend.restore()
        await backend.canary()
        assert server.switches.bad_gateways == []


async def test_a_502_of_an_abort_is_repeated(engines: Engines) -> None:
    async with prepared(engines, bad_gateways=["/abort_request"]) as (server, backend):
        request = await held(server, engines.servers[-1])
        await backend.abort()
        assert posts(server) == [("/abort_request", {"abort_all": True})] * 2
        assert (await request).status == 200


@pytest.mark.parametrize("where", ["bad_gateways", "cut_gateways"])
async def test_a_502_of_a_release_is_not_repeated_and_leaves_it_unknown(engines: Engines, where: str) -> None:
    async with prepared(engines) as (server, backend):
        setattr(server.switches, where, ["/release_memory_occupation"])
        with pytest.raises(EngineError, match="502"):
            await backend.evict("asleep1")
        assert server.calls.count("POST /release_memory_occupation") == 1
        assert await backend.residency() == "unknown"
        for call in (backend.restore, backend.prepare, lambda: backend.evict("asleep1"), backend.canary):
            with pytest.raises(EngineError):
                await call()
        assert not server.is_dead
        assert "POST /resume_memory_occupation" not in server.calls


@pytest.mark.parametrize("where", ["bad_gateways", "cut_gateways"])
async def test_a_502_of_a_resume_is_not_repeated_and_leaves_it_unknown(engines: Engines, where: str) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict("asleep1")
        setattr(server.switches, where, ["/resume_memory_occupation"])
        for _ in range(2):
            with pytest.raises(EngineError):
                await backend.restore()
        assert server.calls.count("POST /resume_memory_occupation") == 1
        assert not server.is_dead
        assert await backend.residency() == "unknown"


async def test_a_resume_out_of_memory_is_reported(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict("asleep1")
        server.switches.resume_ooms = "weights"
        with pytest.raises(OutOfMemory, match="CUDA out of memory"):
            await backend.restore()
        assert await backend.residency() == "unknown"


async def test_a_server_that_stays_paused_is_not_resident(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict("asleep1")
        server.switches.continue_has_no_effect = True
        with pytest.raises(EngineError, match="was not ready"):
            await backend.restore()
        assert await backend.residency() == "unknown"
        server.switches.continue_has_no_effect = False
        await backend.restore()
        assert [path for path, _ in posts(server)].count("/resume_memory_occupation") == len(TAGS)
        await backend.canary()


async def test_a_server_that_someone_else_continues_is_unknown(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict("asleep1")
        await engines.servers[-1].call("POST", "/continue_generation", {}, within_s=5)
        assert await backend.residency() == "unknown"
        with pytest.raises(EngineError, match="gets no canary"):
            await backend.canary()
        assert not server.is_dead, "a request to it would have killed it"


async def test_a_new_manager_finds_a_ready_server(engines: Engines) -> None:
    async with prepared(engines) as (server, _):
        later = engines.sglang(server.url)
        assert await later.residency() == "resident"
        await later.evict("asleep1")
        await later.restore()
        await later.canary()


async def test_a_new_manager_touches_no_paused_server(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        await backend.evict("asleep1")
        server.calls.clear()
        later = engines.sglang(server.url)
        assert await later.residency() == "unknown"
        with pytest.raises(EngineError, match=r"nothing shows which of its memory .*restart the engine"):
            await later.prepare()
        with pytest.raises(EngineError, match="is unknown"):
            await later.evict("asleep1")
        assert not server.is_dead
        assert set(server.calls) == {"GET /ready"}


async def test_reads_send_nothing_to_the_scheduler(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        generated = server.generated
        for _ in range(2):
            await backend.residency()
            await backend.footprint()
        await backend.evict("asleep1")
        for _ in range(2):
            assert await backend.residency() == "asleep1"
        await backend.prepare()
        assert "GET /health" not in server.calls
        assert server.generated == generated


async def test_older_servers_report_their_load_elsewhere(engines: Engines) -> None:
    async with prepared(engines, has_loads=False, has_ready=False) as (server, backend):
        request = await held(server, engines.servers[-1])
        await backend.evict("asleep1")
        assert (await request).status == 200
        assert await backend.residency() == "asleep1"
        await backend.restore()
        assert await backend.residency() == "resident"
        await backend.canary()
        assert not server.is_dead


@pytest.mark.parametrize("flag", ["memory_saver", "cpu_backup"])
async def test_a_server_without_a_needed_flag_is_refused_with_what_to_write(engines: Engines, flag: str) -> None:
    backend = SglangBackend(engines.started(*command("sglang_server.py", {flag: False})))
    option = {"memory_saver": "--enable-memory-saver", "cpu_backup": "--enable-weights-cpu-backup"}[flag]
    with pytest.raises(EngineError, match=f"start SGLang with {option}"):
        await backend.prepare()
    assert await backend.residency() == "cold"


async def test_the_canary_catches_lost_weights(engines: Engines) -> None:
    async with prepared(engines) as (server, backend):
        server.switches.cpu_backup = False
        await backend.evict("asleep1")
        await backend.restore()
        with pytest.raises(WrongAnswer):
            await backend.canary()


@pytest.mark.parametrize("call", ["/release_memory_occupation", "/resume_memory_occupation"])
async def test_a_process_that_dies_of_a_call_is_gone_with_its_last_words(engines: Engines, call: str) -> None:
    server = engines.started(*command("sglang_server.py"))
    backend = SglangBackend(server)
    await backend.prepare()
    requests = []
    if call == "/release_memory_occupation":
        call_that_runs = server.send("POST", "/v1/completions", {"prompt": "hold"}, within_s=30)
        requests.append(asyncio.create_task(call_that_runs))

        async def is_running() -> bool:
            loads = await server.call("GET", "/v1/loads", within_s=5)
            return bool(loads["loads"][0]["num_running_reqs"])

        await server.poll(is_running, within_s=20, failure="no request runs")
    with pytest.raises(EngineGone, match="exit status 137; the end of its output: Scheduler hit an exception"):
        await server.call("POST", call, {}, within_s=5)
    assert await backend.residency() == "cold"
    for request in requests:
        with pytest.raises(EngineGone):
            await request


@dataclass
class MeasuredMemory(DescribedMemory):
    """A GPU of which a test says how much each reading shows."""

    readings: Iterable[int | None] = ()

    def bytes_of(self, numbers: Iterable[int], processes: Iterable[int]) -> int | None:
        assert list(numbers) == [0]
        assert list(processes)
        return next(iter(self.readings))


@pytest.mark.parametrize(("before", "after", "fails"), [(9, 9, True), (9, 1, False), (9, None, False)])
async def test_measured_memory_confirms_a_release(
    engines: Engines, before: int, after: int | None, fails: bool
) -> None:
    engines.memory = MeasuredMemory((GpuDevice(0, 24.0, "fake", True),), readings=iter([before, after, after]))
    backend = SglangBackend(engines.started(*command("sglang_server.py", {"release_has_no_effect": fails})))
    await backend.prepare()
    if fails:
        with pytest.raises(EngineError, match="device memory went from 9 to 9 bytes"):
            await backend.evict("asleep1")
        assert await backend.residency() == "unknown"
    else:
        await backend.evict("asleep1")
        assert await backend.residency() == "asleep1"


async def test_memory_of_described_devices_confirms_nothing(engines: Engines) -> None:
    engines.memory = DescribedMemory((GpuDevice(0, 24.0, "described", False),))
    backend = SglangBackend(engines.started(*command("sglang_server.py")))
    await backend.prepare()
    await backend.evict("asleep1")
    footprint = await backend.footprint()
    assert footprint.device_bytes is not None
    assert footprint.device_bytes > 1 << 20
    assert await backend.residency() == "asleep1"
