"""What a program wrote, in bounded memory: its beginning and its end are kept, what lies between is counted."""

import os

_CHUNK = 64 << 10
_PIPEFUL = 1 << 20
"""No pipe holds more than this, so a last reading ends even when somebody goes on writing."""


class Capture:
    """Keeps at most `limit` bytes: the first half as they came first, the rest as they came last."""

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
        if len(self._tail) > 2 * self._most_tail + _CHUNK:  # seldom, so that a flood costs no copying
            self._shorten()

    def _shorten(self) -> None:
        excess = max(len(self._tail) - self._most_tail, 0)
        del self._tail[:excess]
        self.dropped += excess

    def absorb(self, other: "Capture") -> None:
        """Take over what an earlier one holds, as if it had come here."""
        head, tail = other.halves()
        self.add(head)
        self.dropped += other.dropped
        self.add(tail)

    def halves(self) -> "tuple[bytes, bytes]":
        """The beginning and the end; between them `dropped` bytes are missing."""
        self._shorten()
        return bytes(self._head), bytes(self._tail)


class Pipe:
    """The read end of what a program writes to. Read as it comes; after the end, drained into nothing."""

    def __init__(self, descriptor: int, capture: "Capture | None") -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.capture = capture

    def read(self) -> bool:
        """Take a chunk. False when the last writer is gone."""
        try:
            data = os.read(self.descriptor, _CHUNK)
        except BlockingIOError:
            return True
        if self.capture is not None:
            self.capture.add(data)
        return bool(data)

    def drain(self) -> None:
        """Take what is there now."""
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
