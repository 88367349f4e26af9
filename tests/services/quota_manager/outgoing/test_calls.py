"""What is sent and what comes back."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from services.quota_manager.outgoing.calls import OutgoingCall, SecretName
from services.quota_manager.outgoing.client import open_outgoing
from services.quota_manager.outgoing.errors import InvalidCall
from services.quota_manager.secrets import Secrets
from tests.services.quota_manager.outgoing.upstreams import Names, answering, reply, serving

NAMES = {"a.test": [["127.0.0.1"]], "b.test": [["127.0.0.1"]]}
ALLOW = ["127.0.0.0/8"]


async def test_a_call_arrives_as_it_is_made() -> None:
    handler = answering(reply(201, b'{"a": 1}', "Content-Type: application/json", "X-Two: 1", "X-Two: 2"))
    async with (
        serving(handler) as server,
        open_outgoing(secrets=Secrets(), resolve=Names(NAMES), allow_addresses=ALLOW) as outgoing,
    ):
        call = OutgoingCall(
            "POST",
            f"http://a.test:{server.port}/a%2Fb/é?c=d",
            query={"q": "x y"},
            headers={"X-Mine": "1"},
            body=b'{"q": 1}',
            content_type="application/json",
            timeout_s=5,
        )
        answer = await outgoing.call(call)
    (received,) = server.requests
    assert received.line == "POST /a%2Fb/%C3%A9?c=d&q=x%20y HTTP/1.1"
    assert received.body == b'{"q": 1}'
    assert received.headers == {
        "host": f"a.test:{server.port}",
        "x-mine": "1",
        "content-type": "application/json",
        "content-length": "8",
        "user-agent": "treadle",
        "accept": "*/*",
        "accept-encoding": "gzip, deflate",
    }
    assert (answer.status, answer.body) == (201, b'{"a": 1}')
    assert answer.headers == (
        ("content-length", "8"),
        ("content-type", "application/json"),
        ("x-two", "1"),
        ("x-two", "2"),
    )
    assert answer.url == f"http://a.test:{server.port}/a%2Fb/%C3%A9"
    assert 0 < answer.first_byte_s <= answer.elapsed_s < 5


async def test_connections_are_used_again_by_their_tenant_and_cookies_are_not() -> None:
    handler = answering(reply(200, b"", "set-cookie: tenant=a; path=/"))
    async with (
        serving(handler) as server,
        open_outgoing(secrets=Secrets(), resolve=Names(NAMES), allow_addresses=ALLOW) as outgoing,
    ):
        for tenant in ("a", "a", "b", "a", "b"):
            await outgoing.call(OutgoingCall("GET", f"http://a.test:{server.port}/", tenant=tenant))
    assert [one.connection for one in server.requests] == [1, 1, 2, 1, 2]
    assert all("cookie" not in one.headers for one in server.requests)


@pytest.mark.parametrize("status", [200, 204, 400, 404, 429, 500, 503])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_each_status_of_each_method_is_an_answer(method: str, status: int) -> None:
    body = b"" if method == "HEAD" or status == 204 else b"body"
    head = f"HTTP/1.1 {status} S\r\ncontent-encoding: {'br' if not body else ''}\r\n"
    length = "" if status == 204 else "content-length: 4\r\n"
    async with (
        serving(answering(f"{head}{length}\r\n".encode() + body)) as server,
        open_outgoing(secrets=Secrets(), resolve=Names(NAMES), allow_addresses=ALLOW) as outgoing,
    ):
        answer = await outgoing.call(OutgoingCall(method, f"http://a.test:{server.port}/", timeout_s=5))
    assert (answer.status, answer.body) == (status, body)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "other"},
        {"content-length": "1"},
        {"Transfer-Encoding": "chunked"},
        {"Connection": "upgrade"},
        {"upgrade": "h2c"},
        {"Expect": "100-continue"},
        {"Proxy-Authorization": "x"},
        {"TE": "trailers"},
        {"Accept-Encoding": "br"},
        {"": "x"},
        {"a b": "x"},
        {"a:b": "x"},
        {"a\r\nb": "x"},
        {"é": "x"},
        {"x": "a\r\nHost: other"},
        {"x": "a\nb"},
        {"x": "a\rb"},
        {"x": "a\0b"},
        {"x": "é"},
        {"x": "a" * 9000},
        {"x": "1", "X": "2"},
        {"x" * 200: "1"},
        {f"x-{number}": "1" for number in range(65)},
    ],
)
async def test_a_header_that_could_change_the_request_is_refused(headers: dict[str, str]) -> None:
    async with (
        serving(answering(reply())) as server,
        open_outgoing(secrets=Secrets(), resolve=Names(NAMES), allow_addresses=ALLOW) as outgoing,
    ):
        with pytest.raises(InvalidCall):
            await outgoing.call(OutgoingCall("GET", f"http://a.test:{server.port}/", headers=headers))
    assert server.connections == 0


@pytest.mark.parametrize(
    "call",
    [
        OutgoingCall("CONNECT", "http://a.test/"),
        OutgoingCall("TRACE", "http://a.test/"),
        OutgoingCall("get", "http://a.test/"),
        OutgoingCall("GET /\r\n", "http://a.test/"),
        OutgoingCall("GET", "http://a.test/", timeout_s=0),
        OutgoingCall("GET", "http://a.test/", timeout_s=float("nan")),
        OutgoingCall("GET", "http://a.test/", timeout_s=float("inf")),
        OutgoingCall("GET", "http://a.test/", first_byte_s=-1),
        OutgoingCall("GET", "http://a.test/", most_bytes=-1),
        OutgoingCall("GET", "http://a.test/", content_type="a\r\nb: c"),
        OutgoingCall("GET", "http://a.test/", query={"a": "\ud800"}),
        OutgoingCall("GET", "http://a.test/", query={"a": "b" * 9000}),
    ],
)  # fmt: skip
async def test_an_invalid_call_is_refused(call: OutgoingCall) -> None:
    names = Names(NAMES)
    async with open_outgoing(secrets=Secrets(), resolve=names, allow_addresses=ALLOW) as outgoing:
        with pytest.raises(InvalidCall):
            await outgoing.call(call)
    assert names.lookups == []


async def test_calls_beyond_the_connections_wait() -> None:
    async with (
        serving(answering(reply())) as server,
        open_outgoing(secrets=Secrets(), resolve=Names(NAMES), allow_addresses=ALLOW, connections=2) as outgoing,
    ):
        call = OutgoingCall("GET", f"http://a.test:{server.port}/", timeout_s=10)
        answers = await asyncio.gather(*(outgoing.call(call) for _ in range(20)))
    assert [answer.status for answer in answers] == [200] * 20
    assert server.connections <= 2


async def test_a_network_that_is_none_is_rejected_when_the_client_opens() -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.1/8"):
        async with open_outgoing(secrets=Secrets(), allow_addresses=["10.0.0.1/8"]):
            pass


def test_repr_shows_nothing_that_is_sent() -> None:
    call = OutgoingCall("GET", "http://a.test/?key=hidden", {"a": "hidden"}, {"x": "hidden"}, b"hidden")
    assert "hidden" not in repr(call)


def test_a_header_is_a_text_or_the_name_of_a_secret() -> None:
    headers = msgspec.json.decode(b'{"a": "b", "c": {"secret": "d"}}', type=dict[str, str | SecretName])
    assert headers == {"a": "b", "c": SecretName("d")}
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"c": {"secret": "d", "value": "e"}}', type=dict[str, str | SecretName])
