"""The same scenarios with every backend. Each starts a real process that speaks the contract of its kind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import pytest

from services.gpu_manager.backends.protocol import Backend, EngineError, EngineGone, Level
from tests.services.gpu_manager.backends.engines import KINDS, Engines
from tests.services.gpu_manager.backends.sglang_server import running_sglang
from tests.services.gpu_manager.backends.vllm_server import running_vllm

LEVELS: dict[str, tuple[Level, ...]] = {
    "process": ("cold",),
    "vllm": ("asleep1", "asleep2", "cold"),
    "vllm, old": ("asleep1", "asleep2", "cold"),
    "vllm, real model": ("asleep1", "asleep2", "cold"),
    "sglang": ("asleep1", "cold"),
    "sglang, old": ("asleep1", "cold"),
}
PAIRS = [(kind, level) for kind, levels in LEVELS.items() for level in levels]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(kind: str, engines: Engines) -> Backend:
    return KINDS[kind](engines)


def _pid(backend: Backend, engines: Engines) -> int:
    process = engines.servers[-1]._process
    assert process is not None
    return process.pid


async def test_a_new_engine_is_cold_and_has_no_address(kind: str, backend: Backend) -> None:
    assert backend.flags.levels == LEVELS[kind]
    assert (await backend.residency(), backend.url) == ("cold", "")
    assert await backend.ended() == "the engine is stopped"
    with pytest.raises(EngineGone):
        await backend.abort() if kind != "process" else await backend.canary()


async def test_prepare_makes_it_resident_and_may_be_repeated(backend: Backend, engines: Engines) -> None:
    await backend.prepare()
    url, pid = backend.url, _pid(backend, engines)
    assert await backend.residency() == "resident"
    await backend.canary()
    await backend.prepare()
    assert (backend.url, _pid(backend, engines)) == (url, pid)
    await backend.canary()


@pytest.mark.parametrize(("name", "level"), PAIRS)
async def test_each_level_is_entered_and_left_twice(name: str, level: Level, engines: Engines) -> None:
    backend = KINDS[name](engines)
    await backend.prepare()
    for _ in range(2):
        await backend.evict(level)
        assert await backend.residency() == level
        await backend.evict(level)  # a repeat changes nothing
        assert await backend.residency() == level
        await backend.restore()
        assert await backend.residency() == "resident"
        await backend.canary()
        await backend.restore()
        assert await backend.residency() == "resident"


@pytest.mark.parametrize(("name", "level"), PAIRS)
async def test_an_evicted_engine_fails_its_canary_and_stays_evicted(name: str, level: Level, engines: Engines) -> None:
    backend = KINDS[name](engines)
    await backend.prepare()
    await backend.evict(level)
    with pytest.raises(EngineError):
        await backend.canary()
    await backend.footprint()
    assert await backend.residency() == level


@pytest.mark.parametrize(("name", "level"), PAIRS)
async def test_prepare_restores_an_evicted_engine(name: str, level: Level, engines: Engines) -> None:
    backend = KINDS[name](engines)
    await backend.prepare()
    await backend.evict(level)
    await backend.prepare()
    assert await backend.residency() == "resident"
    await backend.canary()


async def test_a_level_that_it_lacks_is_refused_before_anything_is_sent(kind: str, backend: Backend) -> None:
    await backend.prepare()
    for level in {"cold", "asleep1", "asleep2"} - set(LEVELS[kind]):
        with pytest.raises(EngineError, match="its levels: "):
            await backend.evict(level)  # type: ignore[arg-type]  # a set of literals is a set of texts
    assert await backend.residency() == "resident"


async def test_abort_of_an_idle_engine_does_no_harm(backend: Backend) -> None:
    await backend.prepare()
    for _ in range(2):
        await backend.abort()
    await backend.canary()


async def test_stop_frees_the_process_and_the_port_and_may_be_repeated(backend: Backend, engines: Engines) -> None:
    await backend.prepare()
    pid, port = _pid(backend, engines), int(backend.url.rpartition(":")[2])
    for _ in range(2):
        await backend.stop()
        assert (await backend.residency(), backend.url) == ("cold", "")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with socket.create_server(("127.0.0.1", port)):
        pass
    await backend.restore()
    await backend.canary()


async def test_a_killed_engine_is_cold_reported_and_started_again(backend: Backend, engines: Engines) -> None:
    await backend.prepare()
    end = asyncio.create_task(backend.ended())
    os.kill(_pid(backend, engines), signal.SIGKILL)
    assert "was killed by SIGKILL" in await end
    assert await backend.residency() == "cold"
    with pytest.raises(EngineGone, match="SIGKILL"):
        await backend.canary()
    await backend.restore()
    assert await backend.residency() == "resident"
    await backend.canary()


async def test_an_engine_that_hangs_is_unknown_and_can_be_stopped(kind: str, engines: Engines) -> None:
    backend = KINDS[kind](engines)
    await backend.prepare()
    server = engines.servers[-1]
    server.deadlines = type(server.deadlines)(read_s=0.3, canary_s=0.3, grace_s=0.3)
    os.kill(_pid(backend, engines), signal.SIGSTOP)
    assert await backend.residency() == "unknown"
    with pytest.raises(EngineError, match="no complete answer within"):
        await backend.canary()
    await backend.stop()
    assert await backend.residency() == "cold"


async def test_footprint_is_measured_while_it_runs(backend: Backend) -> None:
    await backend.prepare()
    running = await backend.footprint()
    assert running.host_bytes is not None
    assert running.host_bytes > 1 << 20
    assert running.device_bytes is None, "nothing measures devices here"
    await backend.stop()
    stopped = await backend.footprint()
    assert (stopped.device_bytes, stopped.host_bytes) == (0, 0)


async def test_given_engines_are_evicted_and_restored_but_never_stopped(engines: Engines) -> None:
    async with running_vllm() as vllm, running_sglang() as sglang:
        for backend, levels in (
            (engines.vllm(vllm.url), {"asleep1", "asleep2"}),
            (engines.sglang(sglang.url), {"asleep1"}),
        ):
            assert set(backend.flags.levels) == levels
            await backend.prepare()
            for level in backend.flags.levels:
                await backend.evict(level)
                assert await backend.residency() == level
                await backend.restore()
                await backend.canary()
            with pytest.raises(EngineError, match="cannot be evicted to cold"):
                await backend.evict("cold")
            with pytest.raises(EngineError, match="given by its URL"):
                await backend.stop()
            assert await backend.residency() == "resident"


async def test_a_given_engine_that_does_not_answer_is_not_prepared(engines: Engines) -> None:
    url = f"http://127.0.0.1:{engines.ports.take()}"
    for backend in (engines.vllm(url, read_s=0.3), engines.sglang(url, read_s=0.3)):
        with pytest.raises(EngineGone):
            await backend.prepare()
        assert await backend.residency() == "unknown", "it may be starting, and hold memory"
