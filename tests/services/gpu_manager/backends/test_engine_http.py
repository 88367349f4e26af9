"""Control calls end, and each failure is one of our errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.gpu_manager.backends.engine_http import MOST_BYTES, EngineHttp
from services.gpu_manager.backends.protocol import EngineError, EngineGone, OutOfMemory
from tests.services.gpu_manager.backends.engines import Engines


@asynccontextmanager
async def answering(
    engines: Engines, answer: bytes, *, hangs: bool = False
) -> AsyncIterator[tuple[EngineHttp, list[bytes]]]:
    """A server that records requests and gives one answer, and closes."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        if hangs:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield EngineHttp(engines.client, f"http://127.0.0.1:{port}/", key="k"), received


def http(status: int, body: str) -> bytes:
    return f"HTTP/1.1 {status} so\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


async def test_json_is_returned_and_the_query_is_sent_as_it_is(engines: Engines) -> None:
    async with answering(engines, http(200, '{"a": 1}')) as (engine, received):
        assert await engine.call("POST", "/sleep?level=1&mode=abort", within_s=5) == {"a": 1}
        head = received[0].decode().lower()
        assert head.startswith("post /sleep?level=1&mode=abort http/1.1\r\n")
        assert "authorization: bearer k\r\n" in head
        assert "connection: close\r\n" in head


@pytest.mark.parametrize("body", ["", "OK", "null"])
async def test_an_empty_or_other_answer_is_none(engines: Engines, body: str) -> None:
    async with answering(engines, http(200, body)) as (engine, _):
        assert await engine.call("POST", "/wake_up", within_s=5) is None


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (500, '{"error": {"message": "CUDA Error: out of memory at cumem"}}', OutOfMemory),
        (400, '{"error": {"message": "CUDA out of memory. Tried to allocate"}}', OutOfMemory),
        (500, "Internal Server Error", EngineError),
        (422, "level", EngineError),
        (302, "", EngineError),
    ],
)
async def test_another_status_is_an_error_that_shows_the_answer(
    engines: Engines, status: int, body: str, kind: type[EngineError]
) -> None:
    async with answering(engines, http(status, body)) as (engine, _):
        with pytest.raises(EngineError, match=f"POST /x was answered with {status}: ") as raised:
            await engine.call("POST", "/x", within_s=5)
        assert type(raised.value) is kind
        assert (body or "an empty body") in raised.value.reason


async def test_a_long_answer_is_cut_in_the_message(engines: Engines) -> None:
    async with answering(engines, http(500, "x" * 10_000)) as (engine, _):
        with pytest.raises(EngineError) as raised:
            await engine.call("GET", "/x", within_s=5)
        assert len(raised.value.reason) < 400


async def test_an_answer_that_does_not_come_is_an_error_and_not_gone(engines: Engines) -> None:
    async with answering(engines, b"", hangs=True) as (engine, _):
        with pytest.raises(EngineError, match=r"GET /x had no complete answer within 0\.2 s") as raised:
            await engine.call("GET", "/x", within_s=0.2)
        assert type(raised.value) is EngineError


async def test_an_answer_that_does_not_end_is_an_error(engines: Engines) -> None:
    async with answering(engines, b"HTTP/1.1 200 so\r\ncontent-length: 9\r\n\r\nabc", hangs=True) as (engine, _):
        with pytest.raises(EngineError, match="had no complete answer"):
            await engine.call("GET", "/x", within_s=0.2)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 so\r\ncontent-length: 9\r\n\r\nabc", b"no http\r\n\r\n"])
async def test_a_broken_connection_is_gone(engines: Engines, answer: bytes) -> None:
    async with answering(engines, answer) as (engine, _):
        with pytest.raises(EngineGone, match="GET /x failed: "):
            await engine.call("GET", "/x", within_s=5)


async def test_nothing_that_listens_is_gone(engines: Engines) -> None:
    engine = EngineHttp(engines.client, f"http://127.0.0.1:{engines.ports.take()}")
    with pytest.raises(EngineGone, match=r"GET /x failed: no connection was made \(Connection refused\)"):
        await engine.call("GET", "/x", within_s=5)


async def test_a_large_answer_is_not_read_to_its_end(engines: Engines) -> None:
    async with answering(engines, b"HTTP/1.1 200 so\r\n\r\n" + b"x" * (MOST_BYTES + 1)) as (engine, _):
        with pytest.raises(EngineError, match=f"larger than {MOST_BYTES} bytes"):
            await engine.call("GET", "/x", within_s=20)


@pytest.mark.parametrize("url", ["http://a\\b:1", "http://xn--:1", "http://a..b:1", "http://127.0.0.1:1v1"])
async def test_an_invalid_address_is_an_error(engines: Engines, url: str) -> None:
    with pytest.raises(EngineError, match=r"GET /x (cannot be sent to .*: its address is invalid|failed: )"):
        await EngineHttp(engines.client, url).call("GET", "/x", within_s=5)


async def test_a_body_that_is_no_json_is_an_error(engines: Engines) -> None:
    with pytest.raises(EngineError, match="POST /x cannot be sent: its body cannot be written as JSON"):
        await EngineHttp(engines.client, "http://127.0.0.1:1").call("POST", "/x", {"a": 10**5000}, within_s=5)


async def test_each_call_has_its_own_connection(engines: Engines) -> None:
    """The engine closes a kept connection some day, and that would look like its end."""
    async with answering(engines, http(200, "1"), hangs=True) as (engine, received):
        for _ in range(3):
            assert await engine.call("GET", "/x", within_s=5) == 1
        assert len(received) == 3, "a second request on a connection would hang"
