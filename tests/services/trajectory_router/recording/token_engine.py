"""An engine with vLLM's fields for ids. It writes down what it has sampled: the judge of the record.

A token is a byte. It samples digits, drawn from the ids of the prompt, and ends after `max_tokens`.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Logged:
    """One call, as the engine knows it."""

    prompt: list[int]
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: bool = False


@dataclass
class TokenEngine:
    """A test changes its fields while it serves."""

    url: str = ""
    pause_s: float = 0.0
    """Between two tokens of a stream."""
    version: str = "v1"
    log: list[Logged] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    break_after: int | None = None
    """Tokens after which the connection is cut."""
    breaks_whole: bool = False
    """Cut the connection in the middle of an answer that is not streamed."""
    forgets_ids: bool = False
    """Leave the ids of the last token out."""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = await request.json()
        self.bodies.append(body)
        text = "".join(f"<{one['role']}>{one['content']}" for one in body["messages"])
        prompt = [*text.encode(), 1]
        call = Logged(prompt)
        self.log.append(call)
        drawn = random.Random(bytes(prompt))
        for _ in range(body.get("max_tokens", 4)):
            call.output.append(drawn.choice(b"0123456789"))
            call.logprobs.append(-round(drawn.random(), 6))
        with_ids, with_logprobs = body.get("return_token_ids"), body.get("logprobs")
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(call.output)}
        spans = [{"version": self.version, "start": 0, "end": len(call.output)}]
        versions = {"weight_versions": spans} if body.get("return_weight_versions") else {}
        if not body.get("stream"):
            choice: dict[str, Any] = {
                "index": 0,
                "message": {"role": "assistant", "content": bytes(call.output).decode()},
                "finish_reason": "length",
                "logprobs": {"content": _entries(call, 0, len(call.output))} if with_logprobs else None,
                **versions,
            }
            if with_ids:
                choice["token_ids"] = call.output[: -1 if self.forgets_ids else None]
            if self.breaks_whole:
                return await _half(request)
            call.ended = True
            top = {"prompt_token_ids": prompt} if with_ids else {}
            return web.json_response({"object": "chat.completion", "choices": [choice], "usage": usage, **top})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        sampled, call.output, logprobs = call.output, [], call.logprobs
        call.logprobs = []
        for number, token in enumerate(sampled):
            if number == self.break_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            call.output.append(token)
            call.logprobs.append(logprobs[number])
            last = number == len(sampled) - 1
            delta: dict[str, Any] = {
                "index": 0,
                "delta": {"content": chr(token)},
                "finish_reason": "length" if last else None,
            }
            delta["logprobs"] = {"content": _entries(call, number, number + 1)} if with_logprobs else None
            if with_ids:
                delta["token_ids"] = [token]
            event: dict[str, Any] = {
                "object": "chat.completion.chunk",
                "choices": [delta | (versions if last else {})],
            }
            if with_ids and number == 0:
                event["prompt_token_ids"] = prompt
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await asyncio.sleep(self.pause_s)
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        call.ended = True
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


async def _half(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "application/json", "content-length": "100"})
    await response.prepare(request)
    await response.write(b'{"choices":')
    await asyncio.sleep(0.05)
    assert request.transport is not None
    request.transport.abort()
    return response


def _entries(call: Logged, begin: int, end: int) -> list[dict[str, Any]]:
    return [
        {"token": chr(call.output[n]), "logprob": call.logprobs[n], "bytes": [call.output[n]], "top_logprobs": []}
        for n in range(begin, end)
    ]


@asynccontextmanager
async def running_token_engine() -> AsyncIterator[TokenEngine]:
    """Serve an engine on a free port. It is recognised as vLLM."""
    engine = TokenEngine()

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "tiny", "object": "model"}]})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text='vllm:cache_config_info{block_size="16",num_gpu_blocks="4096"} 1.0\n')

    async def messages(request: web.Request) -> web.Response:
        engine.bodies.append(await request.json())
        return web.json_response({"type": "message", "content": []})

    app = web.Application(client_max_size=1 << 26)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/metrics", metrics)
    app.router.add_post("/v1/chat/completions", engine.chat)
    app.router.add_post("/v1/messages", messages)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()
