"""The client against a small proxy that fails on demand."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from shared.runtime import errors as served
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.errors import BadRequest, DeadlineMissed, NotFound, TreadleError, Unavailable, Unexpected
from treadle.client.requests import RewardRequest, StageTemplate, Task
from treadle.client.retry import RetryPolicy

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
QUICK = RetryPolicy(give_up_after_s=20, first_backoff_s=0.001, max_backoff_s=0.01)
TOTAL = 9
LINES = [
    json.dumps({"cursor": f"{n}-0", "id": f"r{n}", "state": "finished", "request_id": str(n)}).encode() + b"\n"
    for n in range(TOTAL)
]


def problem(error: served.TreadleError) -> web.Response:
    return web.json_response(error.problem(), status=error.status, content_type="application/problem+json")


class FakeProxy:
    """A batch of nine answered requests, sent in ways that a test chooses call by call."""

    def __init__(self) -> None:
        self.afters: list[str] = []
        self.follows: list[bool] = []
        self.manners: list[str] = []
        """Behaviours of the next calls for results: cut, silent, short, away; then whole."""
        self.bulks: list[list[str]] = []
        """request_ids of each bulk call."""
        self.bulk_replies: list[Any] = []
        self.ends_at_call: float = 0
        """The batch has ended when so many calls for results have been made."""
        self.tenants: set[str | None] = set()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/batches/{batch}/results", self.results)
        app.router.add_get("/v1/batches/{batch}", self.batch)
        app.router.add_post("/v1/rewards/bulk", self.bulk)
        app.router.add_put("/v1/tasks/{task}", self.task)
        app.router.add_get("/v1/tasks/{task}", self.no_task)
        app.router.add_get("/healthz", self.health)
        return app

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def batch(self, request: web.Request) -> web.Response:
        view = {"id": "b", "task": "t", "tenant": "default", "state": "open", "size": TOTAL, "submitted": TOTAL}
        times = {"opened_at": 0, "first_arrival_at": 0, "expected_completion_at": None, "extra_delay_s": None}
        rest: dict[str, Any] = {
            "answered": TOTAL,
            "ended_at": 1.0 if len(self.afters) >= self.ends_at_call else None,
            "overhead_s": None,
            "stages": [],
        }
        return web.json_response({**view, **times, **rest})

    async def results(self, request: web.Request) -> web.StreamResponse:
        after = request.query["after"]
        self.afters.append(after)
        self.follows.append(request.query["follow"] == "true")
        manner = self.manners.pop(0) if self.manners else "whole"
        if manner == "away":
            return problem(served.Unavailable(what="away", retry_after_s=0.0))
        lines = LINES[int(after.partition("-")[0]) + 1 if after else 0 :]
        response = web.StreamResponse()
        await response.prepare(request)
        if manner == "whole":
            await response.write(b"".join(lines))
            return response
        await response.write(b"".join(lines[:2]) + (lines[2][:9] if lines[2:] else b""))
        if manner == "silent":
            await asyncio.sleep(60)
        if manner == "cut":
            await asyncio.sleep(0.02)  # what was written reaches the reader before the end of the connection does
            assert request.transport is not None
            request.transport.abort()
        return response

    async def bulk(self, request: web.Request) -> web.Response:
        self.tenants.add(request.headers.get("treadle-tenant"))
        body = (await request.read()).splitlines()
        self.bulks.append([json.loads(line)["request_id"] for line in body])
        if not self.bulk_replies:
            return web.json_response({"accepted": len(body), "repeated": 0, "rejected": []})
        reply = self.bulk_replies.pop(0)
        if isinstance(reply, served.TreadleError):
            return problem(reply)
        if reply == "cut":
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(reply)

    async def task(self, request: web.Request) -> web.Response:
        return web.json_response({**await request.json(), "name": "t", "tenant": "default", "version": 1})

    async def no_task(self, request: web.Request) -> web.Response:
        return problem(served.NotFound(kind="task", name=request.match_info["task"]))


@pytest.fixture
async def proxy() -> FakeProxy:
    return FakeProxy()


@pytest.fixture
async def client(proxy: FakeProxy) -> AsyncIterator[AsyncTreadle]:
    async with (
        serving(proxy.app()) as url,
        AsyncTreadle(url, tenant="me", retry_policy=QUICK, read_timeout_s=0.3) as client,
    ):
        yield client


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    async with TestServer(app, shutdown_timeout=0.1) as server:
        yield str(server.make_url("/"))


async def read(client: AsyncTreadle, **options: Any) -> list[str | None]:
    return [result.request_id async for page in client.results("b", **options) for result in page]


ALL = [str(number) for number in range(TOTAL)]


@pytest.mark.parametrize("manner", ["cut", "silent", "short", "away"])
async def test_each_result_is_read_once_over_broken_connections(
    client: AsyncTreadle, proxy: FakeProxy, manner: str
) -> None:
    proxy.manners = [manner, manner, "whole"]
    proxy.ends_at_call = 3
    async with asyncio.timeout(30):
        assert await read(client) == ALL
    expected = ["", "", ""] if manner == "away" else ["", "1-0", "3-0"]
    assert proxy.afters[:3] == expected


async def test_a_connection_broken_after_the_end_of_the_batch_is_continued(
    client: AsyncTreadle, proxy: FakeProxy
) -> None:
    """The batch ends between two connections: the last results are read without `follow`, and that may break too."""
    proxy.manners = ["short", "cut", "silent", "away", "whole"]
    async with asyncio.timeout(30):
        assert await read(client) == ALL
    assert proxy.follows == [True, False, False, False, False]


async def test_reading_begins_after_a_cursor(client: AsyncTreadle) -> None:
    assert await read(client, after="6-0") == ["7", "8"]


async def test_waiting_for_a_batch_without_answers_ends(client: AsyncTreadle, proxy: FakeProxy) -> None:
    proxy.ends_at_call = math.inf
    with pytest.raises(DeadlineMissed, match="after='8-0'"):
        async with asyncio.timeout(30):
            await read(client, answer_timeout_s=0.2)


async def test_a_batch_that_does_not_exist_is_an_error_at_once(client: AsyncTreadle, proxy: FakeProxy) -> None:
    async def gone(request: web.Request) -> web.Response:
        return problem(served.NotFound(kind="batch", name="b"))

    app = web.Application()
    app.router.add_get("/v1/batches/{batch}/results", gone)
    async with serving(app) as url, AsyncTreadle(url, retry_policy=QUICK) as other:
        with pytest.raises(NotFound, match="no batch 'b'"):
            await read(other)


def requests(count: int) -> list[RewardRequest]:
    return [RewardRequest(request_id=str(number)) for number in range(count)]


async def test_only_requests_rejected_by_a_full_mesh_are_sent_again(client: AsyncTreadle, proxy: FakeProxy) -> None:
    full = served.Overloaded(what="full", retry_after_s=0.0).problem()
    odd = served.BadRequest(what="odd").problem()
    rejected = [{"line": 2, "request_id": "1", "problem": full}, {"line": 3, "request_id": "2", "problem": odd}]
    again = [{"line": 1, "request_id": "1", "problem": full}]
    proxy.bulk_replies = [
        {"accepted": 2, "repeated": 0, "rejected": rejected},
        {"accepted": 0, "repeated": 0, "rejected": again},
    ]
    accepted: list[int] = []
    receipt = await client.submit("b", requests(4), on_accepted=accepted.append)
    assert proxy.bulks == [["0", "1", "2", "3"], ["1"], ["1"]]
    assert (receipt.accepted, [(each.line, each.problem["what"]) for each in receipt.rejected]) == (3, [(3, "odd")])
    assert sum(accepted) == 3
    assert proxy.tenants == {"me"}


async def test_a_call_without_an_answer_is_retried(client: AsyncTreadle, proxy: FakeProxy) -> None:
    proxy.bulk_replies = [
        "cut",
        served.Unavailable(what="away", retry_after_s=0.0),
        {"accepted": 1, "repeated": 2, "rejected": []},
    ]
    receipt = await client.submit("b", requests(3))
    assert (receipt.accepted, receipt.repeated, receipt.rejected) == (1, 2, [])
    assert proxy.bulks == [["0", "1", "2"]] * 3


async def test_many_requests_are_sent_in_chunks(client: AsyncTreadle, proxy: FakeProxy) -> None:
    receipt = await client.submit("b", requests(1100))
    assert receipt.accepted == 1100
    assert [len(bulk) for bulk in proxy.bulks] == [512, 512, 76]


async def test_a_request_that_cannot_be_retried_is_not_sent(client: AsyncTreadle, proxy: FakeProxy) -> None:
    with pytest.raises(BadRequest, match=r"requests\[1\] has no request_id"):
        await client.submit("b", [RewardRequest(request_id="a"), RewardRequest()])
    assert proxy.bulks == []


async def test_a_declared_task_is_returned(client: AsyncTreadle) -> None:
    task = Task(stages=[StageTemplate(name="run", kind="noop")], batch_size=3)
    view = await client.put_task("t", task)
    assert (view.version, view.batch_size, view.stages) == (1, 3, task.stages)
    with pytest.raises(NotFound, match="no task 'u'"):
        await client.task("u")


async def test_a_probe_is_one_call() -> None:
    async with AsyncTreadle(f"http://127.0.0.1:{unused_port()}") as client:
        with pytest.raises(Unavailable):
            await client.probe()

    for body in (b"<html>It works!", b'{"status": "\xff"}', b"[" * 100_000):

        async def page(request: web.Request, body: bytes = body) -> web.Response:
            return web.Response(body=body)

        app = web.Application()
        app.router.add_get("/healthz", page)
        async with serving(app) as url, AsyncTreadle(url) as other:
            with pytest.raises(Unexpected, match="is it the address of Treadle's proxy"):
                await other.probe()
    async with serving(FakeProxy().app()) as url, AsyncTreadle(url) as treadle:
        await treadle.probe()


async def test_equal_request_ids_are_rejected_before_a_batch_is_opened(client: AsyncTreadle, proxy: FakeProxy) -> None:
    """One of the two would stay without an answer, and the batch would never be complete."""
    async with asyncio.timeout(10):
        with pytest.raises(BadRequest, match="have the same request_id '0'"):
            await client.grade("t", [RewardRequest(), RewardRequest(request_id="0")])
    assert proxy.bulks == []


@pytest.mark.parametrize("value", [object(), "\ud800", {(1, 2): 3}])
async def test_a_value_that_json_does_not_have_is_a_bad_request(client: AsyncTreadle, value: object) -> None:
    with pytest.raises(BadRequest, match="request 'a' cannot be encoded as JSON"):
        await client.submit("b", [RewardRequest(request_id="a", params={"code": value})])
    with pytest.raises(BadRequest, match="the body of POST /v1/actions cannot be encoded as JSON"):
        await client.run("noop", {"echo": value})


async def test_the_proxy_may_have_a_path(proxy: FakeProxy) -> None:
    """A reverse proxy offers the mesh below a prefix."""
    app = web.Application()
    app.add_subapp("/mesh/one", proxy.app())
    async with serving(app) as url, AsyncTreadle(f"{url}mesh/one", retry_policy=QUICK) as client:
        await client.probe()
        assert (await client.submit("b", requests(2))).accepted == 2
        assert await read(client) == ALL


async def test_an_answer_that_is_no_receipt_is_unexpected(client: AsyncTreadle, proxy: FakeProxy) -> None:
    proxy.bulk_replies = [{"hello": "world"}]
    with pytest.raises(Unexpected, match="BulkReceipt"):
        await client.submit("b", requests(1))


@pytest.mark.parametrize("line", [b"<html>\n", b'{"cursor": "\xff"}\n'])
async def test_a_stream_that_is_no_ndjson_is_unexpected(
    client: AsyncTreadle, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    monkeypatch.setitem(globals(), "LINES", [line])
    with pytest.raises(Unexpected, match="a line that is no result"):
        await read(client)


@asynccontextmanager
async def replying(reply: bytes) -> AsyncIterator[str]:
    """Serve these bytes to whatever connects."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 307 Again\r\nlocation: /\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=["no HTTP", "endless redirect"],
)
async def test_a_server_of_another_protocol_is_unexpected(reply: bytes) -> None:
    async with asyncio.timeout(20), replying(reply) as url, AsyncTreadle(url, retry_policy=QUICK) as client:
        for call in (client.nodes(), read(client)):
            with pytest.raises(TreadleError, match="does not answer as an HTTP server does") as raised:
                await call
            assert type(raised.value) is Unexpected
