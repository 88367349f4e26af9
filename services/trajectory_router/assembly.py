"""A whole answer from a streamed one: for engines that abort streamed calls only.

llama.cpp runs an unstreamed call of a client that has gone to its end. So the router streams from it for every caller,
and assembles the answer that the caller asked for. It also sees progress then.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

ASSEMBLED: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Routes whose answers can be assembled."""
MOST_EVENT: Final = 16 << 20
"""Bytes of one event."""

_decode = msgspec.json.decode
_encode = msgspec.json.encode


class Unassembled(Exception):
    """The stream is not one of these routes, or it has ended early."""


def streamed(body: bytes) -> bytes:
    """Return the body of a call with `stream`, for the same answer in events."""
    fields: dict[str, Any] = _decode(body)
    options = fields.get("stream_options")
    given = options if isinstance(options, dict) else {}
    return _encode({**fields, "stream": True, "stream_options": {**given, "include_usage": True}})


class Assembly:
    """Events of one answer, put together. `feed` bytes as they arrive; `whole` at the end."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._done = False

    def feed(self, data: bytes) -> None:
        """Take bytes of the stream, cut anywhere.

        Raises:
            Unassembled: they are no events of these routes.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MOST_EVENT:
            raise Unassembled(f"an event has more than {MOST_EVENT} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        try:
            event = _decode(data)
        except msgspec.DecodeError as error:
            raise Unassembled(f"an event is not JSON: {error}") from error
        if not isinstance(event, dict) or "error" in event:
            raise Unassembled(f"the engine reports: {data[:500].decode('utf-8', 'replace')}")
        for choice in event.pop("choices", None) or ():
            self._choice(choice)
        self._fields |= {name: value for name, value in event.items() if value is not None}

    def _choice(self, choice: dict[str, Any]) -> None:
        known = self._choices.setdefault(choice.get("index", 0), {"index": choice.get("index", 0)})
        delta = choice.pop("delta", None)
        if isinstance(delta, dict):
            _merge(known.setdefault("message", {}), delta)
        for name, value in choice.items():
            if name == "text":
                known["text"] = known.get("text", "") + (value or "")
            elif name == "logprobs" and isinstance(value, dict):
                _extend(known.setdefault("logprobs", {}), value)
            elif value is not None or name not in known:
                known[name] = value

    def whole(self) -> bytes:
        """Return the JSON of the whole answer.

        Raises:
            Unassembled: the stream has ended before its end.
        """
        if not self._done:
            raise Unassembled("the stream has ended early")
        kind = self._fields.get("object")
        fields = {**self._fields, "object": "chat.completion" if kind == "chat.completion.chunk" else kind}
        for choice in self._choices.values():
            message = choice.get("message")
            if isinstance(message, dict):
                message.setdefault("role", "assistant")
                message.setdefault("content", None)
        return _encode({**fields, "choices": [self._choices[index] for index in sorted(self._choices)]})


def _merge(message: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add a delta to a message: texts are appended, tool calls by their index."""
    for name, value in delta.items():
        if name == "tool_calls":
            calls = message.setdefault("tool_calls", [])
            for call in value or ():
                index = call.get("index", 0)
                while len(calls) <= index:
                    calls.append({"function": {"arguments": ""}})
                _merge_call(calls[index], call)
        elif isinstance(value, str) and name != "role":
            message[name] = (message.get(name) or "") + value
        elif value is not None:
            message[name] = value


def _merge_call(known: dict[str, Any], call: dict[str, Any]) -> None:
    for name, value in call.items():
        if name == "function":
            for part, text in (value or {}).items():
                known["function"][part] = (known["function"].get(part) or "") + (text or "")
        elif name != "index" and value is not None:
            known[name] = value


def _extend(known: dict[str, Any], more: dict[str, Any]) -> None:
    """Append lists of log-probabilities, of either route."""
    for name, value in more.items():
        if isinstance(value, list):
            known.setdefault(name, []).extend(value)
        elif name not in known:
            known[name] = value
