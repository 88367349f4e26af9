"""The bench's light client and a real server agree about requests and answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from treadle.lab.bench.figures import BenchError
from treadle.lab.bench.light_http import LightHttp


async def _echo(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    await asyncio.sleep(0.01)
    if request.path == "/broken":
        assert request.transport is not None
        request.transport.close()
    if request.path == "/chunked":
        stream = web.StreamResponse()
        await stream.prepare(request)
        for at in range(0, len(body), 1000):
            await stream.write(body[at : at + 1000])
        return stream
    if request.path == "/refused":
        return web.Response(status=429, text="not now")
    return web.Response(body=body + request.headers.get("treadle-tenant", "").encode())


@asynccontextmanager
async def _server() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/{any}", _echo)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_each_caller_gets_its_own_answer_over_kept_connections() -> None:
    async with _server() as url, LightHttp.to(url, {"treadle-tenant": "red"}) as http:
        for _ in range(3):
            bodies = [f"{number} ".encode() for number in range(50)]
            assert await asyncio.gather(*(http.post("/echo", body) for body in bodies)) == [
                body + b"red" for body in bodies
            ]


async def test_a_long_chunked_answer_is_read_whole() -> None:
    async with _server() as url, LightHttp.to(url) as http:
        body = bytes(range(256)) * 2000
        assert await http.post("/chunked", body) == body


async def test_a_refusal_is_an_error_with_its_text_and_the_connection_stays() -> None:
    async with _server() as url, LightHttp.to(url) as http:
        with pytest.raises(BenchError, match="429: not now"):
            await http.post("/refused", b"")
        assert await http.post("/echo", b"again") == b"again"


async def test_a_broken_connection_is_an_error_and_the_next_call_connects_anew() -> None:
    async with _server() as url, LightHttp.to(url) as http:
        with pytest.raises(BenchError, match="broke"):
            await http.post("/broken", b"")
        assert await http.post("/echo", b"anew") == b"anew"
