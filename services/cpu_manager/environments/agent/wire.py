"""Frames between the manager and an agent: lengths (two unsigned 32-bit, big-endian), a JSON object, raw bytes.

Requests: `{"id": n, "op": name, ...}`. Replies: `{"id": n, "ended_by": ..., "passed": ..., "reason": ...,
"wall_s": ..., "output": {...}, "parts": [[name, length], ...]}`, whose raw bytes are the parts one after the other.
"""

import json
import struct

HEAD = struct.Struct("!II")
MOST_HEADER = 16 << 20
"""Bytes of JSON: four thousand arguments of four kilobytes."""
MOST_BODY = 512 << 20


def pack(header: "dict[str, object]", body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return HEAD.pack(len(text), len(body)) + text + body


class Frames:
    """Assembles whole frames from received bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def take(self) -> "tuple[dict[str, object], bytes] | None":
        """Return the next whole frame, or None.

        Raises:
            ValueError: malformed frame; the connection is unusable from now on.
        """
        if len(self._buffer) < HEAD.size:
            return None
        header_size, body_size = HEAD.unpack_from(self._buffer)
        if header_size > MOST_HEADER or body_size > MOST_BODY:
            raise ValueError("a frame is larger than any may be")
        start = HEAD.size + header_size
        end = start + body_size
        if len(self._buffer) < end:
            return None
        header = json.loads(bytes(self._buffer[HEAD.size : start]).decode())
        body = bytes(self._buffer[start:end])
        del self._buffer[:end]
        return header, body
