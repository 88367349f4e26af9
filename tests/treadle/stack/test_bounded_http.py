"""Requests with too long a head, and callers that stop in the middle of a request."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from shared.runtime.whole_request import ANSWERED_LATER, WholeRequest, whole_request_of
from shared.runtime.whole_response import SendWhole, sender_of
from treadle.stack import bounded_http
from treadle.stack.bounded_http import MOST_HEAD_BYTES, BoundedHttp, WholeResponse
from treadle.stack.head_joining import HeadJoiningTransport

SendRaw = Callable[..., Awaitable[bytes]]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the length of the body; waits before it reads if the path requests it."""
    await answer(scope, receive, send, None)


async def whole(scope: Any, receive: Any, send: Any) -> None:
    """The same, in one call where the server takes it."""
    await answer(scope, receive, send, sender_of(scope))


async def answer(scope: Any, receive: Any, send: Any, at_once: SendWhole | None) -> None:
    if scope["path"] == "/slow":
        await asyncio.sleep(1.5)
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    body = str(size).encode()
    others = [(b"x-asked", scope["query_string"])] if scope["query_string"] else []
    if at_once is not None and at_once(200, others, body):
        return
    headers = [*others, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def begun(scope: Any, receive: Any, send: Any) -> Awaitable[None]:
    """The same, from a callback where the server offers the request with its body."""
    request = whole_request_of(scope)
    if request is None:
        return answer(scope, receive, send, sender_of(scope))

    def respond() -> None:
        others = [(b"x-asked", scope["query_string"])] if scope["query_string"] else []
        if not request.respond(200, others, str(len(request.body)).encode()):
            request.start(answer({**scope, "path": "/"}, receive, send, None))  # it has waited

    asyncio.get_running_loop().call_later(1.5 if scope["path"] == "/slow" else 0.0, respond)
    return ANSWERED_LATER


@pytest.fixture(params=[app, whole, begun])
async def send_raw(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> AsyncIterator[SendRaw]:
    """Send parts, a moment between them, and read until the server ends the connection."""
    monkeypatch.setattr(bounded_http, "SILENCE_LIMIT_S", 0.5)
    config = uvicorn.Config(
        request.param,
        port=0,
        http=BoundedHttp,
        lifespan="off",
        log_config=None,
        timeout_keep_alive=1,
        interface="asgi3",
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  # uvicorn sets a flag
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]

    async def send_raw(*parts: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(20):
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.05)
                return await reader.read()
        except ConnectionError:
            return b"reset"
        finally:
            writer.close()

    send_raw.port = port  # type: ignore[attr-defined]
    yield send_raw
    server.should_exit = True
    await serving


async def test_a_whole_request_is_answered_however_it_is_cut(send_raw: SendRaw) -> None:
    answer = await send_raw(b"POST / HT", b"TP/1.1\r\nhost: x\r\ncontent-le", b"ngth: 5\r\n\r\nhe", b"llo")
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"5")


async def test_a_large_body_is_no_large_head(send_raw: SendRaw) -> None:
    size = 4 * MOST_HEAD_BYTES
    head = f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode()
    assert (await send_raw(head, b"x" * size)).endswith(str(size).encode())


async def test_a_caller_is_not_disconnected_while_the_server_is_slow(send_raw: SendRaw) -> None:
    size = 16 * MOST_HEAD_BYTES
    head = f"POST /slow HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode()
    assert (await send_raw(head, b"x" * size)).endswith(str(size).encode())


H2C = b"host: x\r\nconnection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAEAAEAA\r\nupgrade: h2c\r\n"
CLOSING = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


def bodies(replies: bytes) -> list[bytes]:
    """Status and body of each reply on one connection."""
    found = []
    while replies:
        head, _, rest = replies.partition(b"\r\n\r\n")
        status, length = head[9:12], int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        found.append(status + b" " + rest[:length])
        replies = rest[length:]
    return found


@pytest.mark.parametrize("size", [5, 3 * MOST_HEAD_BYTES])
@pytest.mark.parametrize("cut", [0, 1, 2])
async def test_an_upgrade_to_http_2_is_ignored_and_its_body_is_read(send_raw: SendRaw, size: int, cut: int) -> None:
    """As the JDK's client begins: RFC 9110, 7.8 lets a server ignore the header and answer as HTTP/1.1."""
    head = b"POST / HTTP/1.1\r\n" + H2C + f"content-length: {size}\r\n\r\n".encode()
    body = b"x" * size
    parts = [[head + body + CLOSING], [head, body, CLOSING], [head[:30], head[30:] + body[:2], body[2:] + CLOSING]][cut]
    assert bodies(await send_raw(*parts)) == [b"200 %d" % size, b"200 0"]


async def test_an_upgrade_with_a_body_in_chunks_is_ignored(send_raw: SendRaw) -> None:
    head = b"POST / HTTP/1.1\r\n" + H2C + b"transfer-encoding: chunked\r\n\r\n"
    assert bodies(await send_raw(head, b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n", CLOSING)) == [b"200 5", b"200 0"]


async def test_upgrades_behind_each_other_are_all_answered(send_raw: SendRaw) -> None:
    one = b"GET / HTTP/1.1\r\n" + H2C + b"\r\n"
    assert bodies(await send_raw(one * 2000 + CLOSING)) == [b"200 0"] * 2001


async def test_a_broken_request_behind_an_upgrade_is_refused(send_raw: SendRaw) -> None:
    answer = await send_raw(b"GET / HTTP/1.1\r\n" + H2C + b"\r\n", b"\x00\r\n\r\n")
    assert (answer[9:12], answer.count(b"HTTP/1.1 400")) == (b"200", 1)


@pytest.mark.parametrize("begin", [b"GET /", b"GET / HTTP/1.1\r\nhost: x\r\nx: ", b"GET / HTTP/1.1\r\n"])
async def test_a_head_without_end_is_refused(send_raw: SendRaw, begin: bytes) -> None:
    more = b"x: y\r\n" * 5000 if begin.endswith(b"\n") else b"a" * 30_000
    answer = await send_raw(begin, *[more] * 6)
    assert answer == b"reset" or answer.startswith(b"HTTP/1.1 431")


def head_of(total: int) -> bytes:
    """A head of `total` bytes as they are counted: path, names, values, and four more a header line."""
    filler = "x" * (total - len("/") - len("host") - len("y") - 4 - len("a") - 4)
    return f"GET / HTTP/1.1\r\nhost: y\r\na: {filler}\r\n\r\n".encode()


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize(("total", "status"), [(MOST_HEAD_BYTES, 200), (MOST_HEAD_BYTES + 1, 431), (140_000, 431)])
async def test_a_head_has_a_bound_in_any_segmentation(send_raw: SendRaw, total: int, status: int, pieces: int) -> None:
    head = head_of(total)
    step = -(-len(head) // pieces)
    answer = await send_raw(*(head[at : at + step] for at in range(0, len(head), step)))
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()) or (answer == b"reset" and status == 431)


async def test_only_its_own_head_counts_in_a_read_with_a_body(
    send_raw: SendRaw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "MOST_HEAD_BYTES", 1000)
    body = b"a" * 5000
    first = b"y\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    last = b": z\r\nconnection: close\r\n\r\n"
    answers = await send_raw(b"POST / HTTP/1.1\r\nhost: ", first + b"GET / HTTP/1.1\r\nhost", last)
    assert bodies(answers) == [b"200 %d" % len(body), b"200 0"]


async def test_many_small_headers_and_trailers_count_alike(send_raw: SendRaw) -> None:
    many = b"a: b\r\n" * (MOST_HEAD_BYTES // 6 + 1)
    assert (await send_raw(b"GET / HTTP/1.1\r\nhost: y\r\n" + many + b"\r\n")).startswith(b"HTTP/1.1 431 ")
    chunked = b"POST / HTTP/1.1\r\nhost: y\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    assert b" 200 " in (await send_raw(chunked + b"a: b\r\n\r\n"))
    assert b" 200 " not in (await send_raw(chunked + many + b"\r\n"))


@pytest.mark.parametrize("half", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhe"])
async def test_a_caller_that_stops_in_the_middle_is_disconnected(send_raw: SendRaw, half: bytes) -> None:
    began = asyncio.get_running_loop().time()
    assert b"200" not in await send_raw(half)
    assert asyncio.get_running_loop().time() - began < 10


class _Sent:
    """A transport that notes its writes."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        if self.closed:
            raise RuntimeError("the handle is closed")
        self.writes.append(data)

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.writes.append(b"".join(parts))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


def joining() -> tuple[_Sent, HeadJoiningTransport]:
    sent = _Sent()
    return sent, HeadJoiningTransport(cast("asyncio.Transport", sent), asyncio.get_running_loop())


async def test_a_head_and_its_body_are_one_write() -> None:
    sent, transport = joining()
    for _ in range(2):
        transport.write(HEAD)
        transport.write(b"ok")
    assert sent.writes == [HEAD + b"ok"] * 2
    await asyncio.sleep(0)
    assert len(sent.writes) == 2, "the head is not sent again"


async def test_a_head_alone_leaves_in_the_next_turn_of_the_loop() -> None:
    sent, transport = joining()
    transport.write(HEAD)
    assert not sent.writes
    await asyncio.sleep(0)
    assert sent.writes == [HEAD]
    transport.write(b"5\r\nparts\r\n")
    transport.write(b"0\r\n\r\n")
    assert sent.writes == [HEAD, b"5\r\nparts\r\n", b"0\r\n\r\n"]


async def test_the_head_of_an_answer_without_a_body_leaves_before_the_next_answer_and_the_end() -> None:
    sent, transport = joining()
    transport.write(HEAD)
    transport.write(HEAD)
    assert sent.writes == [HEAD + HEAD]
    transport.write(HEAD)
    transport.close()
    assert sent.writes == [HEAD + HEAD, HEAD]
    assert sent.closed


async def test_nothing_is_written_to_a_connection_that_has_broken() -> None:
    sent, transport = joining()
    transport.write(HEAD)
    sent.closed = True
    await asyncio.sleep(0)
    assert not sent.writes


async def test_parts_of_other_types_are_passed_on() -> None:
    sent, transport = joining()
    transport.write(HEAD)
    transport.write(memoryview(b"ok"))
    transport.write(memoryview(b"more"))
    assert [bytes(one) for one in sent.writes] == [HEAD + b"ok", b"more"]


async def test_the_server_sends_a_short_answer_in_one_packet(send_raw: SendRaw) -> None:
    """The real server, the real loop: a head in a packet of its own costs a system call, and wakes its caller twice."""
    received: list[bytes] = []

    class Reading(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            received.append(data)

    await send_raw(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")  # the server runs
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(Reading, "127.0.0.1", send_raw.port)  # type: ignore[attr-defined]
    transport.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    async with asyncio.timeout(10):
        while not received:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    transport.close()
    assert received[0].startswith(b"HTTP/1.1 200")
    assert received[0].endswith(b"\r\n\r\n0"), received


# ---- whole responses -------------------------------------------------------------------------------------------------


async def test_requests_in_one_packet_are_answered_in_their_order(send_raw: SendRaw) -> None:
    many = b"".join(
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (size, b"x" * size) for size in range(20)
    )
    assert bodies(await send_raw(many + CLOSING)) == [*(b"200 %d" % size for size in range(20)), b"200 0"]


@pytest.mark.parametrize("head", [b"GET / HTTP/1.0\r\n\r\n", CLOSING])
async def test_a_caller_that_wants_no_further_answer_is_told_so(send_raw: SendRaw, head: bytes) -> None:
    answer = await send_raw(head)
    assert b"\r\nconnection: close\r\n" in answer
    assert answer.endswith(b"\r\n\r\n0")


async def test_the_head_of_an_answer_is_asked_for_without_its_body(send_raw: SendRaw) -> None:
    answer = await send_raw(b"HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert b"content-length: 1\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_a_caller_that_expects_100_continue_gets_it_before_the_answer(send_raw: SendRaw) -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    answer = await send_raw(head, b"ab" + CLOSING)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


async def test_a_connection_is_closed_when_it_is_idle_and_not_before(send_raw: SendRaw) -> None:
    """`timeout_keep_alive` is 1 s here, so a call every 0.6 s keeps it open."""
    port = send_raw.port  # type: ignore[attr-defined]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(20):
        for _ in range(5):
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(1) == b"0"
            await asyncio.sleep(0.6)
        assert await reader.read() == b"", "closed, and nothing else was sent"
    writer.close()


class Cycle:
    """The parts of uvicorn's cycle that a whole response uses."""

    def __init__(self) -> None:
        self.response_started = self.response_complete = self.disconnected = self.waiting_for_100_continue = False
        self.keep_alive, self.flow = True, SimpleNamespace(write_paused=False)
        self.default_headers = [(b"date", b"now")]
        self.message_event, self.written, self.ends = asyncio.Event(), list[bytes](), 0
        self.transport = SimpleNamespace(write=self.written.append)

    def on_response(self) -> None:
        self.ends += 1


@pytest.mark.parametrize("header", [(b"x", b"a\r\nb: c"), (b"x", b"a\nb"), (b"x", b"a\rb"), (b"x\r\ny", b"a")])
def test_a_header_with_a_line_break_is_left_to_the_check_of_the_server(header: tuple[bytes, bytes]) -> None:
    cycle = Cycle()
    assert not WholeResponse(cast("Any", cycle))(200, [(b"a", b"b"), header], b"body")
    assert (cycle.written, cycle.response_started, cycle.ends) == ([], False, 0)


@pytest.mark.parametrize("state", ["response_started", "disconnected", "write_paused", "closes"])
def test_a_response_is_not_sent_whole_where_messages_are_needed(state: str) -> None:
    cycle = Cycle()
    if state == "write_paused":
        cycle.flow.write_paused = True
    elif state == "closes":
        cycle.keep_alive = False
    else:
        setattr(cycle, state, True)
    assert not WholeResponse(cast("Any", cycle))(200, [], b"body")
    assert (cycle.written, cycle.ends) == ([], 0)


def test_a_whole_response_is_one_write_and_ends_its_request() -> None:
    cycle = Cycle()
    assert WholeResponse(cast("Any", cycle))(429, [(b"retry-after", b"3")], b"{}")
    assert cycle.written == [
        b"HTTP/1.1 429 Too Many Requests\r\ndate: now\r\nretry-after: 3\r\ncontent-length: 2\r\n\r\n{}"
    ]
    assert cycle.response_started
    assert cycle.response_complete
    assert cycle.message_event.is_set()
    assert cycle.ends == 1


@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_callers_that_go_leave_nothing_behind(send_raw: SendRaw, method: bytes) -> None:
    """Requests refer to themselves by the extension; the collector runs rarely in a service."""
    port = send_raw.port  # type: ignore[attr-defined]
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(method + b" /slow HTTP/1.1\r\nhost: x\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.close()
        await asyncio.sleep(2.0)
        left = [one for one in gc.get_objects() if isinstance(one, RequestResponseCycle)]
        assert not left
    finally:
        gc.enable()


# ---- requests without a task -----------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(application: Any) -> AsyncIterator[int]:
    """Serve an application. Yields the port."""
    config = uvicorn.Config(
        application, port=0, http=BoundedHttp, lifespan="off", log_config=None, interface="asgi3", proxy_headers=False
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  # uvicorn sets a flag
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nab"


@pytest.mark.parametrize("parts", [[POST], [POST[:30], POST[30:]], [POST[:-2], POST[-2:]], [POST[:-1], POST[-1:]]])
async def test_a_request_is_offered_whole_if_its_body_came_with_its_head(parts: list[bytes]) -> None:
    offered: list[WholeRequest | None] = []

    def application(scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        offered.append(whole_request_of(scope))
        return app(scope, receive, send)

    async with serving(application) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.05)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()
    (request,) = offered
    assert (request is not None) == (b"\r\n\r\n" in parts[-1])
    assert request is None or request.body == b"ab"


async def test_the_end_of_a_connection_is_reported_to_a_request_without_a_task() -> None:
    gone, tasks = asyncio.Event(), list[str]()

    async def late() -> None:
        tasks.append("done")

    def application(scope: Any, _receive: Any, _send: Any) -> Awaitable[None]:
        request = whole_request_of(scope)
        assert request is not None

        def went() -> None:
            assert not request.respond(200, [], b"unsent")
            request.start(late())
            gone.set()

        request.when_gone = went
        return ANSWERED_LATER

    async with serving(application) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST)
        await asyncio.sleep(0.05)
        writer.close()
        async with asyncio.timeout(10):
            await gone.wait()
    assert tasks == ["done"], "a server that stops waits for the task"


async def test_an_application_that_raises_outside_a_task_is_a_server_error() -> None:
    def application(scope: Any, _receive: Any, _send: Any) -> Awaitable[None]:
        raise RuntimeError(scope["path"])

    async with serving(application) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 500")
        writer.close()
