"""The bare routes: accepted requests, rejected requests, and an HTTP answer at every end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as Broken
from redis.exceptions import OutOfMemoryError
from starlette.types import Message, Receive, Scope, Send

from services.proxy.http.asgi import HotPath, HotRoute
from services.proxy.http.bodies import Bodies
from services.proxy.http.call import Call
from services.proxy.http.replies import Reply
from services.proxy.settings import ProxySettings
from shared.runtime.errors import NotFound, Overloaded, TreadleError

LIMIT = 10


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        return msgspec.json.decode(self.body, type=dict[str, Any])


async def behind(scope: Scope, receive: Receive, send: Send) -> None:
    """The application behind the hot path."""
    if scope["type"] == "http" and scope["path"] == "/v1/silent":
        await asyncio.sleep(60)
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})
    else:
        await send({"type": f"{scope['type']}.seen"})


async def asked(
    path: str,
    *chunks: bytes,
    method: str = "POST",
    query: str = "",
    headers: dict[str, str] | None = None,
    routes: list[HotRoute] | None = None,
) -> Response:
    """One request through a hot path, its body in these chunks."""
    bodies = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks or (b"",)]
    bodies[-1]["more_body"] = False
    sent: list[Message] = []

    async def receive() -> Message:
        return bodies.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    settings = ProxySettings.model_validate({"max_wait_s": 60.0, "read_deadline_s": 0.2})
    proxy = SimpleNamespace(settings=settings, redis=Redis(), bodies=Bodies(1 << 20))  # it has never replied
    scope = {
        "type": "http", "method": method, "path": path, "query_string": query.encode(), "state": {"proxy": proxy},
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
    }  # fmt: skip
    async with asyncio.timeout(20):
        await HotPath(behind, ROUTES if routes is None else routes)(scope, receive, send)
    start, end = sent
    got = {name.decode(): value.decode() for name, value in start["headers"]}
    assert start["status"] == 299 or got["content-length"] == str(len(end["body"]))
    return Response(start["status"], got, end["body"])


async def echo(call: Call) -> Reply:
    return Reply(200, await call.body(LIMIT))


async def show(call: Call) -> Reply:
    query = call.query("wait", "x", "batch", "empty")
    shown = [call.path_args, query, call.wait_s(query), call.tenant()]
    return Reply(200, msgspec.json.encode(shown))


async def update(call: Call) -> Reply:
    return Reply(204, b"")


ROUTES = [
    HotRoute("POST", "/echo", echo),
    HotRoute("GET", "/things/{id}", show),
    HotRoute("DELETE", "/things/{id}", update),
    HotRoute("POST", "/things/all", echo),
    HotRoute("GET", "/t/{tenant}/{task}/x", show),
]


# ---- routes ------------------------------------------------------------------------------------------------------


async def test_a_hot_route_answers_itself() -> None:
    response = await asked("/echo", b"hello")

    assert (response.status, response.body) == (200, b"hello")
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/", "/echo/", "/things", "/things/", "/things/a/b", "/t/a/x"])
async def test_other_requests_are_passed_to_the_app(path: str) -> None:
    assert await asked(path, method="GET") == Response(299, {}, path.encode())


async def test_other_scopes_are_passed_to_the_app() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(message: Message) -> None:
        sent.append(message)

    await HotPath(behind, ROUTES)({"type": "lifespan"}, receive, send)
    assert sent == [{"type": "lifespan.seen"}]


async def test_a_path_that_is_written_out_goes_before_a_pattern() -> None:
    assert (await asked("/things/all", b"x")).body == b"x"


async def test_placeholders_are_handed_to_the_handler() -> None:
    response = await asked("/t/ada/t1/x", method="GET")

    assert msgspec.json.decode(response.body)[0] == ["ada", "t1"]


@pytest.mark.parametrize(("path", "allowed"), [("/echo", "POST"), ("/things/a", "DELETE, GET")])
async def test_another_method_is_refused_with_the_allowed_ones(path: str, allowed: str) -> None:
    response = await asked(path, method="PUT")

    assert (response.status, response.headers["allow"]) == (405, allowed)
    assert (response.problem()["status"], response.problem()["detail"]) == (405, f"use {allowed}")


# ---- bodies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [(b"0123456789",), (b"01234", b"56789"), (b"", b"0123456789"), (b"0123456789", b"")])
async def test_a_body_up_to_the_limit_is_taken_whole(chunks: tuple[bytes, ...]) -> None:
    assert (await asked("/echo", *chunks)).body == b"0123456789"


@pytest.mark.parametrize("chunks", [(b"0123456789X",), (b"0123456789", b"X"), (b"01234", b"56789", b"", b"X")])
async def test_a_body_beyond_the_limit_is_refused_however_it_comes(chunks: tuple[bytes, ...]) -> None:
    response = await asked("/echo", *chunks)

    assert (response.status, response.problem()["limit_bytes"]) == (413, LIMIT)


async def test_an_endless_body_is_not_read_to_its_end() -> None:
    response = await asked("/echo", *[b"0123456789"] * 1000)

    assert response.status == 413


async def test_the_app_gets_whole_bodies_of_bounded_size() -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        assert not message.get("more_body")
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": message["body"]})

    async def through(chunk: bytes, count: int) -> tuple[int, bytes]:
        bodies = [{"type": "http.request", "body": chunk, "more_body": left > 0} for left in reversed(range(count))]
        sent: list[Message] = []

        async def receive() -> Message:
            return bodies.pop(0)

        async def send(message: Message) -> None:
            sent.append(message)

        proxy = SimpleNamespace(settings=ProxySettings.model_validate({"max_body_bytes": 100}), bodies=Bodies(1 << 20))
        scope: Scope = {"type": "http", "method": "PUT", "path": "/behind", "headers": [], "state": {"proxy": proxy}}
        await HotPath(echo, ROUTES)(scope, receive, send)
        return sent[0]["status"], sent[1]["body"]

    assert await through(b"x" * 10, 10) == (299, b"x" * 100)
    assert (await through(b"x" * 10, 11))[0] == 413


# ---- parameters --------------------------------------------------------------------------------------------------


async def shown(query: str = "", headers: dict[str, str] | None = None) -> Response:
    return await asked("/things/a", method="GET", query=query, headers=headers)


@pytest.mark.parametrize(
    ("query", "wait_s"), [("", 0), ("wait=0", 0), ("wait=2.5", 2.5), ("wait=60", 60), ("wait=1&wait=2", 2), ("x=", 0)]
)
async def test_a_caller_chooses_how_long_it_waits(query: str, wait_s: float) -> None:
    assert msgspec.json.decode((await shown(query)).body)[2] == wait_s


@pytest.mark.parametrize("raw", ["-1", "61", "soon", "", "nan", "inf", "-inf"])
async def test_an_invalid_wait_is_refused(raw: str) -> None:
    response = await shown(f"wait={raw}")

    assert response.status == 422
    assert f"seconds from 0 to 60, not '{raw}'" in response.problem()["detail"]


async def test_an_unknown_parameter_is_refused() -> None:
    response = await shown("wiat=5")

    assert response.status == 422
    assert "'wiat'; there is wait, x, batch" in response.problem()["detail"]


async def test_a_query_is_decoded() -> None:
    assert msgspec.json.decode((await shown("batch=b%201&empty=")).body)[1] == {"batch": "b 1", "empty": ""}


@pytest.mark.parametrize(
    ("headers", "tenant"), [({}, "default"), ({"treadle-tenant": "ada-1"}, "ada-1"), ({"other": "x"}, "default")]
)
async def test_a_caller_names_its_tenant(headers: dict[str, str], tenant: str) -> None:
    assert msgspec.json.decode((await shown(headers=headers)).body)[3] == tenant


@pytest.mark.parametrize("name", ["", "-ada", "a b", "ä", "x" * 65, "ada\n"])
async def test_a_name_that_is_none_is_refused(name: str) -> None:
    response = await shown(headers={"treadle-tenant": name})

    assert (response.status, response.problem()["title"]) == (422, "Bad request")


# ---- ends --------------------------------------------------------------------------------------------------------


def raising(error: Exception) -> list[HotRoute]:
    async def handler(call: Call) -> Reply:
        raise error

    return [HotRoute("POST", "/fails", handler)]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (NotFound(kind="batch", name="b"), 404, "not-found"),
        (Overloaded(what="full", retry_after_s=3.0), 503, "overloaded"),
        (Broken("away"), 503, "unavailable"),
        (OSError("reset"), 503, "unavailable"),
        (OutOfMemoryError("OOM"), 503, "overloaded"),
        (TreadleError(), 500, "internal"),
        (ValueError("a bug with a secret"), 500, "internal"),
    ],
    ids=repr,
)
async def test_every_error_is_a_problem(error: Exception, status: int, kind: str) -> None:
    response = await asked("/fails", routes=raising(error))

    assert (response.status, response.problem()["status"]) == (status, status)
    assert response.problem()["type"].endswith(f"/{kind}")
    assert ("retry-after" in response.headers) == (status == 503)
    assert b"secret" not in response.body


async def test_a_call_interrupted_by_a_stopping_proxy_gets_retry_after() -> None:
    entered = asyncio.Event()

    async def wait(call: Call) -> Reply:
        entered.set()
        await asyncio.sleep(60)
        return Reply(200, b"")

    asking = asyncio.create_task(asked("/wait", routes=[HotRoute("POST", "/wait", wait)]))
    await entered.wait()
    asking.cancel()

    response = await asking

    assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert "stopping" in response.problem()["detail"]


@pytest.mark.parametrize("path", ["/echo", "/elsewhere"])
async def test_a_body_that_was_cut_short_is_never_taken_for_whole(path: str) -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": b"half", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    proxy = SimpleNamespace(settings=ProxySettings.model_validate({}), bodies=Bodies(1 << 20))
    scope = {
        "type": "http", "method": "POST", "path": path, "query_string": b"", "state": {"proxy": proxy}, "headers": [],
    }  # fmt: skip
    await HotPath(behind, ROUTES)(scope, receive, send)

    assert sent[0]["status"] == 422
    assert b"before the body was complete" in sent[1]["body"]


async def hang(call: Call) -> Reply:
    await asyncio.sleep(60)
    return Reply(200, b"")


@pytest.mark.parametrize("query", ["", "wait=0.1", "wait=nonsense"])
async def test_a_read_ends_when_valkey_is_silent(query: str) -> None:
    reply = await asked("/v1/reading", method="GET", query=query, routes=[HotRoute("GET", "/v1/reading", hang)])
    assert (reply.status, reply.problem()["detail"]) == (503, "Valkey has not answered for 0.2 s; retry after 1 s")


async def test_a_read_of_the_app_behind_ends_too() -> None:
    reply = await asked("/v1/silent", method="GET")
    assert (reply.status, reply.problem()["title"]) == (503, "Unavailable")
