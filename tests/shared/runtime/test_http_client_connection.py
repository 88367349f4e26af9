"""One connection against servers that send what HTTP does not allow, too much, too slowly, or break off."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from shared.runtime.http_client_connection import MOST_HEAD, ClientConnection
from shared.runtime.http_request_head import Origin
from shared.runtime.http_streams import LARGE_BYTES, StreamClient, Unreachable, open_streams
from shared.runtime.streamed_answer import MOST_UNREAD, AnswerBroken, StreamedAnswer

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Calls a function for each connection, and closes the connection after it."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.url = ""
        self.connections = self.ended = 0
        self.error: BaseException | None = None

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except AssertionError as error:
            self.error = error
        finally:
            writer.close()
            self.ended += 1

    async def all_ended(self) -> None:
        """Wait until no connection is left."""
        async with asyncio.timeout(10):
            while self.ended < self.connections:  # noqa: ASYNC110  # counted by the server
                await asyncio.sleep(0.01)


@asynccontextmanager
async def served(serve: Serve) -> AsyncIterator[tuple[Server, StreamClient]]:
    peer = Server(serve)
    server = await asyncio.start_server(peer, "127.0.0.1", 0)
    async with server, asyncio.timeout(30):
        peer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with open_streams(connect_s=2.0) as client:
            yield peer, client
        await peer.all_ended()
    if peer.error is not None:
        raise peer.error


def answering(*parts: bytes, pause_s: float = 0.0, ends: bool = True) -> Serve:
    """Return a function that answers each request with these parts. `ends`: it closes the connection then."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause_s)
            if ends:
                return

    return serve


async def body_of(answer: StreamedAnswer) -> bytes:
    body, part = b"", answer.first
    while part:
        body += part
        part = await answer.next()
    assert answer.is_whole
    answer.close()
    return body


async def _rest(answer: StreamedAnswer) -> None:
    while await answer.next():
        pass


async def get(client: StreamClient, url: str, method: str = "GET") -> bytes:
    return await body_of(await client.request(method, url, [], None))


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("pause_s", [0.0, 0.005])
@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", b""),
        (CHUNKED + b"2\r\nhe\r\n3;a=b\r\nllo\r\n0\r\ntrailer: x\r\n\r\n", b"hello"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", b"hello"),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello"),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + CHUNKED + b"5\r\nhello\r\n0\r\n\r\n",
            b"hello",
        ),
    ],
    ids=["length", "zero", "204", "304", "chunks", "until the end", "1.0", "informational"],
)
async def test_bodies_of_each_form(answer: bytes, body: bytes, pause_s: float) -> None:
    """Whole, and byte by byte."""
    parts = [answer] if not pause_s else [answer[at : at + 1] for at in range(len(answer))]
    async with served(answering(*parts, pause_s=pause_s / 10)) as (peer, client):
        assert await get(client, peer.url) == body


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\na\0b: c\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 000 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 099 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 600 OK\r\ncontent-length: 5\r\n\r\nhello",
        CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n",
        CHUNKED + b"fffffffffffffffff\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        CHUNKED,
        b"",
    ],
)
async def test_what_brings_no_byte_of_a_body_is_unreachable(sent: bytes) -> None:
    async with served(answering(sent)) as (peer, client):
        with pytest.raises(Unreachable):
            await get(client, peer.url)


@pytest.mark.parametrize(
    ("begun", "then"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello", b""),
        (CHUNKED + b"5\r\nhello\r\n", b""),
        (CHUNKED + b"5\r\nhello\r\n", b"no size\r\n"),
        (CHUNKED + b"5\r\nhello\r\n", b"1\r\n__"),
        (CHUNKED + b"5\r\nhello\r\n", b"0\r\ntrailer: " + bytes(16) + b"\r\n\r\n"),
    ],
)
async def test_an_answer_that_breaks_off_after_its_first_bytes_is_broken(begun: bytes, then: bytes) -> None:
    """What has arrived is read before."""
    async with served(answering(begun, then, pause_s=0.05)) as (peer, client):
        answer = await client.request("GET", peer.url, [], None)
        assert (answer.status, answer.first, answer.is_whole) == (200, b"hello", False)
        with pytest.raises(AnswerBroken):
            await _rest(answer)


async def test_a_length_beside_chunks_makes_no_second_answer() -> None:
    sent = CHUNKED[:-2] + b"content-length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    async with served(answering(sent)) as (peer, client):
        with pytest.raises(Unreachable, match="no HTTP"):
            await get(client, peer.url)


@pytest.mark.parametrize(
    ("begun", "again"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"a: " + b"b" * 1000 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\na: ", b"b" * 1000),
        (b"", b"HTTP/1.1 103 Early Hints\r\nlink: " + b"x" * 900 + b"\r\n\r\n"),
        (CHUNKED + b"1;", b"a=b;" * 250),
        (CHUNKED + b"0\r\na: ", b"b" * 1000),
    ],
    ids=["headers", "one header", "informational", "extension", "trailer"],
)
async def test_what_is_no_part_of_a_body_is_bounded(begun: bytes, again: bytes) -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begun)
        while True:
            writer.write(again * 10)
            await writer.drain()
            sent += len(again) * 10

    async with served(serve) as (peer, client):
        with pytest.raises(Unreachable, match=f"{MOST_HEAD} bytes of it are no part"):
            await get(client, peer.url)
    assert sent < 32 * MOST_HEAD, "the rest is in the buffers of the kernel"


async def test_a_body_is_read_as_fast_as_its_reader_takes_it() -> None:
    sent, part = 0, bytes(1 << 16)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (1000 * len(part)))
        for _ in range(1000):
            writer.write(part)
            await writer.drain()
            sent += len(part)

    async with served(serve) as (peer, client):
        answer = await client.request("GET", peer.url, [], None)
        tracemalloc.start()
        await asyncio.sleep(0.3)
        unread, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert unread < 4 * MOST_UNREAD
        assert sent < 1000 * len(part) / 2, "the server waits"
        size, data = len(answer.first), answer.first
        while data:
            data = await answer.next()
            size += len(data)
        assert size == 1000 * len(part)


@pytest.mark.parametrize("stage", ["head", "body"])
async def test_a_request_that_is_cancelled_closes_its_connection(stage: str) -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if stage == "body":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello")
        await reader.read()
        closed.set()

    async with served(serve) as (peer, client):
        call = asyncio.create_task(get(client, peer.url))
        await asyncio.sleep(0.1)
        call.cancel()
        await asyncio.wait([call])
        if stage == "body":
            assert not closed.is_set(), "the reader decides"
            answer = await client.request("GET", peer.url, [], None)
            answer.close()
        await closed.wait()


@pytest.mark.parametrize("ends", ["the answer", "the client"])
async def test_a_body_without_a_length_that_we_end_is_not_whole(ends: str) -> None:
    server = Server(answering(b"HTTP/1.1 200 OK\r\n\r\nhalf", pause_s=0.3))
    async with await asyncio.start_server(server, "127.0.0.1", 0) as running, asyncio.timeout(20):
        async with open_streams(connect_s=2.0) as client:
            url = f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}"
            answer = await client.request("GET", url, [], None)
            assert answer.first == b"half"
            if ends == "the answer":
                answer.close()
        with pytest.raises(AnswerBroken):
            await answer.next()
        assert not answer.is_whole
        await server.all_ended()


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
@pytest.mark.parametrize("pause_s", [0.0, 0.02])
async def test_garbage_after_an_answer_is_none_of_it_in_whatever_segment_it_comes(
    answer: bytes, body: bytes, pause_s: float
) -> None:
    sent = (answer, b"0\r\n\r\n\0") if pause_s else (answer + b"0\r\n\r\n\0",)
    async with served(answering(*sent, pause_s=pause_s)) as (peer, client):
        for _ in range(2):
            assert await get(client, peer.url) == body
            await asyncio.sleep(3 * pause_s)
        assert peer.connections == 2


async def test_an_answer_has_one_reader() -> None:
    async with served(answering(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", pause_s=0.1)) as (peer, client):
        answer = await client.request("GET", peer.url, [], None)
        first = asyncio.create_task(answer.next())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one reader"):
            await answer.next()
        with pytest.raises(AnswerBroken):
            await first


async def test_an_answer_to_head_has_no_body() -> None:
    length = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
    async with served(answering(length, ends=False)) as (peer, client):
        for _ in range(2):
            answer = await client.request("HEAD", peer.url, [], None)
            assert (answer.status, answer.first, answer.is_whole) == (200, b"", True)
            assert answer.headers == [(b"content-length", b"5")]
        assert peer.connections == 2


@pytest.mark.parametrize(
    ("sent", "connections"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", 1),
        (CHUNKED + b"2\r\nok\r\n0\r\n\r\n", 1),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok", 3),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", 3),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\nok", 1),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok\r\nHTTP/1.1 200 OK\r\n", 3),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokH", 3),
    ],
)
async def test_connections_are_kept_where_both_sides_may(sent: bytes, connections: int) -> None:
    async with served(answering(sent, ends=False)) as (peer, client):
        for _ in range(3):
            assert await get(client, peer.url) == b"ok"
        assert peer.connections == connections


async def test_headers_of_the_connection_are_left_out() -> None:
    sent = (
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\nConnection: close, X-C\r\nx-c: 1\r\nKeep-Alive: 5\r\n"
        b"set-cookie: a\r\nset-cookie: b\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nok\r\n0\r\nx-b: 2\r\n\r\n"
    )
    async with served(answering(sent)) as (peer, client):
        answer = await client.request("GET", peer.url, [], None)
        assert await body_of(answer) == b"ok"
        assert answer.headers == [(b"x-a", b"1"), (b"set-cookie", b"a"), (b"set-cookie", b"b")]


# ---- requests --------------------------------------------------------------------------------------------------------


def reading(received: list[bytes], answer: bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") -> Serve:
    """Return a function that reads whole requests."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            received.append(head)
            if b"chunked" in head:
                while (size := int(await reader.readuntil(b"\r\n"), 16)) > 0:
                    received.append((await reader.readexactly(size + 2))[:-2])
                await reader.readexactly(2)
            elif b"content-length" in head:
                received.append(await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0])))
            writer.write(answer)

    return serve


async def _parts(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
        await asyncio.sleep(0)


async def test_bodies_of_requests() -> None:
    received: list[bytes] = []
    large = bytes(range(256)) * (LARGE_BYTES // 100)
    async with served(reading(received)) as (peer, client):
        for body in (b"hello", _parts(b"he", b"", b"llo"), large, b"", None):
            assert await body_of(await client.request("POST", f"{peer.url}/x?y#z", [(b"x-a", b"b")], body)) == b"ok"
        assert peer.connections == 1
    host = peer.url.removeprefix("http://").encode()
    begin = b"POST /x?y HTTP/1.1\r\nhost: " + host + b"\r\nx-a: b\r\n"
    assert received == [
        begin + b"content-length: 5\r\n\r\n", b"hello",
        begin + b"transfer-encoding: chunked\r\n\r\n", b"he", b"llo",
        begin + b"content-length: %d\r\n\r\n" % len(large), large,
        begin + b"content-length: 0\r\n\r\n", b"",
        begin + b"content-length: 0\r\n\r\n", b"",
    ]  # fmt: skip


async def test_an_answer_before_the_end_of_a_request_ends_the_connection() -> None:
    """The rest of the body is not sent as the next request."""
    source_ended = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x"
                await asyncio.sleep(0.01)
        finally:
            source_ended.set()

    async with served(answering(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno", ends=False)) as (
        peer,
        client,
    ):
        answer = await client.request("POST", peer.url, [], endless())
        assert (answer.status, await body_of(answer)) == (413, b"no")
        await source_ended.wait()
        assert await get(client, peer.url) == b"no"
        assert peer.connections == 2


async def test_a_body_that_fails_ends_its_request() -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"x"
        raise ValueError

    async with served(answering(b"", ends=False)) as (peer, client):
        with pytest.raises(Unreachable, match="its body could not be sent: ValueError"):
            await client.request("POST", peer.url, [], failing())


async def test_a_body_waits_for_a_server_that_does_not_read() -> None:
    taken = 0
    reads = asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield bytes(1 << 16)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reads.wait()
        while await reader.readuntil(b"\r\n") != b"0\r\n":
            await reader.readexactly((1 << 16) + 2)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async with served(serve) as (peer, client):
        call = asyncio.create_task(client.request("POST", peer.url, [], source()))
        await asyncio.sleep(0.3)
        assert taken < 500
        reads.set()
        assert await body_of(await call) == b"ok"
        assert taken == 1000


async def test_a_server_that_has_ended_its_side_and_does_not_read_ends_the_request() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write_eof()
        await gone.wait()

    async with served(serve) as (peer, client):
        with pytest.raises(Unreachable, match="the connection has ended"):
            async with asyncio.timeout(5):
                await client.request("POST", peer.url, [], bytes(64 << 20))
        gone.set()


async def test_a_connection_with_unsent_bytes_is_not_kept() -> None:
    sizes = list[int]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        sizes.append(len(head))
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await asyncio.sleep(0.05)  # it does not read the body
        await reader.read()

    peer = Server(serve)
    async with await asyncio.start_server(peer, "127.0.0.1", 0, limit=1024) as running, asyncio.timeout(20):
        running.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        url = f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}"
        async with open_streams(connect_s=2.0) as client:
            pool = client._pool
            connect = pool.connect

            async def small(origin: Origin) -> ClientConnection:
                connection = await connect(origin)
                assert connection._transport is not None
                raw = connection._transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
                return connection

            pool.connect = small  # type: ignore[method-assign]
            for _ in range(2):
                answer = await client.request("POST", url, [], bytes(LARGE_BYTES))
                assert (answer.status, await body_of(answer)) == (413, b"no")
        await peer.all_ended()
    assert peer.connections == 2


async def test_a_body_whose_source_is_cancelled_ends_its_request() -> None:
    async def cancelled() -> AsyncIterator[bytes]:
        yield b"x"
        raise asyncio.CancelledError

    async with served(answering(b"", ends=False)) as (peer, client):
        with pytest.raises(Unreachable, match="its body was cancelled"):
            await client.request("POST", peer.url, [], cancelled())


async def test_a_connection_that_is_made_while_the_client_closes_is_closed() -> None:
    async with served(answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")) as (peer, _):
        async with open_streams(connect_s=2.0) as client:
            connecting = asyncio.create_task(client.request("GET", peer.url, [], None))
            await asyncio.sleep(0)
        with pytest.raises(Unreachable):
            await connecting
        assert not client._pool._open
