"""An inference engine without a model: it calls an agent's shell tool with the commands of a script, one a turn.

It has vLLM's chat route with ids (`return_token_ids`), so that what it has sampled can be compared with the record of a
router. A token is a byte; further ids mark the beginning and the end of a message. The same messages give the same
answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

MODEL: Final = "scripted"
END: Final = 256
"""Id of the end of a message."""
_ROLES: Final = {"system": 257, "developer": 257, "user": 258, "assistant": 259, "tool": 260}
_COMMAND_FIELDS: Final = ("command", "cmd")
DONE: Final = "Done."
"""Text of the answer after the last command."""
_MOST_BODY_BYTES: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class SampledCall:
    """One call, as the engine knows it."""

    prompt: list[int]
    output: list[int]
    logprobs: list[float]


@dataclass(slots=True)
class ScriptedEngine:
    """What one engine answers, and has answered."""

    script: Sequence[str]
    """Shell commands, one a turn."""
    seconds: float = 0.0
    """Duration of an answer."""
    url: str = ""
    log: list[SampledCall] = field(default_factory=list)
    """Calls of the chat route, in the order of their arrival."""

    def command(self, turns: int) -> str | None:
        """Return the command after this number of turns; None: the script has ended."""
        return self.script[turns] if turns < len(self.script) else None

    def message(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the next message to an agent."""
        turns = sum(bool(one.get("tool_calls")) for one in body["messages"])
        command, tools = self.command(turns), [tool["function"] for tool in body.get("tools") or ()]
        if command is None or not tools:
            return {"role": "assistant", "content": DONE}
        function = {"name": tools[0]["name"], "arguments": json.dumps(arguments(tools[0], command))}
        call = {"id": f"call_{turns}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer `POST /v1/chat/completions`, streamed or not."""
        body: dict[str, Any] = await request.json()
        message = self.message(body)
        prompt = [id_ for one in body["messages"] for id_ in _ids(one)] + [_ROLES["assistant"]]
        output = [*_text(message).encode(), END]
        drawn = random.Random(len(prompt))
        call = SampledCall(prompt, output, [-round(drawn.random(), 6) for _ in output])
        self.log.append(call)
        await asyncio.sleep(self.seconds)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "tool_calls" if message.get("tool_calls") else "stop"}
        if body.get("logprobs"):
            choice["logprobs"] = {"content": _logprobs(call)}
        if body.get("return_token_ids"):
            choice["token_ids"] = output
        if body.get("return_weight_versions"):
            choice["weight_versions"] = [{"version": "1", "start": 0, "end": len(output)}]
        top: dict[str, Any] = {"id": f"chatcmpl-{len(self.log)}", "created": 0, "model": MODEL}
        if body.get("return_token_ids"):
            top["prompt_token_ids"] = prompt
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(output)}
        usage["total_tokens"] = len(prompt) + len(output)
        if not body.get("stream"):
            choices = [choice | {"message": message}]
            return web.json_response({**top, "object": "chat.completion", "choices": choices, "usage": usage})
        delta = message | {"content": message["content"] or ""}
        if message.get("tool_calls"):
            delta["tool_calls"] = [one | {"index": 0} for one in message["tool_calls"]]
        events = [{**top, "object": "chat.completion.chunk", "choices": [choice | {"delta": delta}]}]
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append({**top, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        return await stream(request, [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"])


def arguments(tool: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Return the arguments with which this tool executes a shell command."""
    schema = tool.get("parameters") or tool.get("input_schema") or {}
    name = next((name for name in _COMMAND_FIELDS if name in schema.get("properties", {})), _COMMAND_FIELDS[0])
    listed = schema.get("properties", {}).get(name, {}).get("type") == "array"
    return {name: ["bash", "-c", command] if listed else command}


def _text(message: Mapping[str, Any]) -> str:
    """Text of a message, with its tool calls."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    calls = [one["function"] for one in message.get("tool_calls") or ()]
    return text + "".join(f"<{call['name']} {call['arguments']}>" for call in calls)


def _ids(message: Mapping[str, Any]) -> list[int]:
    return [_ROLES[message["role"]], *_text(message).encode(), END]


def _logprobs(call: SampledCall) -> list[dict[str, Any]]:
    return [
        {
            "token": chr(id_) if id_ < END else "",
            "logprob": logprob,
            "bytes": [id_] if id_ < END else [],
            "top_logprobs": [],
        }
        for id_, logprob in zip(call.output, call.logprobs, strict=True)
    ]


async def stream(request: web.Request, events: Sequence[str]) -> web.StreamResponse:
    """Answer with server-sent events."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(event.encode())
    await response.write_eof()
    return response


@asynccontextmanager
async def running_scripted_engine(
    script: Sequence[str], *, seconds: float = 0.0, routes: Mapping[str, Any] | None = None
) -> AsyncIterator[ScriptedEngine]:
    """Serve an engine on a free port of this machine. A router recognises it as vLLM.

    Args:
        script: shell commands, one a turn.
        seconds: duration of an answer.
        routes: further routes: path -> handler of a POST, called with the engine and the request.
    """
    engine = ScriptedEngine(script, seconds)

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text='vllm:cache_config_info{block_size="16",num_gpu_blocks="65536"} 1.0\n')

    async def other(request: web.Request) -> web.StreamResponse:
        assert routes is not None
        answer: web.StreamResponse = await routes[request.path](engine, request)
        return answer

    app = web.Application(client_max_size=_MOST_BODY_BYTES)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/metrics", metrics)
    app.router.add_post("/v1/chat/completions", engine.chat)
    for path in routes or ():
        app.router.add_post(path, other)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener).start()
    engine.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()
