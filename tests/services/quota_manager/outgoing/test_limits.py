"""Each call ends in its time, and in bounded memory, whatever its server sends."""

from __future__ import annotations

import asyncio

import pytest

from services.quota_manager.outgoing.calls import OutgoingCall
from services.quota_manager.outgoing.client import open_outgoing
from services.quota_manager.outgoing.errors import BrokenAnswer, NoFirstByte, NoMemory, NotConnected
from services.quota_manager.secrets import Secrets
from shared.runtime.byte_budget import ByteBudget, ByteShare
from shared.runtime.http import MOST_INFORMATIONAL
from shared.runtime.http_bodies import UNCOUNTED
from tests.services.quota_manager.outgoing.limited_calls import MEBIBYTE, NAMES, called, client
from tests.services.quota_manager.outgoing.upstreams import (
    Handler,
    Names,
    Received,
    answering,
    reply,
    serving,
    trusting,
)


@pytest.mark.parametrize("most_bytes", [0, 1, 100, 99_999, 100_000, 100_001])
async def test_a_plain_body_is_limited(most_bytes: int) -> None:
    body = b"x" * 100_000
    if most_bytes < len(body):
        with pytest.raises(BrokenAnswer, match=f"larger than {most_bytes} bytes"):
            await called(answering(reply(200, body)), most_bytes=most_bytes)
    else:
        assert (await called(answering(reply(200, body)), most_bytes=most_bytes)).body == body


async def test_an_endless_body_ends_at_the_limit() -> None:
    sent = 0

    async def endless(_: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
            sent += 0x10000
            await writer.drain()

    with pytest.raises(BrokenAnswer, match="larger"):
        await called(endless)
    assert sent < 64 * MEBIBYTE


async def trickle(_: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1\r\nx\r\n")
        await asyncio.sleep(0.02)


async def trickled_head(_: Received, writer: asyncio.StreamWriter) -> None:
    for number in range(10_000):
        writer.write(b"HTTP/1.1 200 OK\r\n" if number == 0 else b"x: y\r\n" if number < 100 else b"")
        await asyncio.sleep(0.05)


async def silent(_: Received, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def few_early_hints(_: Received, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(("hints", "ends"), [(MOST_INFORMATIONAL, "ok"), (MOST_INFORMATIONAL + 1, "not valid HTTP")])
async def test_informational_answers_are_limited(hints: int, ends: str) -> None:
    handler = answering(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * hints + reply(200, b"ok"))
    if ends == "ok":
        assert (await called(handler)).body == b"ok"
    else:
        with pytest.raises(BrokenAnswer, match=ends):
            await called(handler)


async def test_a_flood_of_informational_answers_ends_at_once() -> None:
    async def flood(_: Received, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000)
            await writer.drain()

    with pytest.raises(BrokenAnswer, match="not valid HTTP"):
        await called(flood, timeout_s=60)


async def large(_: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(reply(200, bytes(MEBIBYTE)))
    await writer.drain()


async def test_a_large_answer_waits_for_memory_and_a_small_one_does_not() -> None:
    budget = ByteBudget(MEBIBYTE, MEBIBYTE)
    async with (
        serving(large) as server,
        serving(answering(reply(200, bytes(UNCOUNTED)))) as small,
        client() as outgoing,
    ):
        call = OutgoingCall("GET", f"http://a.test:{server.port}/", timeout_s=10)
        with budget.share("a") as first:
            assert len((await outgoing.call(call, first)).body) == budget.held == MEBIBYTE
            second = budget.share("b")
            waiting = asyncio.create_task(outgoing.call(call, second))
            with budget.share("b") as third:
                url = f"http://a.test:{small.port}/"
                assert len((await outgoing.call(OutgoingCall("GET", url), third)).body) == UNCOUNTED
                assert third.held == 0
            await asyncio.sleep(0.1)
            assert not waiting.done()
        assert len((await waiting).body) == second.held == MEBIBYTE


async def test_no_memory_in_time_is_no_failure_of_the_server() -> None:
    budget = ByteBudget(MEBIBYTE, MEBIBYTE)
    async with serving(large) as server, client() as outgoing:
        call = OutgoingCall("GET", f"http://a.test:{server.port}/", timeout_s=1.0)
        with budget.share("a") as first, budget.share("b") as second:
            await first.take(1)
            with pytest.raises(NoMemory, match="the memory for answers was in use for"):
                await outgoing.call(call, second)
            assert (second.held, budget.held) == (0, 1)


class Noted(ByteShare):
    taken = 0

    async def take(self, amount: int) -> None:
        self.taken = amount
        await super().take(amount)


async def test_an_answer_takes_what_its_length_says_or_its_limit() -> None:
    async def chunked(_: Received, writer: asyncio.StreamWriter) -> None:
        size = 2 * UNCOUNTED
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % size + bytes(size) + b"\r\n")
        await asyncio.sleep(0.2)
        writer.write(b"0\r\n\r\n")

    for handler, most in ((chunked, MEBIBYTE), (answering(reply(200, bytes(2 * UNCOUNTED))), 2 * UNCOUNTED)):
        budget = ByteBudget(MEBIBYTE, MEBIBYTE)
        async with serving(handler) as server, client() as outgoing:
            with (share := Noted(budget, "a")):
                await outgoing.call(OutgoingCall("GET", f"http://a.test:{server.port}/"), share)
                assert (share.taken, budget.held) == (most, 2 * UNCOUNTED)
        assert budget.held == 0


@pytest.mark.parametrize(
    ("handler", "error"),
    [(trickle, BrokenAnswer), (trickled_head, NoFirstByte), (silent, NoFirstByte), (few_early_hints, NoFirstByte)],
)
async def test_a_slow_server_ends_at_the_time_limit(handler: Handler, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"within 1(\.\d+)? s|within 0\.\d+ s"):
        await called(handler, timeout_s=1.0)  # connecting alone has taken 0.3 s on a busy machine


async def test_the_first_byte_has_its_own_limit() -> None:
    async with asyncio.timeout(10):
        with pytest.raises(NoFirstByte, match=r"within 0\.2 s"):
            await called(silent, timeout_s=30.0, first_byte_s=0.2)


async def test_the_limit_of_the_first_byte_does_not_end_an_answer_that_has_begun() -> None:
    async def halting(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na")
        await asyncio.sleep(0.6)
        writer.write(b"b")

    answer = await called(halting, timeout_s=30.0, first_byte_s=0.4)
    assert answer.body == b"ab"
    assert answer.first_byte_s < answer.elapsed_s


async def test_a_server_that_does_not_read_the_body_ends_at_the_time_limit() -> None:
    stop = asyncio.Event()

    async def deaf(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await stop.wait()
        writer.close()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1024)
    port = server.sockets[0].getsockname()[1]
    try:
        async with client() as outgoing:
            body = bytes(32 * MEBIBYTE)
            with pytest.raises(NoFirstByte):
                async with asyncio.timeout(20):
                    await outgoing.call(OutgoingCall("POST", f"http://a.test:{port}/", body=body, timeout_s=1.0))
    finally:
        stop.set()
        server.close()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x" * 100_000 + b": y\r\n\r\n",
        b"HTTP/1.1 200 " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"-ERR unknown command\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"\x00" * 100,
    ],
    ids=["value", "name", "reason", "count", "negative", "two-lengths", "ssh", "valkey", "upgrade", "zeros"],
)
async def test_a_head_that_is_too_large_or_invalid_is_refused(head: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        await called(answering(head))


async def test_the_headers_of_an_answer_are_bounded_and_valid_text() -> None:
    lines = [f"X-{number}: {'y' * 1000}" for number in range(100)]
    answer = await called(answering(reply(200, b"", *lines)))
    assert len(answer.headers) == 33  # as many as have 32 KiB
    few = [f"X-{number}: y" for number in range(100)]
    assert len((await called(answering(reply(200, b"", *few)))).headers) == 64

    async def odd(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nX-Odd: a\xff\xfeb\r\n\r\n")

    assert ("x-odd", "a��b") in (await called(odd)).headers


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", NoFirstByte),
        (b"HTTP/1.1 200 OK\r\ncontent-", NoFirstByte),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort", BrokenAnswer),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab", BrokenAnswer),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", BrokenAnswer),
    ],
)
async def test_a_connection_that_is_closed_early(sent: bytes, error: type[Exception]) -> None:
    async def closing(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        writer.close()

    with pytest.raises(error):
        await called(closing)


async def test_nothing_is_repeated_on_a_connection_that_the_server_has_closed() -> None:
    """aiohttp would send a GET again. Each request pays its quotas, so the caller decides."""

    async def second_fails(received: Received, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) == 2:
            writer.close()
        else:
            writer.write(reply(200))

    async with serving(second_fails) as server, client() as outgoing:
        call = OutgoingCall("GET", f"http://a.test:{server.port}/", timeout_s=5)
        assert (await outgoing.call(call)).status == 200
        with pytest.raises(NoFirstByte):
            await outgoing.call(call)
        assert len(server.requests) == 2
        assert (await outgoing.call(call)).status == 200
    assert [one.connection for one in server.requests] == [1, 1, 2]


async def test_no_connection() -> None:
    async with serving(None) as gone:
        pass
    async with client() as outgoing:
        with pytest.raises(NotConnected, match=r"no connection was made \(Connection refused\)"):
            await outgoing.call(OutgoingCall("GET", f"http://a.test:{gone.port}/", timeout_s=5))
        with pytest.raises(NotConnected, match="no address"):
            await outgoing.call(OutgoingCall("GET", "http://unknown.test/", timeout_s=5))


async def test_a_name_server_that_is_silent_ends_at_the_time_limit() -> None:
    async def never(_: str) -> list[str]:
        await asyncio.sleep(60)
        return []

    async with open_outgoing(secrets=Secrets(), resolve=never) as outgoing:
        with pytest.raises(NotConnected, match="in time"):
            await outgoing.call(OutgoingCall("GET", "http://a.test/", timeout_s=0.2))


async def test_a_certificate_of_another_name_or_an_unknown_authority_is_refused() -> None:
    async with serving(answering(reply()), tls=True) as server:
        async with open_outgoing(
            secrets=Secrets(), resolve=Names(NAMES), allow_addresses=["127.0.0.0/8"], tls=trusting()
        ) as outgoing:
            with pytest.raises(NotConnected, match="certificate"):
                await outgoing.call(OutgoingCall("GET", f"https://elsewhere.test:{server.port}/", timeout_s=5))
            answer = await outgoing.call(OutgoingCall("GET", f"https://127.0.0.1:{server.port}/", timeout_s=5))
            assert answer.status == 200
        async with client() as outgoing:
            with pytest.raises(NotConnected, match="certificate"):
                await outgoing.call(OutgoingCall("GET", f"https://127.0.0.1:{server.port}/", timeout_s=5))
    assert len(server.requests) == 1


async def test_tls_to_a_server_without_it_is_no_connection() -> None:
    async with serving(answering(reply())) as server, client() as outgoing:
        with pytest.raises(NotConnected):
            await outgoing.call(OutgoingCall("GET", f"https://a.test:{server.port}/", timeout_s=5))


async def test_a_call_can_be_cancelled() -> None:
    async with serving(silent) as server, client() as outgoing:
        task = asyncio.create_task(outgoing.call(OutgoingCall("GET", f"http://a.test:{server.port}/")))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
