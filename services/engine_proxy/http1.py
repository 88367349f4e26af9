"""One HTTP/1.1 request, read strictly: what two readers could interpret differently is rejected.

Nothing is forwarded as received. The engine proxy writes its own request from the parsed one. A connection carries one
request, so a second one cannot hide behind the first.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

MOST_HEAD_BYTES = 32 * 1024
PIECE_BYTES = 64 * 1024
HEAD_S = 10.0
"""Time limit of the whole head. The caller is on the same host, on a unix socket."""
PIECE_S = 60.0
"""Time limit of the next bytes of a body."""

_REQUEST = re.compile(r"(GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|TRACE|CONNECT) (/[!-~]*) HTTP/1\.1", re.ASCII)
_FIELD = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([\t -~]*)", re.ASCII)
_LENGTH = re.compile(r"[0-9]{1,15}", re.ASCII)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")


class Rejected(Exception):
    """The engine proxy rejects a call with its own answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    """A request's first line and headers. Header names are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]

    @property
    def upgrades(self) -> bool:
        """True if it requests the connection itself, to stream both ways."""
        return self.headers.get("upgrade", "").lower() == "tcp"


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Read a request's head. None: the caller has gone without sending one.

    Raises:
        Rejected: it is late, too long, or not exactly HTTP/1.1.
    """
    try:
        async with asyncio.timeout(HEAD_S):
            lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise Rejected(400, "the request ends within its head") from None
    except asyncio.LimitOverrunError:
        raise Rejected(431, f"the head is longer than {MOST_HEAD_BYTES} bytes") from None
    except TimeoutError:
        raise Rejected(408, f"the head did not come in {HEAD_S:g} s") from None
    line = _REQUEST.fullmatch(lines[0])
    if line is None:
        raise Rejected(400, "the request line is not HTTP/1.1 with a path")
    return Head(line[1], line[2], _headers(lines[1:]))


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise Rejected(400, "a header line is not `name: value`")
        name = field[1].lower()
        if name in headers:
            raise Rejected(400, f"the header {name} comes twice")
        headers[name] = field[2].rstrip()
    coding = headers.get("transfer-encoding")
    if coding is not None and (coding.lower() != "chunked" or "content-length" in headers):
        raise Rejected(400, "a body has a content-length, or else it is chunked and nothing more")
    if not _LENGTH.fullmatch(headers.get("content-length", "0")):
        raise Rejected(400, "the content-length is not a number")
    return headers


async def read_body(reader: asyncio.StreamReader, headers: Mapping[str, str], most: int) -> AsyncIterator[bytes]:
    """Yield the body's bytes, for both kinds of framing.

    Raises:
        Rejected: it has more than `most` bytes, ends early, stalls, or its chunks are not plain.
    """
    try:
        if "transfer-encoding" in headers:
            left = most
            while size := await _chunk_size(reader):
                left -= size
                if left < 0:
                    raise Rejected(413, f"the body is larger than {most} bytes")
                async for piece in _exactly(reader, size):
                    yield piece
                await _expect(reader, b"\r\n")
            await _expect(reader, b"\r\n")
            return
        size = int(headers.get("content-length", "0"))
        if size > most:
            raise Rejected(413, f"the body is larger than {most} bytes")
        async for piece in _exactly(reader, size):
            yield piece
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise Rejected(400, "the body ends early") from None
    except TimeoutError:
        raise Rejected(408, f"nothing of the body came for {PIECE_S:g} s") from None


async def _chunk_size(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(PIECE_S):
        line = await reader.readuntil(b"\r\n")
    size = _CHUNK.fullmatch(line)
    if size is None:
        raise Rejected(400, "a chunk does not begin with its plain size")
    return int(size[1], 16)


async def _expect(reader: asyncio.StreamReader, wanted: bytes) -> None:
    async with asyncio.timeout(PIECE_S):
        found = await reader.readexactly(len(wanted))
    if found != wanted:
        raise Rejected(400, "a chunk is longer than its size, or trailers follow the body")


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size:
        async with asyncio.timeout(PIECE_S):
            piece = await reader.readexactly(min(size, PIECE_BYTES))
        size -= len(piece)
        yield piece


def request_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """Return the head of a request to the engine. With `Connection: close` its answer ends with the connection."""
    lines = [f"{method} {target} HTTP/1.1", "Host: engine", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("ascii")


def error_response(rejected: Rejected) -> bytes:
    """Return an answer in the format of the engine's own errors, which its clients show to people."""
    body = json.dumps({"message": str(rejected)}).encode() + b"\n"
    head = [f"HTTP/1.1 {rejected.status} Rejected", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "Connection: close", "", ""]).encode("ascii") + body
