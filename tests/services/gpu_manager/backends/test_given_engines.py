"""Stops of engines that were given by their address: asleep, gone, or not confirmed."""

from __future__ import annotations

import asyncio
import sys

import psutil
import pytest

from services.gpu_manager.backends.given_engines import leave_given, listens
from services.gpu_manager.backends.protocol import EngineError
from tests.services.gpu_manager.backends.engines import HERE, Engines
from tests.services.gpu_manager.backends.vllm_server import Switches, running_vllm


async def test_a_given_engine_is_left_asleep_at_its_deepest_level(engines: Engines) -> None:
    async with running_vllm() as vllm:
        backend = engines.vllm(vllm.url)
        assert await leave_given(backend) == "asleep2"
        assert await backend.residency() == "asleep2"
        assert await leave_given(backend) == "asleep2", "a probe finds it so"


async def test_an_engine_that_sleeps_at_another_level_is_left_there(engines: Engines) -> None:
    async with running_vllm() as vllm:
        await engines.vllm(vllm.url).evict("asleep1")
        assert await leave_given(engines.vllm(vllm.url)) == "asleep1"


async def test_an_engine_at_whose_address_nothing_listens_is_gone(engines: Engines) -> None:
    async with running_vllm() as vllm:
        backend = engines.vllm(vllm.url)
    assert await leave_given(backend) == "cold"
    assert not await listens(vllm.url)


async def test_an_engine_that_stays_awake_is_not_stopped(engines: Engines) -> None:
    async with running_vllm(Switches(sleep_has_no_effect=True)) as vllm:
        with pytest.raises(EngineError):
            await leave_given(engines.vllm(vllm.url, evict_s=0.5))


async def test_an_engine_that_hangs_is_neither_asleep_nor_gone(engines: Engines, unused_tcp_port: int) -> None:
    """Its process is stopped. Connections to it are accepted by the kernel."""
    argv = [sys.executable, str(HERE / "vllm_server.py"), "--port", str(unused_tcp_port)]
    server = await asyncio.create_subprocess_exec(*argv)
    url = f"http://127.0.0.1:{unused_tcp_port}"
    try:
        async with asyncio.timeout(20):
            while not await listens(url):  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.02)
        process = psutil.Process(server.pid)
        process.suspend()
        backend = engines.vllm(url, read_s=0.3, evict_s=0.3)
        for _ in range(2):  # and each probe finds the same
            with pytest.raises(EngineError):
                await leave_given(backend)
        process.resume()
        assert await leave_given(engines.vllm(url)) == "asleep2"
    finally:
        server.kill()
        await server.wait()
    assert await leave_given(engines.vllm(url)) == "cold"
