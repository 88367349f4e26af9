"""Failed calls to the engine. The engine here is a few lines on a socket."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from services.cpu_manager.environments.docker.engine import ContainerEngine, EngineRefusal, bounded
from services.cpu_manager.environments.protocol import RuntimeUnavailable


async def test_an_engine_that_stays_silent_is_not_waited_for_forever(tmp_path: Path) -> None:
    hung_up = asyncio.Event()

    async def send_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        hung_up.set()

    server = await asyncio.start_unix_server(send_nothing, tmp_path / "docker.sock")
    async with server, ContainerEngine(f"unix://{tmp_path}/docker.sock") as engine:
        with pytest.raises(RuntimeUnavailable, match=r"did not answer within 0.05 s"):
            await bounded("answer", engine.docker.version(), 0.05)
    await asyncio.wait_for(hung_up.wait(), 5)


async def answered(app: web.Application, path: Path) -> web.AppRunner:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    return runner


async def test_a_refusal_has_the_engines_status_and_message(tmp_path: Path) -> None:
    app = web.Application()

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"ApiVersion": "1.41"})

    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"message": "no room"}, status=507)

    async def missing(_: web.Request) -> web.Response:
        return web.json_response({"message": "No such container"}, status=404)

    app.router.add_get("/version", version)
    app.router.add_post("/v1.41/containers/c/start", refuse)
    app.router.add_get("/v1.41/containers/c/json", missing)
    app.router.add_delete("/v1.41/containers/c", missing)
    runner = await answered(app, tmp_path / "docker.sock")
    try:
        async with ContainerEngine(f"unix://{tmp_path}/docker.sock") as engine:
            with pytest.raises(EngineRefusal, match="no room") as refusal:
                await engine.start("c")
            assert refusal.value.status == 507
            assert await engine.inspect("c") is None
            await engine.remove("c")  # what is not there is removed
    finally:
        await runner.cleanup()


async def test_an_engine_that_hangs_up_in_the_middle_is_out_of_reach(tmp_path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        writer.close()

    server = await asyncio.start_unix_server(hang_up, tmp_path / "docker.sock")
    async with server, ContainerEngine(f"unix://{tmp_path}/docker.sock") as engine:
        with pytest.raises(RuntimeUnavailable):
            await engine.facts()
