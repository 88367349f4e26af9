"""A program's output in bounded memory: its beginning and its end are kept, the bytes between are counted."""

import os

_CHUNK = 64 << 10
_PIPEFUL = 1 << 20
"""No pipe holds more than this, so a last read ends even if a process continues to write."""


class OutputBuffer:
    """Keeps at most `limit` bytes: the first half from the beginning, the rest from the end."""

    def __init__(self, limit: int) -> None:
        self._most_head = (limit + 1) // 2
        self._most_tail = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.dropped = 0

    def add(self, data: bytes) -> None:
        room = self._most_head - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._most_tail + _CHUNK:  # rarely, so that much output costs little copying
            self._shorten()

    def _shorten(self) -> None:
        excess = max(len(self._tail) - self._most_tail, 0)
        del self._tail[:excess]
        self.dropped += excess

    def absorb(self, other: "OutputBuffer") -> None:
        """Add the contents of an earlier capture."""
        head, tail = other.halves()
        self.add(head)
        self.dropped += other.dropped
        self.add(tail)

    def halves(self) -> "tuple[bytes, bytes]":
        """Return the beginning and the end; `dropped` bytes between them are missing."""
        self._shorten()
        return bytes(self._head), bytes(self._tail)


class Pipe:
    """The read end of a program's output. It is read as bytes come; without a capture they are dropped."""

    def __init__(self, descriptor: int, capture: "OutputBuffer | None") -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.capture = capture

    def read(self) -> bool:
        """Read a chunk. Return False if the last writer is gone."""
        try:
            data = os.read(self.descriptor, _CHUNK)
        except BlockingIOError:
            return True
        if self.capture is not None:
            self.capture.add(data)
        return bool(data)

    def drain(self) -> None:
        """Read what is in the pipe now."""
        taken = 0
        while taken < _PIPEFUL and self.descriptor >= 0:
            try:
                data = os.read(self.descriptor, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                return
            taken += len(data)
            if self.capture is not None:
                self.capture.add(data)
