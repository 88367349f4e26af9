"""Kept connections: used again, made before they are needed, and passed over on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared.runtime.http_streams import StreamClient, Unreachable, open_streams

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Peer:
    """A server that counts connections, and closes one at the request after the n-th, without a whole answer."""

    def __init__(self, answers: int, last: bytes) -> None:
        self.url = ""
        self._last = last
        self.connections = self.requests = self.ended = 0
        self._answers = answers

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            for _ in range(self._answers):
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                writer.write(OK)
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            writer.write(self._last)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.ended += 1


@asynccontextmanager
async def served(answers: int = 100, last: bytes = b"") -> AsyncIterator[tuple[Peer, StreamClient]]:
    peer = Peer(answers, last)
    server = await asyncio.start_server(peer._serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(20):
        peer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
        async with open_streams(connect_s=2.0) as client:
            yield peer, client
        while peer.ended < peer.connections:  # noqa: ASYNC110  # counted by the peer
            await asyncio.sleep(0.01)


async def get(client: StreamClient, url: str, *, new_connection: bool = False) -> bytes:
    answer = await client.request("GET", url, [], None, new_connection=new_connection)
    body, part = b"", answer.first
    while part:
        body += part
        part = await answer.next()
    answer.close()
    return body


async def test_a_connection_is_used_again_unless_the_request_wants_its_own() -> None:
    async with served() as (peer, client):
        for _ in range(3):
            assert await get(client, peer.url) == b"ok"
        assert peer.connections == 1
        for _ in range(2):
            assert await get(client, peer.url, new_connection=True) == b"ok"
        assert peer.connections == 3


async def test_the_first_request_needs_no_connection_after_preconnect() -> None:
    async with served() as (peer, client):
        await client.preconnect(peer.url)
        assert await get(client, peer.url) == b"ok"
        assert (peer.connections, peer.requests) == (1, 2)


async def test_preconnect_to_nobody_says_nothing() -> None:
    async with open_streams(connect_s=2.0) as client:
        await client.preconnect("http://127.0.0.1:1/x")


@pytest.mark.parametrize("url", ["http://a\\b:1/x", "http://127.0.0.1:1v1/x", "http://a..b:1/x"])
async def test_an_invalid_address_is_unreachable(url: str) -> None:
    async with open_streams(connect_s=2.0) as client:
        with pytest.raises(Unreachable):
            await client.request("POST", url, [], b"")


async def test_only_the_end_of_a_kept_connection_is_told() -> None:
    async with served(answers=1) as (peer, client):
        assert await get(client, peer.url) == b"ok"
        with pytest.raises(Unreachable) as kept:
            await client.request("POST", peer.url, [], b"")
        assert kept.value.kept_ended
        with pytest.raises(Unreachable) as absent:
            await client.request("POST", "http://127.0.0.1:1/x", [], b"")
        assert not absent.value.kept_ended
    async with served(answers=0) as (peer, client):
        with pytest.raises(Unreachable) as new:
            await client.request("POST", peer.url, [], b"")
        assert not new.value.kept_ended, "a server that breaks off a new connection has ended the request"


@pytest.mark.parametrize("sent", [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", b"SSH-2.0-OpenSSH\r\n"])
async def test_a_server_that_has_begun_to_answer_has_not_only_ended_a_kept_connection(sent: bytes) -> None:
    async with served(answers=1, last=sent) as (peer, client):
        assert await get(client, peer.url) == b"ok"
        with pytest.raises(Unreachable) as broken:
            await client.request("POST", peer.url, [], b"")
        assert not broken.value.kept_ended
