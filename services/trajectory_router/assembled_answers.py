"""Whole answers of the routes of models, from the events of their streams. `Unassembled`: the events are not theirs."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec


class Unassembled(Exception):
    """The stream is not one of these routes, or it has ended early."""


class WholeAnswer(Protocol):
    """One answer that is put together."""

    def event(self, event: dict[str, Any]) -> None:
        """Take the next event."""
        ...

    def done(self) -> None:
        """Take the mark `[DONE]`."""
        ...

    def fields(self) -> dict[str, Any]:
        """Return the whole answer.

        Raises:
            Unassembled: the stream has ended before its end.
        """
        ...


class ChoicesAnswer:
    """Chat and completions: choices by their index, ended by `[DONE]`."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._done = False

    def done(self) -> None:
        self._done = True

    def event(self, event: dict[str, Any]) -> None:
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

    def fields(self) -> dict[str, Any]:
        if not self._done:
            raise Unassembled("the stream has ended early")
        kind = self._fields.get("object")
        fields = {**self._fields, "object": "chat.completion" if kind == "chat.completion.chunk" else kind}
        for choice in self._choices.values():
            message = choice.get("message")
            if isinstance(message, dict):
                message.setdefault("role", "assistant")
                message.setdefault("content", None)
        return {**fields, "choices": [self._choices[index] for index in sorted(self._choices)]}


class MessageAnswer:
    """Anthropic's messages: blocks by their index, ended by `message_stop`."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}
        """Index of a tool's block -> its input so far, as text."""
        self._stopped = False

    def done(self) -> None:
        """Not a mark of this route."""

    def event(self, event: dict[str, Any]) -> None:
        match event:
            case {"type": "message_start", "message": dict(message)}:
                self._message = message
            case {"type": "content_block_start", "index": int(index), "content_block": dict(block)}:
                self._blocks[index] = block
            case {"type": "content_block_delta", "index": int(index), "delta": dict(delta)}:
                self._delta(index, delta)
            case {"type": "message_delta", "delta": dict(delta)}:
                usage = {**(self._message.get("usage") or {}), **(event.get("usage") or {})}
                self._message |= {**delta, "usage": usage}
            case {"type": "message_stop"}:
                self._stopped = True

    def _delta(self, index: int, delta: dict[str, Any]) -> None:
        if index not in self._blocks:
            raise Unassembled(f"block {index} has not begun")
        block = self._blocks[index]
        for name, value in delta.items():
            if name == "partial_json" and isinstance(value, str):
                self._inputs[index] = self._inputs.get(index, "") + value
            elif name != "type" and isinstance(value, str):
                block[name] = (block.get(name) or "") + value

    def fields(self) -> dict[str, Any]:
        if not self._stopped:
            raise Unassembled("the stream has ended early")
        for index, text in self._inputs.items():
            self._blocks[index]["input"] = _input(text)
        return {**self._message, "content": [self._blocks[index] for index in sorted(self._blocks)]}


class ResponseAnswer:
    """OpenAI's responses: the last event has all of it."""

    def __init__(self) -> None:
        self._response: dict[str, Any] | None = None

    def done(self) -> None:
        """Not a mark of this route."""

    def event(self, event: dict[str, Any]) -> None:
        if event.get("type") in ("response.completed", "response.incomplete", "response.failed"):
            response = event.get("response")
            self._response = response if isinstance(response, dict) else None

    def fields(self) -> dict[str, Any]:
        if self._response is None:
            raise Unassembled("the stream has ended early")
        return self._response


def _input(text: str) -> Any:
    try:
        return msgspec.json.decode(text) if text else {}
    except msgspec.DecodeError as error:
        raise Unassembled(f"the input of a tool is not JSON: {error}") from error


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
