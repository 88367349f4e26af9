"""Anthropic's and OpenAI's newer routes of the scripted engine, as claude-code and codex call them: streamed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import web

from treadle.testing.scripted_engine import DONE, MODEL, ScriptedEngine, arguments, stream

USAGE: Final = {"input_tokens": 10, "output_tokens": 10}
SHELLS: Final = ("Bash", "shell", "shell_command", "exec_command")
"""Tools of agents that execute a command."""


async def messages(engine: ScriptedEngine, request: web.Request) -> web.StreamResponse:
    """Answer `POST /v1/messages`."""
    body: dict[str, Any] = await request.json()
    uses = [part for one in body["messages"] for part in _parts(one) if part.get("type") == "tool_use"]
    command, tool = engine.command(len(uses)), _shell(body.get("tools") or [])
    start: dict[str, Any] = {
        "id": f"msg_{len(uses)}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
    }
    start |= {"stop_reason": None, "stop_sequence": None, "usage": USAGE}
    if command is None or tool is None:
        block: dict[str, Any]
        block, delta, reason = {"type": "text", "text": ""}, {"type": "text_delta", "text": DONE}, "end_turn"
    else:
        block = {"type": "tool_use", "id": f"toolu_{len(uses)}", "name": tool["name"], "input": {}}
        text = json.dumps(arguments(tool, command) | {"description": "the next step"})
        delta, reason = {"type": "input_json_delta", "partial_json": text}, "tool_use"
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": USAGE},
        {"type": "message_stop"},
    ]
    return await _named(request, events)


async def responses(engine: ScriptedEngine, request: web.Request) -> web.StreamResponse:
    """Answer `POST /v1/responses`."""
    body: dict[str, Any] = await request.json()
    turns = sum(item.get("type") == "function_call" for item in body["input"])
    command, tool = engine.command(turns), _shell(body.get("tools") or [])
    if command is None or tool is None:
        content = [{"type": "output_text", "text": DONE, "annotations": []}]
        item: dict[str, Any] = {"type": "message", "id": f"msg_{turns}", "role": "assistant", "content": content}
    else:
        text = json.dumps(arguments(tool, command))
        item = {"type": "function_call", "id": f"fc_{turns}", "call_id": f"call_{turns}", "name": tool["name"]}
        item["arguments"] = text
    response = {"id": f"resp_{turns}", "object": "response", "model": MODEL, "status": "in_progress", "output": []}
    usage = {**USAGE, "total_tokens": 20, "input_tokens_details": {"cached_tokens": 0}}
    usage["output_tokens_details"] = {"reasoning_tokens": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {
            "type": "response.completed",
            "response": response | {"status": "completed", "output": [item], "usage": usage},
        },
    ]
    return await _named(request, events)


ROUTES: Final[Mapping[str, Callable[[ScriptedEngine, web.Request], Awaitable[web.StreamResponse]]]] = {
    "/v1/messages": messages,
    "/v1/responses": responses,
}


def _shell(tools: list[dict[str, Any]]) -> dict[str, Any] | None:
    return next((tool for tool in tools if tool.get("name") in SHELLS), None)


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else []


async def _named(request: web.Request, events: list[dict[str, Any]]) -> web.StreamResponse:
    return await stream(request, [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events])
