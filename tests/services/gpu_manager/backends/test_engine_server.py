"""Starts of engines that fail, and the engine of a process and of a URL."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace

import pytest

from services.gpu_manager.backends.engine_server import EngineSettings
from services.gpu_manager.backends.launching import EngineLaunch, Ports
from services.gpu_manager.backends.process import ProcessBackend
from services.gpu_manager.backends.protocol import EngineError, EngineGone, OutOfMemory
from services.gpu_manager.described_memory import DescribedMemory
from services.gpu_manager.devices import GpuDevice
from tests.services.gpu_manager.backends.engines import CANARY, QUICK, Engines, command, until
from tests.services.gpu_manager.backends.vllm_server import Switches, running_vllm


def python(program: str) -> tuple[str, ...]:
    return sys.executable, "-u", "-c", program


async def test_one_that_dies_at_its_start_is_gone_with_the_end_of_its_output(engines: Engines) -> None:
    backend = ProcessBackend(engines.started(*python("print('x' * 9999); raise SystemExit('no weights in /models')")))
    with pytest.raises(
        EngineGone, match=r"ended with exit status 1; the end of its output: x+\s+no weights in /models"
    ):
        await backend.prepare()
    assert (await backend.residency(), backend.url) == ("cold", "")


@pytest.mark.parametrize(
    "message",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "Free memory on device (3.1/80 GiB) is less than desired GPU memory utilization (0.9, 72 GiB)",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    ],
)
async def test_one_that_dies_for_lack_of_memory_is_out_of_memory(engines: Engines, message: str) -> None:
    long_traceback = "print('  File engine.py\\n' * 1000)"
    backend = ProcessBackend(engines.started(*python(f"print({message!r}); {long_traceback}; raise SystemExit(1)")))
    with pytest.raises(OutOfMemory):
        await backend.prepare()


async def test_one_that_is_never_healthy_is_stopped_after_start_s(engines: Engines) -> None:
    settings = replace(QUICK, start_s=1.5)
    server = engines.started(*command("vllm_server.py", {"start_s": 60.0}), deadlines=settings)
    with pytest.raises(EngineError, match=r"not healthy 1\.5 s after its start \(.*\); raise `start_s` if"):
        await server.start()
    assert (server.is_running, server.url) == (False, "")


async def test_one_that_hangs_at_its_start_is_stopped_after_start_s(engines: Engines) -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('loading'); time.sleep(60)"
    server = engines.started(*python(program), deadlines=replace(QUICK, start_s=1.0))
    with pytest.raises(EngineError, match="the end of its output: loading"):
        await server.start()
    assert not server.is_running


async def test_a_cancelled_start_leaves_no_process(engines: Engines) -> None:
    server = engines.started(*command("vllm_server.py", {"start_s": 60.0}))
    start = asyncio.create_task(server.start())
    await until(lambda: server.is_running)
    process = server._process
    assert process is not None
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await until(lambda: not process.is_running)
    await server.stop()
    assert server.url == ""


async def test_a_slow_start_is_waited_for(engines: Engines) -> None:
    server = engines.started(*command("vllm_server.py", {"start_s": 0.5}))
    await server.start()
    await server.canary()


async def test_an_engine_that_ends_before_its_health_is_not_another_one_on_its_port(engines: Engines) -> None:
    async with running_vllm() as other:
        port = int(other.url.rpartition(":")[2])
        engines.ports = Ports(range(port, port + 1))
        engines.ports.take = lambda: port  # type: ignore[method-assign]  # the port was taken after it had been chosen
        server = engines.started(*command("vllm_server.py"), deadlines=replace(QUICK, settle_s=5.0))
        with pytest.raises(EngineGone, match="address already in use"):
            await server.start()


async def test_the_port_is_released_with_the_engine(engines: Engines) -> None:
    server = engines.started(*command("vllm_server.py"))
    await server.start()
    assert engines.ports._taken == {int(server.url.rpartition(":")[2])}
    await server.stop()
    assert engines.ports._taken == set()
    with pytest.raises(EngineError, match="cannot be executed"):
        await engines.started("/no/such/engine").start()
    assert engines.ports._taken == set()


async def test_processes_are_assigned_to_their_devices_while_they_run(engines: Engines) -> None:
    memory = DescribedMemory((GpuDevice(0, 24.0, "described", False),))
    engines.memory = memory
    server = engines.started(*command("vllm_server.py"))
    await server.start()
    used = memory.used_bytes(0)
    footprint = await server.footprint()
    assert used is not None
    assert footprint.device_bytes is not None
    assert min(used, footprint.device_bytes) > 1 << 20
    assert await server.measured_bytes() is None, "described memory is host memory"
    await server.stop()
    assert memory.used_bytes(0) == 0


async def test_the_environment_reaches_the_engine_with_its_places(engines: Engines) -> None:
    program = "import os; raise SystemExit(os.environ['TOLD'])"
    server = engines.started(*python(program), env={"TOLD": "{model} on {devices}"})
    with pytest.raises(EngineGone, match="tiny on 0"):
        await server.start()


async def test_the_key_is_sent_and_not_shown(engines: Engines) -> None:
    async with running_vllm() as engine:
        server = engines.given(engine.url, key="secret-key")
        await server.start()
        await server.canary()
        assert "secret-key" not in repr(server.settings)


async def test_a_given_engine_whose_health_is_not_200_is_gone(engines: Engines) -> None:
    async with running_vllm(Switches(start_s=60.0)) as engine:
        server = engines.given(engine.url, deadlines=replace(QUICK, read_s=0.3))
        with pytest.raises(
            EngineGone, match=r"no healthy engine at .* within 0\.3 s: GET /health was answered with 503"
        ):
            await server.start()


async def test_a_given_engine_never_ends_for_us(engines: Engines) -> None:
    async with running_vllm() as engine:
        server = engines.given(engine.url)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await server.ended()
        assert server.is_running
        assert (await server.footprint()).host_bytes is None


async def test_a_process_backend_at_a_url_cannot_be_evicted(engines: Engines) -> None:
    async with running_vllm(Switches(dev_mode=False)) as engine:
        backend = ProcessBackend(engines.given(engine.url + "/"))
        await backend.prepare()
        assert (backend.flags.levels, backend.url) == ((), engine.url)
        await backend.canary()
        with pytest.raises(EngineError, match="its levels: none, because it was given by its URL; give a `command`"):
            await backend.evict("cold")
        assert await backend.residency() == "resident"


def test_an_engine_has_a_command_or_a_url() -> None:
    launch = EngineLaunch(("serve",), "tiny", (0,))
    for wrong in ({}, {"launch": launch, "url": "http://127.0.0.1:1"}):
        with pytest.raises(ValueError, match="needs `command` or `url`, and not both"):
            EngineSettings("tiny", CANARY, **wrong)  # type: ignore[arg-type]


async def test_without_a_canary_nothing_is_sent(engines: Engines) -> None:
    async with running_vllm() as engine:
        server = engines.given(engine.url, canary=None)
        await server.canary()
        assert engine.calls == []


async def test_no_process_of_a_test_is_left(engines: Engines) -> None:
    server = engines.started(*command("vllm_server.py"))
    await server.start()
    process = server._process
    assert process is not None
    await engines.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
