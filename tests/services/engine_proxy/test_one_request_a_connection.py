"""Framing: one request per connection, and nothing hidden behind, inside or between its lines."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.services.engine_proxy.scripted_engine import EXEC_OF_OURS, OURS, PATIENCE_S, ProxyUnderTest

SECOND = b"POST /v1.41/containers/create HTTP/1.1\r\nHost: engine\r\nContent-Length: 0\r\n\r\n"
START = f"/v1.41/exec/{EXEC_OF_OURS}/start".encode()
ARCHIVE = f"/v1.41/containers/{OURS}/archive?path=/tmp".encode()

MALFORMED_HEADS = [
    b"GET /_ping HTTP/1.0\r\n\r\n",
    b"GET /_ping HTTP/2.0\r\n\r\n",
    b"GET /_ping\r\n\r\n",
    b"GET  /_ping HTTP/1.1\r\n\r\n",
    b"GET /_ping HTTP/1.1 \r\n\r\n",
    b"get /_ping HTTP/1.1\r\n\r\n",
    b"GET http://engine/_ping HTTP/1.1\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\n\r\n",
    b"GET /_ping\n HTTP/1.1\r\n\r\n",
    b"\r\nGET /_ping HTTP/1.1\r\n\r\n",
    b"GET /_ping HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET /_ping HTTP/1.1\r\nHost : a\r\n\r\n",
    b"GET /_ping HTTP/1.1\r\nA: b\r\n folded: x\r\n\r\n",
    b"GET /_ping HTTP/1.1\r\nA: b\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /_ping HTTP/1.1\r\nA: \xff\r\n\r\n",
    b"GET /_ping HTTP/1.1\r\nA: \x00\r\n\r\n",
    b"GET /_ping HTTP/1.1\r\n: b\r\n\r\n",
    b"POST /_ping HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 0\r\n\r\n{}",
    b"POST /_ping HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /_ping HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    b"POST /_ping HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"POST /_ping HTTP/1.1\r\nContent-Length: +2\r\n\r\n{}",
    b"POST /_ping HTTP/1.1\r\nContent-Length: 0x2\r\n\r\n{}",
    b"POST /_ping HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"POST /_ping HTTP/1.1\r\nContent-Length: 2, 2\r\n\r\n{}",
    b"GET /_ping HTTP/1.1\r\nA: " + b"x" * 70_000 + b"\r\n\r\n",
]

MALFORMED_CHUNKS = [
    b"2;name=value\r\n{}\r\n0\r\n\r\n",
    b"2 \r\n{}\r\n0\r\n\r\n",
    b"0x2\r\n{}\r\n0\r\n\r\n",
    b"-2\r\n{}\r\n0\r\n\r\n",
    b"\r\n{}\r\n0\r\n\r\n",
    b"1\r\n{}\r\n0\r\n\r\n",
    b"2\r\n{}0\r\n\r\n",
    b"2\n{}\n0\n\n" + b"x" * 70_000,
    b"2\r\n{}\r\n0\r\nTrailer: x\r\n\r\n",
    b"FFFFFFFFF\r\n",
]


@pytest.mark.parametrize("sent", MALFORMED_HEADS)
async def test_malformed_heads_are_rejected(proxy: ProxyUnderTest, sent: bytes) -> None:
    answer = await proxy.send(sent)
    assert answer.split(b" ")[1] in {b"400", b"431"}
    assert proxy.engine.received == []


@pytest.mark.parametrize("chunks", MALFORMED_CHUNKS)
async def test_malformed_chunks_are_rejected(proxy: ProxyUnderTest, chunks: bytes) -> None:
    head = f"POST /v1.41/containers/{OURS}/start HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await proxy.send(head.encode() + chunks)).split(b" ")[1] == b"400"
    assert proxy.engine.received == []


async def test_plain_chunks_are_read(proxy: ProxyUnderTest) -> None:
    head = f"POST /v1.41/containers/{OURS}/update HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await proxy.send(head.encode() + b'f\r\n{"CpusetCpus":"\r\n3\r\n1"}\r\n0\r\n\r\n')
    assert answer.endswith(b"\r\n\r\nok")
    (forwarded,) = proxy.engine.received
    assert forwarded.endswith(b'\r\n\r\n{"CpusetCpus":"1"}')


async def test_a_pipelined_second_request_is_not_forwarded(proxy: ProxyUnderTest) -> None:
    for first in (b"GET /_ping HTTP/1.1\r\n\r\n", b"GET /_ping HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"):
        answer = await proxy.send(first + SECOND)
        assert answer.count(b"HTTP/1.1") == 1
        assert answer.startswith(b"HTTP/1.1 200 ")
    assert len(proxy.engine.received) == 2
    assert not any(b"create" in forwarded for forwarded in proxy.engine.received)


async def test_headers_of_the_caller_go_no_further(proxy: ProxyUnderTest) -> None:
    sent = b"GET /_ping HTTP/1.1\r\nHost: x\r\nX-Registry-Auth: eyJ9\r\nConnection: keep-alive\r\nUpgrade: h2c\r\n\r\n"
    assert (await proxy.send(sent)).startswith(b"HTTP/1.1 200 ")
    assert proxy.engine.received == [
        b"GET /_ping HTTP/1.1\r\nHost: engine\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    ]


async def test_only_calls_that_stream_may_ask_for_the_connection(proxy: ProxyUnderTest) -> None:
    sent = f"POST /v1.41/containers/{OURS}/start HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n".encode()
    assert (await proxy.send(sent + SECOND)).startswith(b"HTTP/1.1 200 ")
    (forwarded,) = proxy.engine.received
    assert b"Upgrade" not in forwarded
    assert b"create" not in forwarded


async def test_streams_both_ways_after_the_engine_has_switched_protocols(proxy: ProxyUnderTest) -> None:
    reader, writer = await asyncio.open_unix_connection(proxy.socket)
    async with asyncio.timeout(PATIENCE_S):
        body = b'{"Detach":false,"Tty":false}'
        head = b"POST %b HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (START, len(body)) + body + b"early ")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        assert await reader.readexactly(6) == b"EARLY "
        writer.write(b"and late")
        writer.write_eof()
        assert await reader.read() == b"AND LATE"
    writer.close()


async def test_nothing_is_streamed_unless_the_engine_has_switched_protocols(proxy: ProxyUnderTest) -> None:
    """The engine answers 409 for an exec that cannot start, and continues to read requests."""
    proxy.engine.upgrades = False
    sent = b"POST %b HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 2\r\n\r\n{}" % START
    reader, writer = await asyncio.open_unix_connection(proxy.socket)
    async with asyncio.timeout(PATIENCE_S):
        writer.write(sent + SECOND)
        assert (await reader.readuntil(b"busy")).startswith(b"HTTP/1.1 409 ")
        writer.write(SECOND)
        writer.write_eof()
        assert await reader.read() == b""
    writer.close()
    (forwarded,) = proxy.engine.received
    assert b"create" not in forwarded


async def test_an_archive_goes_through_in_pieces_and_has_a_bound(proxy: ProxyUnderTest) -> None:
    archive = bytes(range(256)) * 1024
    head = b"PUT %b HTTP/1.1\r\nContent-Length: %d\r\nContent-Type: application/json\r\n\r\n"
    assert (await proxy.send(head % (ARCHIVE, len(archive)) + archive)).startswith(b"HTTP/1.1 200 ")
    (forwarded,) = proxy.engine.received
    assert b"Content-Type: application/x-tar\r\nTransfer-Encoding: chunked\r\n" in forwarded
    assert _unchunked(forwarded.partition(b"\r\n\r\n")[2]) == archive

    answer = await proxy.send(head % (ARCHIVE, 2 << 20) + b"x" * 100)
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_a_caller_that_only_stops_sending_gets_its_answer(proxy: ProxyUnderTest) -> None:
    reader, writer = await asyncio.open_unix_connection(proxy.socket)
    writer.write(f"POST /v1.41/containers/{OURS}/start HTTP/1.1\r\n\r\n".encode())
    writer.write_eof()
    async with asyncio.timeout(PATIENCE_S):
        assert (await reader.read()).endswith(b"\r\n\r\nok")
    writer.close()


async def test_the_engines_connection_is_closed_when_the_caller_has_gone(proxy: ProxyUnderTest) -> None:
    _, writer = await asyncio.open_unix_connection(proxy.socket)
    writer.write(f"POST /v1.41/containers/{OURS}/wait HTTP/1.1\r\n\r\n".encode())
    async with asyncio.timeout(PATIENCE_S):
        await proxy.engine.waiting.wait()
        assert not proxy.engine.released.is_set()
        writer.close()
        await proxy.engine.released.wait()


async def test_callers_that_leave_early_leave_nothing(proxy: ProxyUnderTest) -> None:
    for sent in (b"", b"GET /_pi", b"PUT %b HTTP/1.1\r\nContent-Length: 100\r\n\r\nabc" % ARCHIVE):
        reader, writer = await asyncio.open_unix_connection(proxy.socket)
        writer.write(sent)
        writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            await reader.read()
        writer.close()
    assert (await proxy.call("GET", "/_ping"))[0] == 200


async def test_an_unreachable_engine_is_reported(proxy: ProxyUnderTest) -> None:
    (proxy.socket.parent / "engine.sock").unlink()
    status, body = await proxy.call("GET", "/_ping")
    assert status == 503
    assert "the engine cannot be reached" in json.loads(body)["message"]


async def test_only_the_owner_may_open_the_socket(proxy: ProxyUnderTest) -> None:
    assert proxy.socket.stat().st_mode & 0o777 == 0o600


def _unchunked(body: bytes) -> bytes:
    found = b""
    while (end := body.index(b"\r\n")) and (size := int(body[:end], 16)):
        found += body[end + 2 : end + 2 + size]
        body = body[end + 4 + size :]
    return found
