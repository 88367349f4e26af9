"""Bodies of HTTP answers, decompressed here so that their size is bounded in every version of the HTTP library.

Laws:
  - at most `most_bytes` + `PIECE` decompressed bytes are in memory, whatever was compressed;
  - at most `most_bytes` + `SLACK` bytes are received, so a stream that decompresses to nothing ends as well.

Encodings: `gzip` and `deflate` (zlib or raw), one member. Others are refused, because the request asks for none.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from typing import Final

PIECE: Final = 1 << 16
"""Bytes that are decompressed at once. Other calls run between two pieces."""
SLACK: Final = 1 << 16
"""Bytes that a compressed body may be larger than its content: headers, and content that does not compress."""
UNCOUNTED: Final = 1 << 16
"""Bytes of a body that need no share of the memory for bodies."""
ACCEPTED: Final = "gzip, deflate"
"""Value of `Accept-Encoding`."""


class UnreadableBody(Exception):
    """The body is cut, too large or not of its encoding. The text names the cause, and nothing of the content."""


async def read_body(
    chunks: AsyncIterable[bytes], encoding: str, most_bytes: int, room: Callable[[], Awaitable[None]] | None = None
) -> bytes:
    """Return a body, decompressed. O(size).

    Args:
        encoding: value of `Content-Encoding`; empty: none.
        most_bytes: limit of the decompressed body.
        room: waits for memory; called once, before more than `UNCOUNTED` bytes are kept.
    Raises:
        UnreadableBody: see there.
    """
    inflating = None
    body = bytearray()
    received = 0
    async for chunk in chunks:
        if not received:  # not earlier: an answer to HEAD has an encoding, and no body
            inflating = _inflating(encoding)
        received += len(chunk)
        if received > most_bytes + (SLACK if inflating else 0):
            raise _too_large(most_bytes)
        for piece in (chunk,) if inflating is None else inflating.pieces(chunk):
            if room is not None and len(body) + len(piece) > UNCOUNTED:
                await room()
                room = None
            body += piece
            if len(body) > most_bytes:
                raise _too_large(most_bytes)
            if inflating is not None:
                await asyncio.sleep(0)
    if inflating is not None and received:
        inflating.finish()
    return bytes(body)


class _Inflating:
    """One compressed stream."""

    def __init__(self, *, gzip: bool) -> None:
        self._stream = zlib.decompressobj(16 + zlib.MAX_WBITS) if gzip else None

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what `data` decompresses to, at most `PIECE` bytes at a time."""
        if not data:
            return
        if self._stream is None:  # RFC 9110 means zlib by deflate; some servers send the raw stream
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if data[0] & 0x0F == 8 else -zlib.MAX_WBITS)
        while True:
            try:
                piece = self._stream.decompress(data, PIECE)
            except zlib.error:
                raise UnreadableBody("the body is not of its content-encoding") from None
            if self._stream.unused_data:
                raise UnreadableBody("the body goes on after the end of its compressed content")
            left = self._stream.unconsumed_tail
            if piece:
                yield piece
            elif data and len(left) == len(data):
                raise UnreadableBody("the body is not of its content-encoding")
            if not left and len(piece) < PIECE:  # else more content may be held although all input is consumed
                return
            data = left

    def finish(self) -> None:
        """Check that the stream has ended.

        Raises:
            UnreadableBody: it has not.
        """
        if self._stream is None or not self._stream.eof:
            raise UnreadableBody("the body is cut off")


def _inflating(encoding: str) -> _Inflating | None:
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name in ("gzip", "x-gzip", "deflate"):
        return _Inflating(gzip=name != "deflate")
    raise UnreadableBody(f"the body has a content-encoding that was not asked for; only {ACCEPTED} can be read")


def _too_large(most_bytes: int) -> UnreadableBody:
    return UnreadableBody(f"the body is larger than {most_bytes} bytes")
