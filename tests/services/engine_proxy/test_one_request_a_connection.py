"""Framing: nothing hides behind, inside or between the lines of a request."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.services.engine_proxy.knocking import EXEC_OF_OURS, OURS, PATIENCE_S, Doorstep

SECOND = b"POST /v1.41/containers/create HTTP/1.1\r\nHost: engine\r\nContent-Length: 0\r\n\r\n"
START = f"/v1.41/exec/{EXEC_OF_OURS}/start".encode()
ARCHIVE = f"/v1.41/containers/{OURS}/archive?path=/tmp".encode()

CROOKED = [
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

CROOKED_CHUNKS = [
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


@pytest.mark.parametrize("said", CROOKED)
async def test_a_head_that_is_not_plain_is_refused(step: Doorstep, said: bytes) -> None:
    answer = await step.knock(said)
    assert answer.split(b" ")[1] in {b"400", b"431"}
    assert step.engine.told == []


@pytest.mark.parametrize("chunks", CROOKED_CHUNKS)
async def test_chunks_that_are_not_plain_are_refused(step: Doorstep, chunks: bytes) -> None:
    head = f"POST /v1.41/containers/{OURS}/start HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await step.knock(head.encode() + chunks)).split(b" ")[1] == b"400"
    assert step.engine.told == []


async def test_plain_chunks_are_read(step: Doorstep) -> None:
    head = f"POST /v1.41/containers/{OURS}/update HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await step.knock(head.encode() + b'f\r\n{"CpusetCpus":"\r\n3\r\n1"}\r\n0\r\n\r\n')
    assert answer.endswith(b"\r\n\r\nok")
    (heard,) = step.engine.told
    assert heard.endswith(b'\r\n\r\n{"CpusetCpus":"1"}')


async def test_a_second_request_behind_the_first_reaches_nobody(step: Doorstep) -> None:
    for first in (b"GET /_ping HTTP/1.1\r\n\r\n", b"GET /_ping HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"):
        answer = await step.knock(first + SECOND)
        assert answer.count(b"HTTP/1.1") == 1
        assert answer.startswith(b"HTTP/1.1 200 ")
    assert len(step.engine.told) == 2
    assert not any(b"create" in heard for heard in step.engine.told)


async def test_headers_of_the_caller_go_no_further(step: Doorstep) -> None:
    said = b"GET /_ping HTTP/1.1\r\nHost: x\r\nX-Registry-Auth: eyJ9\r\nConnection: keep-alive\r\nUpgrade: h2c\r\n\r\n"
    assert (await step.knock(said)).startswith(b"HTTP/1.1 200 ")
    assert step.engine.told == [
        b"GET /_ping HTTP/1.1\r\nHost: engine\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    ]


async def test_only_calls_that_stream_may_ask_for_the_connection(step: Doorstep) -> None:
    said = f"POST /v1.41/containers/{OURS}/start HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n".encode()
    assert (await step.knock(said + SECOND)).startswith(b"HTTP/1.1 200 ")
    (heard,) = step.engine.told
    assert b"Upgrade" not in heard
    assert b"create" not in heard


async def test_a_process_is_talked_to_both_ways_once_the_engine_gives_its_connection(step: Doorstep) -> None:
    reader, writer = await asyncio.open_unix_connection(step.socket)
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


async def test_nothing_is_streamed_to_an_engine_that_kept_its_connection(step: Doorstep) -> None:
    """An exec that cannot start is answered with 409, and the engine goes on reading requests."""
    step.engine.upgrades = False
    said = b"POST %b HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 2\r\n\r\n{}" % START
    reader, writer = await asyncio.open_unix_connection(step.socket)
    async with asyncio.timeout(PATIENCE_S):
        writer.write(said + SECOND)
        assert (await reader.readuntil(b"busy")).startswith(b"HTTP/1.1 409 ")
        writer.write(SECOND)
        writer.write_eof()
        assert await reader.read() == b""
    writer.close()
    (heard,) = step.engine.told
    assert b"create" not in heard


async def test_an_archive_goes_through_in_pieces_and_has_a_bound(step: Doorstep) -> None:
    archive = bytes(range(256)) * 1024
    head = b"PUT %b HTTP/1.1\r\nContent-Length: %d\r\nContent-Type: application/json\r\n\r\n"
    assert (await step.knock(head % (ARCHIVE, len(archive)) + archive)).startswith(b"HTTP/1.1 200 ")
    (heard,) = step.engine.told
    assert b"Content-Type: application/x-tar\r\nTransfer-Encoding: chunked\r\n" in heard
    assert _unchunked(heard.partition(b"\r\n\r\n")[2]) == archive

    answer = await step.knock(head % (ARCHIVE, 2 << 20) + b"x" * 100)
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_a_caller_that_only_stops_talking_gets_its_answer(step: Doorstep) -> None:
    reader, writer = await asyncio.open_unix_connection(step.socket)
    writer.write(f"POST /v1.41/containers/{OURS}/start HTTP/1.1\r\n\r\n".encode())
    writer.write_eof()
    async with asyncio.timeout(PATIENCE_S):
        assert (await reader.read()).endswith(b"\r\n\r\nok")
    writer.close()


async def test_the_engine_is_let_go_of_when_the_caller_has_left(step: Doorstep) -> None:
    _, writer = await asyncio.open_unix_connection(step.socket)
    writer.write(f"POST /v1.41/containers/{OURS}/wait HTTP/1.1\r\n\r\n".encode())
    async with asyncio.timeout(PATIENCE_S):
        await step.engine.waits.wait()
        assert not step.engine.left.is_set()
        writer.close()
        await step.engine.left.wait()


async def test_callers_that_leave_early_leave_nothing(step: Doorstep) -> None:
    for said in (b"", b"GET /_pi", b"PUT %b HTTP/1.1\r\nContent-Length: 100\r\n\r\nabc" % ARCHIVE):
        reader, writer = await asyncio.open_unix_connection(step.socket)
        writer.write(said)
        writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            await reader.read()
        writer.close()
    assert (await step.call("GET", "/_ping"))[0] == 200


async def test_an_engine_that_is_away_is_said_to_be_away(step: Doorstep) -> None:
    (step.socket.parent / "engine.sock").unlink()
    status, body = await step.call("GET", "/_ping")
    assert status == 503
    assert "the engine cannot be reached" in json.loads(body)["message"]


async def test_only_the_owner_may_open_the_socket(step: Doorstep) -> None:
    assert step.socket.stat().st_mode & 0o777 == 0o600


def _unchunked(body: bytes) -> bytes:
    found = b""
    while (end := body.index(b"\r\n")) and (size := int(body[:end], 16)):
        found += body[end + 2 : end + 2 + size]
        body = body[end + 4 + size :]
    return found
