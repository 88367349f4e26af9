"""Redirects: which are followed, and what goes along."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from services.quota_manager.outgoing.calls import OutgoingCall, SecretName
from services.quota_manager.outgoing.client import open_outgoing
from services.quota_manager.outgoing.errors import BrokenAnswer, ForbiddenAddress, NoFirstByte, OutgoingError
from services.quota_manager.secrets import Secrets, load_secrets
from tests.services.quota_manager.outgoing.upstreams import (
    Names,
    Received,
    answering,
    redirecting,
    reply,
    serving,
    trusting,
)

VALUE = "s3cr3t/value+with=signs"
NAMES: Mapping[str, list[list[str]]] = {
    "a.test": [["127.0.0.1"]],
    "b.test": [["127.0.0.1"]],
    "secure.test": [["127.0.0.1"]],
    "other.test": [["127.0.0.1"]],
}
HEADERS = {
    "Authorization": "Bearer plain",
    "Cookie": "session=plain",
    "X-Api-Key": "plain",
    "Accept": "application/json",
    "Accept-Language": "de",
}


def one_secret(*hosts: str, header: str = "X-Secret") -> Secrets:
    named = ",".join(f'"{host}"' for host in hosts)
    text = f'{{"value": "{VALUE}", "tenants": ["*"], "hosts": [{named}], "header": "{header}"}}'
    return load_secrets(None, {"QUOTA_SECRET_KEY": text})


async def called(call: OutgoingCall, secrets: Secrets | None = None) -> object:
    async with open_outgoing(
        secrets=secrets or Secrets(), resolve=Names(NAMES), allow_addresses=["127.0.0.0/8"], tls=trusting()
    ) as outgoing:
        try:
            return await outgoing.call(replace(call, timeout_s=5))
        except OutgoingError as error:
            return error


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_followed_with_its_method_and_headers(method: str, status: int) -> None:
    async with serving(answering(reply(status, b"", "location: /b?c=1"), reply(200))) as server:
        answer = await called(OutgoingCall(method, f"http://a.test:{server.port}/a", headers=HEADERS))
    assert getattr(answer, "status", answer) == 200
    assert getattr(answer, "url", "") == f"http://a.test:{server.port}/b"
    assert [one.line for one in server.requests] == [f"{method} /a HTTP/1.1", f"{method} /b?c=1 HTTP/1.1"]
    assert {name.lower(): value for name, value in HEADERS.items()}.items() <= server.requests[1].headers.items()


@pytest.mark.parametrize("call", [{"method": "POST"}, {"method": "DELETE"}, {"method": "GET", "body": b"x"}])
async def test_a_redirect_of_another_method_is_the_answer(call: dict[str, object]) -> None:
    async with serving(redirecting("/b", 307)) as server:
        url = f"http://a.test:{server.port}/a"
        made = OutgoingCall(url=url, content_type="text/plain", **call)  # type: ignore[arg-type]
        answer = await called(made)
    assert (getattr(answer, "status", answer), len(server.requests)) == (307, 1)
    assert ("location", "/b") in getattr(answer, "headers", ())


@pytest.mark.parametrize("status", [300, 304, 305, 306])
async def test_another_status_is_the_answer(status: int) -> None:
    async with serving(redirecting("/b", status)) as server:
        answer = await called(OutgoingCall("GET", f"http://a.test:{server.port}/a"))
    assert (getattr(answer, "status", answer), len(server.requests)) == (status, 1)


async def test_a_redirect_without_location_is_the_answer() -> None:
    async with serving(answering(reply(302))) as server:
        answer = await called(OutgoingCall("GET", f"http://a.test:{server.port}/a"))
    assert getattr(answer, "status", answer) == 302


@pytest.mark.parametrize("where", ["name", "port"])
async def test_only_harmless_headers_follow_to_another_origin(where: str) -> None:
    async with serving(answering(reply(200))) as other:
        host = "b.test" if where == "name" else "a.test"
        async with serving(redirecting(f"http://{host}:{other.port}/")) as server:
            answer = await called(OutgoingCall("GET", f"http://a.test:{server.port}/", headers=HEADERS))
    assert getattr(answer, "status", answer) == 200
    assert set(other.requests[0].headers) == {"host", "accept", "accept-language", "accept-encoding", "user-agent"}
    assert other.requests[0].headers["host"] == f"{host}:{other.port}"


async def test_headers_do_not_come_back_with_a_redirect_to_the_first_origin() -> None:
    ports: list[int] = []

    async def there(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(302, b"", f"location: http://a.test:{ports[0]}/back"))

    async with serving(there) as other:
        handler = answering(reply(302, b"", f"location: http://b.test:{other.port}/"), reply(200))
        async with serving(handler) as server:
            ports.append(server.port)
            call = OutgoingCall(
                "GET", f"http://a.test:{server.port}/", headers={**HEADERS, "X-Secret": SecretName("key")}
            )
            await called(call, one_secret(f"http://a.test:{server.port}"))
    first, back = server.requests
    assert first.headers["x-secret"] == VALUE
    assert first.headers["authorization"] == "Bearer plain"
    assert {"x-secret", "authorization", "cookie", "x-api-key"}.isdisjoint(back.headers)


@pytest.mark.parametrize("count", [5, 6])
async def test_at_most_five_redirects_are_followed(count: int) -> None:
    redirects = [reply(302, b"", f"location: /{number}") for number in range(count)]
    async with serving(answering(*redirects, reply(200))) as server:
        answer = await called(OutgoingCall("GET", f"http://a.test:{server.port}/"))
    assert len(server.requests) == 6
    assert isinstance(answer, BrokenAnswer) is (count == 6)


async def test_all_redirects_share_one_time_limit() -> None:
    async def slow(received: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.4)
        writer.write(reply(302, b"", "location: /again"))

    async with serving(slow) as server, open_outgoing(
        secrets=Secrets(), resolve=Names(NAMES), allow_addresses=["127.0.0.0/8"]
    ) as outgoing:  # fmt: skip
        with pytest.raises(NoFirstByte):
            await outgoing.call(OutgoingCall("GET", f"http://a.test:{server.port}/", timeout_s=1.0))
    assert len(server.requests) < 5


async def test_a_redirect_to_a_server_that_is_away_counts_as_sent() -> None:
    async with serving(answering(reply())) as gone:
        pass
    async with serving(redirecting(f"http://b.test:{gone.port}/")) as server:
        assert isinstance(await called(OutgoingCall("GET", f"http://a.test:{server.port}/")), NoFirstByte)


@pytest.mark.parametrize("header", ["X-Secret", "Authorization", "Accept-Language"])
async def test_a_secret_does_not_follow_to_another_origin(header: str) -> None:
    async with (
        serving(answering(reply(200, b"there"))) as other,
        serving(redirecting(f"http://b.test:{other.port}/")) as server,
    ):
        secrets = one_secret(f"http://a.test:{server.port}", f"http://b.test:{other.port}", header=header)
        call = OutgoingCall("GET", f"http://a.test:{server.port}/", headers={header: SecretName("key")})
        answer = await called(call, secrets)
    assert getattr(answer, "body", answer) == b"there"
    assert server.requests[0].headers[header.lower()] == VALUE
    assert VALUE.encode() not in other.requests[0].raw


async def test_a_redirect_of_a_call_with_a_secret_to_the_same_origin_is_the_answer() -> None:
    async with serving(redirecting("/b")) as server:
        secrets = one_secret(f"http://a.test:{server.port}")
        call = OutgoingCall("GET", f"http://a.test:{server.port}/", headers={"X-Secret": SecretName("key")})
        answer = await called(call, secrets)
    assert (getattr(answer, "status", answer), len(server.requests)) == (302, 1)


@pytest.mark.parametrize(
    "form",
    [
        "http://b.test:{port}/?key=s3cr3t/value+with=signs",
        "http://b.test:{port}/s3cr3t%2Fvalue%2Bwith%3Dsigns",
        "http://b.test:{port}/s3cr3t%2fvalue%2bwith%3dsigns",
        "http://b.test:{port}/%73%33cr3t%252Fvalue%252Bwith%253Dsigns",
        "http://b.test:{port}/#s3cr3t/value+with=signs",
        "http://b.test:{port}/?k=czNjcjN0L3ZhbHVlK3dpdGg9c2lnbnM=",
        "http://b.test:{port}/?k=7333637233742f76616c75652b776974683d7369676e73",
    ],
)
async def test_a_redirect_that_contains_the_secret_is_not_followed(form: str) -> None:
    """Else the server would have us send it to another host."""
    async with (
        serving(answering(reply(200))) as other,
        serving(redirecting(form.format(port=other.port))) as server,
    ):
        secrets = one_secret(f"http://a.test:{server.port}")
        call = OutgoingCall("GET", f"http://a.test:{server.port}/", headers={"X-Secret": SecretName("key")})
        answer = await called(call, secrets)
    assert isinstance(answer, ForbiddenAddress)
    assert "s3cr3t" not in str(answer)
    assert other.connections == 0


async def test_a_call_with_a_secret_is_not_redirected_from_https_to_http() -> None:
    async with (
        serving(answering(reply(200))) as other,
        serving(redirecting(f"http://b.test:{other.port}/"), tls=True) as server,
    ):
        url = f"https://secure.test:{server.port}/"
        call = OutgoingCall("GET", url, headers={"X-Secret": SecretName("key")})
        answer = await called(call, one_secret(f"secure.test:{server.port}"))
        assert server.requests[0].headers["x-secret"] == VALUE
        assert isinstance(answer, ForbiddenAddress)
        assert other.connections == 0
        assert getattr(await called(replace(call, headers={})), "status", 0) == 200


async def test_a_redirect_to_https_does_not_carry_the_secret() -> None:
    async with (
        serving(answering(reply(200)), tls=True) as other,
        serving(redirecting(f"https://secure.test:{other.port}/")) as server,
    ):
        call = OutgoingCall("GET", f"http://a.test:{server.port}/", headers={"X-Secret": SecretName("key")})
        answer = await called(call, one_secret(f"http://a.test:{server.port}"))
    assert getattr(answer, "status", answer) == 200
    assert "x-secret" not in other.requests[0].headers
