"""A whole answer from a streamed one: for engines that abort streamed calls only.

llama.cpp runs an unstreamed call of a client that has gone to its end. So the router streams from it for every caller,
and assembles the answer that the caller asked for. It also sees progress then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from services.trajectory_router.assembled_answers import (
    ChoicesAnswer,
    MessageAnswer,
    ResponseAnswer,
    Unassembled,
    WholeAnswer,
)

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
ASSEMBLED: Final[dict[str, Callable[[], WholeAnswer]]] = {
    CHAT: ChoicesAnswer,
    COMPLETIONS: ChoicesAnswer,
    "/v1/messages": MessageAnswer,
    "/v1/responses": ResponseAnswer,
}
"""Routes whose answers can be assembled."""
MOST_EVENT: Final = 16 << 20
"""Bytes of one event."""

_decode = msgspec.json.decode
_encode = msgspec.json.encode


def streamed(body: bytes, path: str) -> bytes:
    """Return the body of a call with `stream`, for the same answer in events."""
    fields: dict[str, Any] = {**_decode(body), "stream": True}
    if path in (CHAT, COMPLETIONS):
        options = fields.get("stream_options")
        given = options if isinstance(options, dict) else {}
        fields["stream_options"] = {**given, "include_usage": True}
    return _encode(fields)


class Assembly:
    """Events of one answer, put together. `feed` bytes as they arrive; `whole` at the end."""

    def __init__(self, path: str = CHAT) -> None:
        self._rest = b""
        self._answer = ASSEMBLED[path]()

    def feed(self, data: bytes) -> None:
        """Take bytes of the stream, cut anywhere.

        Raises:
            Unassembled: they are no events of this route.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MOST_EVENT:
            raise Unassembled(f"an event has more than {MOST_EVENT} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._answer.done()
            return
        try:
            event = _decode(data)
        except msgspec.DecodeError as error:
            raise Unassembled(f"an event is not JSON: {error}") from error
        if not isinstance(event, dict) or "error" in event:
            raise Unassembled(f"the engine reports: {data[:500].decode('utf-8', 'replace')}")
        self._answer.event(event)

    def whole(self) -> bytes:
        """Return the JSON of the whole answer.

        Raises:
            Unassembled: the stream has ended before its end.
        """
        return _encode(self._answer.fields())
