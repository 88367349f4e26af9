"""The backend `torch`: with real servers, and with one whose answers are not true."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from services.gpu_manager.backends.engine_folders import EngineFolders
from services.gpu_manager.backends.engine_http import open_engines
from services.gpu_manager.backends.protocol import (
    Backend,
    EngineError,
    EngineGone,
    Level,
    OutOfMemory,
    WrongAnswer,
)
from services.gpu_manager.backends.torch import TorchBackend
from shared.model_services.entries import EngineCanary
from tests.services.gpu_manager.backends.engines import Engines
from tests.services.gpu_manager.torch_server.models import write_encoder
from tests.services.gpu_manager.torch_server.server import RunningServer, running_server

SCORE = {"inputs": ["w1 w2 w3"]}


@pytest.fixture
async def engines(tmp_path: Path) -> AsyncIterator[Engines]:
    async with open_engines() as client:
        engines = Engines(client, EngineFolders(tmp_path / "engines"))
        try:
            yield engines
        finally:
            await engines.close()


def started(engines: Engines, folder: Path, canary: EngineCanary | None = None) -> TorchBackend:
    command = (sys.executable, "-m", "services.gpu_manager.torch_server", "--model", str(folder), "--port", "{port}")
    return TorchBackend(engines.started(*command, "--device", "cpu", "--threads", "1", canary=canary))


def given(engines: Engines, url: str, canary: EngineCanary | None = None) -> TorchBackend:
    return TorchBackend(engines.given(url, canary=canary))


def expecting(score: float) -> EngineCanary:
    return EngineCanary(path="/v1/score", body=SCORE, pointer="/scores/0", expect=score, tolerance=1e-4)


async def test_a_server_of_ours_goes_through_its_levels(
    torch_installed: None, scorer: RunningServer, engines: Engines, tmp_path: Path
) -> None:
    """Two servers of the same weights give the same score, so one is the canary of the other."""
    backend = started(engines, write_encoder(tmp_path), expecting(scorer.result("/v1/score", SCORE)["scores"][0]))
    assert backend.flags.levels == ("asleep1", "cold")
    assert (await backend.residency(), backend.url) == ("cold", "")
    await backend.prepare()
    await backend.prepare()
    assert await backend.residency() == "resident"
    levels: tuple[Level, ...] = ("asleep1", "asleep1", "cold", "asleep1")
    for level in levels:
        await backend.canary()
        await backend.evict(level)
        await backend.evict(level)
        assert await backend.residency() == level
        await backend.restore()
        assert await backend.residency() == "resident"
    await backend.restore()
    await backend.canary()
    footprint = await backend.footprint()
    assert (footprint.host_bytes or 0) > 50_000_000
    with pytest.raises(EngineError, match="asleep2"):
        await backend.evict("asleep2")
    await backend.stop()
    assert await backend.residency() == "cold"


async def test_a_server_given_by_its_url_is_restored_and_not_stopped(scorer: RunningServer, engines: Engines) -> None:
    backend = given(engines, scorer.url)
    assert backend.flags.levels == ("asleep1",)
    await backend.evict("asleep1")
    footprint = await backend.footprint()
    assert (footprint.device_bytes, footprint.host_bytes) == (0, scorer.state()["host_bytes"])
    await backend.prepare()
    assert scorer.state()["residency"] == "resident"
    with pytest.raises(EngineError):
        await backend.evict("cold")
    with pytest.raises(EngineError, match="cannot be stopped"):
        await backend.stop()


async def test_another_answer_fails_the_canary(scorer: RunningServer, engines: Engines) -> None:
    score = scorer.result("/v1/score", SCORE)["scores"][0]
    await given(engines, scorer.url, expecting(score)).canary()
    with pytest.raises(WrongAnswer):
        await given(engines, scorer.url, expecting(score + 0.01)).canary()


async def test_a_busy_server_is_evicted_only_after_an_abort(embedder: RunningServer, engines: Engines) -> None:
    backend = given(engines, embedder.url)
    body = {"inputs": [f"{number} " + "word " * 200 for number in range(512)]}
    long = asyncio.create_task(asyncio.to_thread(embedder.post, "/v1/embed", body))
    while not (await asyncio.to_thread(embedder.state))["running"]:
        assert not long.done()
    with pytest.raises(EngineError, match="1 requests run"):
        await backend.evict("asleep1")
    await backend.abort()
    assert (await long).json()["code"] == "aborted"
    await backend.evict("asleep1")
    await backend.restore()
    assert await backend.residency() == "resident"


async def test_a_killed_server_is_gone_and_starts_again(
    torch_installed: None, engines: Engines, tmp_path: Path
) -> None:
    backend = started(engines, write_encoder(tmp_path))
    await backend.prepare()
    ended = asyncio.create_task(backend.ended())
    os.kill((await read_state(backend, engines))["pid"], signal.SIGKILL)
    assert "SIGKILL" in await ended
    assert await backend.residency() == "cold"
    with pytest.raises(EngineGone):
        await backend.evict("asleep1")
    await backend.restore()
    assert await backend.residency() == "resident"


async def read_state(backend: Backend, engines: Engines) -> Any:
    return await engines.servers[-1].call("GET", "/state", within_s=5.0)


async def test_a_folder_that_cannot_be_served_is_the_reason_of_the_error(
    torch_installed: None, engines: Engines, tmp_path: Path
) -> None:
    backend = started(engines, tmp_path)
    with pytest.raises(EngineGone, match=r"name the folder that has the model's files"):
        await backend.prepare()
    assert await backend.residency() == "cold"


async def test_the_launcher_of_the_mesh_starts_it_too(torch_installed: None, tmp_path: Path) -> None:
    """In the wheel, `services` is found by `treadle.mesh` alone."""
    from tests.services.gpu_manager.torch_server import server
    from treadle.mesh import mesh_command

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(server, "COMMAND", mesh_command("services.gpu_manager.torch_server"))
        with running_server(write_encoder(tmp_path), "--device", "cpu") as running:
            assert running.state()["residency"] == "resident"


class Liar:
    """A server whose answers the test sets. It does nothing."""

    def __init__(self) -> None:
        self.state: Any = {"residency": "resident", "device_bytes": 9, "host_bytes": 9}
        self.restore_status = 200
        self.restore_body: Any = {}

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/state", self._state)
        app.router.add_get("/health", self._ok)
        app.router.add_post("/evict", self._ok)
        app.router.add_post("/restore", self._restore)
        return app

    async def _state(self, request: web.Request) -> web.Response:
        return web.json_response(self.state)

    async def _ok(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def _restore(self, request: web.Request) -> web.Response:
        return web.json_response(self.restore_body, status=self.restore_status)


@pytest.fixture
async def liar() -> AsyncIterator[tuple[Liar, str]]:
    liar = Liar()
    async with TestServer(liar.app()) as server:
        yield liar, str(server.make_url("")).rstrip("/")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"residency": "resident", "device_bytes": 9, "host_bytes": 9}, "answered 200, but is resident with 9 bytes"),
        ({"residency": "evicting", "device_bytes": 9, "host_bytes": 9}, "answered 200, but is evicting"),
        ({"residency": "asleep1", "device_bytes": 9, "host_bytes": 9}, "asleep1 with 9 bytes on its device"),
        ({"residency": "asleep1"}, "the backend 'torch' is for it alone"),
        ([], "the backend 'torch' is for it alone"),
        (
            {"residency": "resident", "device_bytes": 9, "host_bytes": 9, "failure": "illegal address"},
            "illegal address",
        ),
    ],
)
async def test_an_eviction_without_effect_is_an_error(
    liar: tuple[Liar, str], engines: Engines, state: Any, message: str
) -> None:
    server, url = liar
    backend = given(engines, url)
    server.state = state
    with pytest.raises(EngineError, match=message):
        await backend.evict("asleep1")


async def test_a_restore_without_effect_or_memory_is_an_error(liar: tuple[Liar, str], engines: Engines) -> None:
    server, url = liar
    backend = given(engines, url)
    server.state = {"residency": "asleep1", "device_bytes": 0, "host_bytes": 9}
    assert await backend.residency() == "asleep1"
    with pytest.raises(EngineError, match="answered 200, but is asleep1"):
        await backend.restore()
    server.restore_status, server.restore_body = 507, {"code": "out_of_memory", "message": "out of memory on cuda:0"}
    with pytest.raises(OutOfMemory):
        await backend.restore()


@pytest.mark.parametrize("state", [{"residency": "restoring", "device_bytes": 0, "host_bytes": 9}, {}, None])
async def test_a_state_between_two_is_unknown(liar: tuple[Liar, str], engines: Engines, state: Any) -> None:
    server, url = liar
    server.state = state
    assert await given(engines, url).residency() == "unknown"


async def test_a_server_that_does_not_answer_is_unknown(engines: Engines) -> None:
    backend = given(engines, "http://127.0.0.1:9")
    assert await backend.residency() == "unknown"
    assert (await backend.footprint()).device_bytes is None
    with pytest.raises(EngineGone):
        await backend.prepare()
