"""Kept connections on which bytes arrive after an answer: they are closed, and the bytes answer no request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from shared.runtime.http import HttpLimits, HttpReply, HttpRequest, open_http
from shared.runtime.http_streams import open_streams

Get = Callable[[str], Awaitable[bytes]]
LATER_S = 0.03
OTHER = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nother"


class Repeating:
    """A server that answers each request with its path, and sends further bytes after it."""

    def __init__(self, *parts: bytes, pause_s: float = 0.0) -> None:
        self.connections = 0
        self.ended = asyncio.Semaphore(0)
        """Connections that the client has closed."""
        self._parts = parts
        self._pause_s = pause_s
        """Time between the answer's head and its body."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split()[1]
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(path))
                if self._pause_s:
                    await asyncio.sleep(self._pause_s)
                    path += self._parts[0]
                writer.write(path)
                for part in self._parts[1:] if self._pause_s else self._parts:
                    await asyncio.sleep(LATER_S)
                    writer.write(part)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended.release()
            writer.close()


@asynccontextmanager
async def streams() -> AsyncIterator[Get]:
    async with open_streams(connect_s=2.0) as client:

        async def get(url: str) -> bytes:
            answer = await client.request("GET", url, [], None)
            body, part = b"", answer.first
            while part:
                body += part
                part = await answer.next()
            answer.close()
            return body

        yield get


@asynccontextmanager
async def calls() -> AsyncIterator[Get]:
    async with open_http(lambda _: "") as client:

        async def get(url: str) -> bytes:
            reply = await client.exchange(HttpRequest("GET", url), HttpLimits(5.0, 5.0, 1 << 20))
            assert isinstance(reply, HttpReply), reply
            return reply.body

        yield get


@asynccontextmanager
async def serving(server: Repeating) -> AsyncIterator[str]:
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as running, asyncio.timeout(20):
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("client", [streams, calls])
@pytest.mark.parametrize(
    ("parts", "pause_s"),
    [
        ([OTHER], 0.0),
        ([OTHER[:20], OTHER[20:]], 0.0),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"], 0.0),
        ([b"\r\n"], 0.0),
        ([OTHER], LATER_S),
        ([OTHER[:20], OTHER[20:]], LATER_S),
    ],
    ids=["again", "in parts", "informational", "empty line", "with the body", "its head with the body"],
)
async def test_bytes_after_an_answer_are_no_answer(
    parts: list[bytes], pause_s: float, client: Callable[[], AbstractAsyncContextManager[Get]]
) -> None:
    server = Repeating(*parts, pause_s=pause_s)
    async with serving(server) as url, client() as get:
        for number in range(4):
            assert await get(f"{url}/{number}") == b"/%d" % number
            async with asyncio.timeout(5.0):
                await server.ended.acquire()
        assert server.connections == 4


@pytest.mark.parametrize("client", [streams, calls])
async def test_a_connection_without_further_bytes_is_kept(
    client: Callable[[], AbstractAsyncContextManager[Get]],
) -> None:
    server = Repeating()
    async with serving(server) as url, client() as get:
        for number in range(4):
            assert await get(f"{url}/{number}") == b"/%d" % number
    assert server.connections == 1


@pytest.mark.parametrize("client", [streams, calls])
async def test_informational_answers_come_before_the_answer(
    client: Callable[[], AbstractAsyncContextManager[Get]],
) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(3):
                writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
                await asyncio.sleep(0.01)
            writer.write(OTHER)
        await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as running, asyncio.timeout(20):
        url = f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}"
        async with client() as get:
            assert [await get(url), await get(url)] == [b"other", b"other"]
        await ended.wait()
