"""An inference engine without a model, in this process: its answers are known, and what it receives is counted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MODEL = "tiny"


@dataclass
class Engine:
    """One engine. A test changes its fields while it serves."""

    name: str
    url: str = ""
    chunks: int = 3
    pause_s: float = 0.0
    """Between two events of a stream."""
    gate: asyncio.Event | None = None
    """Answers wait for it before their first byte."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    break_after: int | None = None
    """Events after which the connection is cut."""
    drop: bool = False
    """Close the connection instead of answering."""
    frozen: bool = False
    """Accept everything, answer nothing but `/health`."""
    aborts: bool = True
    """False: a call goes on to the opening of the gate although its client has gone."""
    slots: int | None = None
    """Calls at once. Further ones get 503."""
    serves_canaries: bool = True
    bodies: list[bytes] = field(default_factory=list)
    received: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Method, target and headers of calls, without canaries."""
    gone: int = 0
    """Calls whose client has closed the connection."""
    canaries: int = 0
    running: int = 0
    most_running: int = 0

    def events(self) -> list[bytes]:
        """The events of a streamed answer. They name the engine."""
        texts = [
            f'data: {{"choices":[{{"index":0,"delta":{{"content":"{self.name}-{n}"}}}}]}}\n\n'
            for n in range(self.chunks)
        ]
        return [b": keep-alive\n\n", *(text.encode() for text in texts), b"data: [DONE]\n\n"]

    def whole(self) -> bytes:
        """The answer that is not streamed. Its spaces are no encoder's."""
        return b'{"object" :  "chat.completion", "engine":"%s", "choices":[]}\n' % self.name.encode()


async def _call(engine: Engine, request: web.Request) -> web.StreamResponse:
    raw = await request.read()
    body: dict[str, Any] = await request.json()
    if body.get("max_tokens") == 1 and body.get("prompt") == "1":
        engine.canaries += 1
        await _answerable(engine, engine.serves_canaries and not engine.frozen)
        return web.json_response({"choices": [{"text": "x"}]})
    engine.bodies.append(raw)
    engine.received.append((request.method, request.raw_path, dict(request.headers)))
    engine.running += 1
    engine.most_running = max(engine.most_running, engine.running)
    try:
        if engine.drop:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        await _answerable(engine, not engine.frozen)
        if engine.slots is not None and engine.running > engine.slots:
            return web.Response(status=503, body=b'{"error":"engine"}')
        if engine.gate is not None:
            await engine.gate.wait()
        if engine.status != 200:
            return web.Response(status=engine.status, headers=engine.headers, body=b'{"error":"engine"}')
        if not body.get("stream"):
            return web.Response(
                body=engine.whole(), headers={"x-request-id": "engine-1"}, content_type="application/json"
            )
        return await _stream(engine, request)
    except asyncio.CancelledError:
        engine.gone += 1
        if not engine.aborts and engine.gate is not None:
            await engine.gate.wait()
        raise
    finally:
        engine.running -= 1


async def _answerable(engine: Engine, answers: bool) -> None:
    if not answers:
        await asyncio.sleep(3600)


async def _stream(engine: Engine, request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    for number, event in enumerate(engine.events()):
        if number == engine.break_after:
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(event)
        await asyncio.sleep(engine.pause_s)
    await response.write_eof()
    return response


@asynccontextmanager
async def running_engine(name: str, *, models: tuple[str, ...] = (MODEL,)) -> AsyncIterator[Engine]:
    """Serve an engine on a free port."""
    engine = Engine(name)

    async def call(request: web.Request) -> web.StreamResponse:
        return await _call(engine, request)

    async def listed(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": one, "object": "model"} for one in models]})

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(client_max_size=1 << 30)
    app.router.add_get("/v1/models", listed)
    app.router.add_get("/health", health)
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate"):
        app.router.add_post(path, call)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()


def free_port() -> int:
    """A port at which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
