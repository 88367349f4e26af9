"""Compressed answers: read, or refused at the limit of what they decompress to."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.quota_manager.outgoing.errors import BrokenAnswer
from shared.runtime.http_bodies import PIECE, read_body
from tests.services.quota_manager.outgoing.limited_calls import MEBIBYTE, called
from tests.services.quota_manager.outgoing.upstreams import answering, reply


def gigabyte(encoding: str) -> bytes:
    """Compressed zeros: one block that stands alone, a thousand times."""
    bits = {"gzip": 31, "deflate": 15, "raw": -15}[encoding]
    stream = zlib.compressobj(9, zlib.DEFLATED, bits)
    first = stream.compress(bytes(MEBIBYTE)) + stream.flush(zlib.Z_FULL_FLUSH)
    block = stream.compress(bytes(MEBIBYTE)) + stream.flush(zlib.Z_FULL_FLUSH)
    return first + block * 1023


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw"])
async def test_a_bomb_ends_at_the_limit(encoding: str) -> None:
    bomb = gigabyte(encoding)
    assert len(bomb) < 2 * MEBIBYTE
    header = f"content-encoding: {'gzip' if encoding == 'gzip' else 'deflate'}"
    before = resident_bytes()
    most = 0

    async def sample() -> None:
        nonlocal most
        while True:
            most = max(most, resident_bytes())
            await asyncio.sleep(0)

    sampling = asyncio.create_task(sample())
    tracemalloc.start()
    try:
        with pytest.raises(BrokenAnswer, match="larger than 4194304 bytes"):
            await called(answering(reply(200, bomb, header)), most_bytes=4 * MEBIBYTE)
        assert tracemalloc.get_traced_memory()[1] < 24 * MEBIBYTE
    finally:
        tracemalloc.stop()
        sampling.cancel()
    assert most - before < 48 * MEBIBYTE


async def test_a_bomb_is_a_bomb() -> None:
    """The stream of the test above is valid, and decompresses to what it says."""
    stream = zlib.decompressobj(31)
    assert stream.decompress(gigabyte("gzip"), 8 * MEBIBYTE) == bytes(8 * MEBIBYTE)


async def test_a_stream_that_decompresses_to_nothing_ends() -> None:
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    nothing = stream.flush(zlib.Z_FULL_FLUSH) * 400_000
    with pytest.raises(BrokenAnswer, match="larger"):
        await called(answering(reply(200, nothing, "content-encoding: deflate")), most_bytes=1000)


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "gzip, identity", "aes128gcm", "x" * 100])
async def test_another_encoding_is_refused(encoding: str) -> None:
    with pytest.raises(BrokenAnswer, match="content-encoding"):
        await called(answering(reply(200, gzip.compress(b"x", mtime=0), f"content-encoding: {encoding}")))


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (gzip.compress(b"text", mtime=0), "gzip"),
        (gzip.compress(b"text", mtime=0), "GZIP"),
        (gzip.compress(b"text", mtime=0), "x-gzip"),
        (zlib.compress(b"text"), "deflate"),
        (zlib.compress(b"text")[2:-4], "deflate"),
        (b"text", "identity"),
        (b"text", ""),
    ],
)
async def test_a_compressed_body_is_decompressed(body: bytes, encoding: str) -> None:
    answer = await called(answering(reply(200, body, f"content-encoding: {encoding}")))
    assert answer.body == b"text"


async def test_a_compressed_body_of_exactly_the_limit_is_read() -> None:
    body = gzip.compress(bytes(3 * MEBIBYTE))
    answer = await called(answering(reply(200, body, "content-encoding: gzip")), most_bytes=3 * MEBIBYTE)
    assert len(answer.body) == 3 * MEBIBYTE
    with pytest.raises(BrokenAnswer):
        await called(answering(reply(200, body, "content-encoding: gzip")), most_bytes=3 * MEBIBYTE - 1)


@pytest.mark.parametrize("size", range(PIECE - 2, PIECE + 260, 37))
@pytest.mark.parametrize("bits", [31, 15, -15])
async def test_content_that_the_decompressor_holds_is_read(size: int, bits: int) -> None:
    """A stream of zeros can be consumed to its last byte before its content is."""
    stream = zlib.compressobj(9, zlib.DEFLATED, bits)
    body = stream.compress(bytes(size)) + stream.flush()

    async def chunks() -> AsyncIterator[bytes]:
        yield body

    assert await read_body(chunks(), "gzip" if bits == 31 else "deflate", MEBIBYTE) == bytes(size)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (gzip.compress(b"text", mtime=0)[:-6], "cut off"),
        (b"no gzip at all", "not of its content-encoding"),
        (gzip.compress(b"text", mtime=0) + gzip.compress(b"more", mtime=0), "goes on"),
        (gzip.compress(b"text", mtime=0) + b"garbage", "goes on"),
    ],
)
async def test_a_damaged_body_is_refused(body: bytes, cause: str) -> None:
    with pytest.raises(BrokenAnswer, match=cause):
        await called(answering(reply(200, body, "content-encoding: gzip")))
