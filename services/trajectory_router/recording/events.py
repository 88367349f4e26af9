"""Server-sent events of one stream, cut anywhere. Events that nothing changes keep their bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

MOST_EVENT: Final = 64 << 20
"""Bytes of one event: the ids of a prompt of millions of tokens."""
_END: Final = re.compile(rb"\r?\n\r?\n")
_OVERLAP: Final = 3
"""Bytes of an end that may have arrived before."""


class TooLong(Exception):
    """An event has more than `MOST_EVENT` bytes."""


class Event(NamedTuple):
    """One event."""

    raw: bytes
    """With its blank line."""
    data: bytes
    """Its data; empty: a comment."""

    def with_data(self, data: bytes) -> bytes:
        """Return its bytes with other data, of one line."""
        others = [line for line in self.raw.splitlines() if line and not line.startswith(b"data:")]
        return b"\n".join([*others, b"data: " + data]) + b"\n\n"


class EventSplitter:
    """Splits the bytes of a stream. O(bytes)."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> Iterator[Event]:
        """Take bytes and yield the events that they complete.

        Raises:
            TooLong: an event has no end.
        """
        self._rest += data
        begin = 0
        while (found := _END.search(self._rest, max(begin, self._searched))) is not None:
            raw = bytes(self._rest[begin : found.end()])
            begin = self._searched = found.end()
            yield Event(raw, _data(raw))
        del self._rest[:begin]
        self._searched = max(0, len(self._rest) - _OVERLAP)
        if len(self._rest) > MOST_EVENT:
            raise TooLong(f"an event has more than {MOST_EVENT} bytes")

    def rest(self) -> bytes:
        """Return bytes after the last event."""
        return bytes(self._rest)


def _data(raw: bytes) -> bytes:
    lines = [line[5:].removeprefix(b" ") for line in raw.splitlines() if line.startswith(b"data:")]
    return lines[0] if len(lines) == 1 else b"\n".join(lines)
