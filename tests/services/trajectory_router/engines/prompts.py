"""Prompts of the test front: a chat template for a base model, in token ids.

Each message is tokenised on its own. So prompt(t+1) begins with prompt(t) and output(t) if and only if the text of
output(t) is tokenised as it was sampled, and as the client returns it.
"""

from __future__ import annotations

from typing import Any, Final

import aiohttp
import msgspec

BOS: Final = 2
END_OF_TURN: Final = 106
"""Gemma's `<end_of_turn>`. llama.cpp ends an answer with it, and the template ends an assistant's message with it."""

TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "maxLength": 8}},
            "required": ["command"],
            "additionalProperties": False,
        },
    },
}
"""A tool whose calls are short."""

_compact = msgspec.json.Encoder().encode


class Tokenizer:
    """The engine's tokeniser, over HTTP. Texts are tokenised once."""

    def __init__(self, engine: aiohttp.ClientSession) -> None:
        self._engine = engine
        self._known: dict[str, list[int]] = {}
        self._texts: dict[int, str] = {}

    async def ids(self, text: str) -> list[int]:
        """Return the ids of a text. Names of special tokens in it are plain text."""
        if text not in self._known:
            body = {"content": text, "add_special": False, "parse_special": False}
            async with self._engine.post("/tokenize", json=body) as response:
                self._known[text] = (await response.json())["tokens"]
        return self._known[text]

    async def text(self, id_: int) -> str:
        """Return the text of one token."""
        if id_ not in self._texts:
            async with self._engine.post("/detokenize", json={"tokens": [id_]}) as response:
                self._texts[id_] = (await response.json())["content"]
        return self._texts[id_]

    async def of_chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[int]:
        """Return the prompt of a chat: `<bos>`, tools as text, messages, and the beginning of the next answer."""
        ids = [BOS]
        if tools:
            described = "\n".join(_compact(tool.get("function", tool)).decode() for tool in tools)
            ids += await self.ids(f"tools:\n{described}\n")
        for message in messages:
            role, text = str(message["role"]), message_text(message)
            if role == "assistant":
                ids += [*await self.ids("assistant:"), *await self.ids(text), END_OF_TURN, *await self.ids("\n")]
            else:
                ids += await self.ids(f"{role}: {text}\n")
        return [*ids, *await self.ids("assistant:")]


def message_text(message: dict[str, Any]) -> str:
    """Return a message's content and tool calls as text. Arguments are encoded again, as real templates do."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    for call in message.get("tool_calls") or ():
        function = call["function"]
        content += tool_call_text(function["name"], msgspec.json.decode(function["arguments"]))
    return str(content)


def tool_call_text(name: str, arguments: Any) -> str:
    """Return the text of a tool call in a prompt."""
    return _compact({"name": name, "arguments": arguments}).decode()


def tool_schema(tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON schema of a call of one of these tools."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "arguments": tool["function"].get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}
