"""An engine for tests: a real HTTP server whose answers a test writes, also those that break HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from services.gpu_manager.engine_calls import EngineAddress, EngineAttempt
from services.gpu_manager.model_calls import perform
from shared.model_services.entries import Api
from shared.policy.model.results import AttemptResult
from shared.runtime.http_streams import open_streams

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WrittenEngine:
    """Answers its n-th request with the n-th answer, and every further one with the last."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = answers
        self.url = ""
        self.paths: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.called = asyncio.Event()
        self.lost = asyncio.Event()
        """A caller has closed its connection before the answer's end."""

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        self.bodies.append(msgspec.json.decode(await request.read()))
        self.called.set()
        try:
            return await self._answers[min(len(self.paths), len(self._answers)) - 1](request)
        except (asyncio.CancelledError, ConnectionResetError):
            self.lost.set()
            raise


@asynccontextmanager
async def running_engine(*answers: Answer) -> AsyncIterator[WrittenEngine]:
    engine = WrittenEngine(*answers)
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/{path:.*}", engine._serve)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()


async def performed(
    engine: WrittenEngine | str,
    work: str,
    params: dict[str, Any] | bytes,
    *,
    api: Api = "openai",
    within_s: float = 30.0,
    output_bytes: int = 1 << 20,
    gpus: float = 1.0,
) -> AttemptResult:
    """Execute one action on an engine."""
    url = engine if isinstance(engine, str) else engine.url
    raw = params if isinstance(params, bytes) else msgspec.json.encode({"service": "judge-a", **params})
    async with open_streams(connect_s=5.0) as http:
        deadline = asyncio.get_running_loop().time() + within_s
        address = EngineAddress(url, api, "the-model", "judge-a", gpus=gpus)
        return await perform(work, raw, EngineAttempt(address, http, deadline, output_bytes))


# ---- answers ---------------------------------------------------------------------------------------------------------


def json(document: object, status: int = 200, **headers: str) -> Answer:
    """A document as JSON; bytes as they are."""

    async def answer(_: web.Request) -> web.StreamResponse:
        body = document if isinstance(document, bytes) else msgspec.json.encode(document)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, body=body, content_type="application/json", headers=named)

    return answer


def completion(text: str | None, reason: str | None = "stop", tokens: int = 7, **message: Any) -> Answer:
    """A chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": reason}
    return json({"id": "c", "choices": [choice], "usage": {"prompt_tokens": 4, "total_tokens": tokens}})


async def hang(_: web.Request) -> web.StreamResponse:
    """Nothing, until the caller is gone."""
    await asyncio.sleep(3600)
    raise AssertionError


def late(answer: Answer, after_s: float) -> Answer:
    """An answer after some time."""

    async def delayed(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(after_s)
        return await answer(request)

    return delayed


async def trickle(request: web.Request) -> web.StreamResponse:
    """A valid beginning, and then a space at a time without end."""
    response = web.StreamResponse(headers={"content-type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.01)


async def flood(request: web.Request) -> web.StreamResponse:
    """A body without end, as fast as it is read."""
    response = web.StreamResponse(headers={"content-type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(b" " * (1 << 20))


def broken(sent: bytes) -> Answer:
    """These bytes on the socket, and then its end."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(sent)
        await asyncio.sleep(0.01)
        request.transport.close()
        await asyncio.sleep(3600)
        raise AssertionError

    return answer
