"""A secret reaches its server, and nothing else: no answer, error, log, repr or other server."""

from __future__ import annotations

import asyncio
import base64
import gc
import html
import json
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.quota_manager.outgoing.calls import OutgoingCall, SecretName
from services.quota_manager.outgoing.client import Outgoing, open_outgoing
from services.quota_manager.outgoing.errors import InvalidCall, OutgoingError
from services.quota_manager.outgoing.masking import Mask
from services.quota_manager.secrets import Secrets, load_secrets
from tests.services.quota_manager.outgoing.upstreams import Handler, Names, Received, answering, reply, serving

VALUE = "hid/den+\"<&>'=zq81 x"
CORE = "zq81"
"""A part that no encoding of the tests below changes; the whole is searched for in each encoding."""
NAMES = {"a.test": [["127.0.0.1"]], "b.test": [["127.0.0.1"]]}


def secrets_for(port: int) -> Secrets:
    entry = {"value": VALUE, "tenants": ["team-a"], "hosts": [f"http://a.test:{port}"], "header": "X-Key"}
    return load_secrets(None, {"QUOTA_SECRET_KEY": json.dumps({**entry, "prefix": "Key "})})


@asynccontextmanager
async def client(port: int) -> AsyncIterator[Outgoing]:
    async with open_outgoing(
        secrets=secrets_for(port), resolve=Names(NAMES), allow_addresses=["127.0.0.0/8"]
    ) as outgoing:
        yield outgoing


def call(port: int, host: str = "a.test", tenant: str = "team-a", header: str = "X-Key") -> OutgoingCall:
    url = f"http://{host}:{port}/path"
    return OutgoingCall("GET", url, headers={header: SecretName("key")}, tenant=tenant, timeout_s=2)


async def test_a_secret_arrives_with_its_prefix() -> None:
    async with serving(answering(reply())) as server, client(server.port) as outgoing:
        await outgoing.call(call(server.port))
    assert server.requests[0].headers["x-key"] == f"Key {VALUE}"


@pytest.mark.parametrize(
    "changes", [{"tenant": "team-b"}, {"host": "b.test"}, {"header": "X-Other"}, {"header": "Authorization"}]
)
async def test_a_call_that_may_not_use_a_secret_is_refused_before_anything_is_sent(changes: dict[str, str]) -> None:
    async with serving(answering(reply())) as server, client(server.port) as outgoing:
        with pytest.raises(InvalidCall) as caught:
            await outgoing.call(call(server.port, **changes))
    assert server.connections == 0
    assert CORE not in str(caught.value)


async def test_a_secret_that_does_not_exist_is_refused() -> None:
    async with serving(answering(reply())) as server, client(server.port) as outgoing:
        url = f"http://a.test:{server.port}/"
        made = OutgoingCall("GET", url, headers={"X-Key": SecretName("other")}, tenant="team-a")
        with pytest.raises(InvalidCall, match="there is no secret 'other' for tenant 'team-a'"):
            await outgoing.call(made)
    assert server.connections == 0


ECHOES = {
    "plain": VALUE,
    "with-prefix": f"Key {VALUE}",
    "percent": quote(VALUE),
    "percent-all": quote(VALUE, safe=""),
    "percent-lower": "hid%2fden%2b%22%3c%26%3e%27%3dzq81%20x",
    "form": quote_plus(VALUE),
    "json": json.dumps(VALUE),
    "json-php": json.dumps(VALUE).replace("/", "\\/"),
    "html": html.escape(VALUE),
    "html-decimal": html.escape(VALUE).replace("&#x27;", "&#39;"),
    "hex": VALUE.encode().hex(),
    "hex-upper": VALUE.encode().hex().upper(),
    "base64": base64.b64encode(VALUE.encode()).decode(),
    "base64-url": base64.urlsafe_b64encode(VALUE.encode()).decode(),
    "base64-with-prefix": base64.b64encode(f"Key {VALUE}".encode()).decode(),
    "base64-user": base64.b64encode(f"u:{VALUE}:x".encode()).decode(),
    "base64-request": base64.b64encode(f"GET / HTTP/1.1\r\nx-key: Key {VALUE}\r\n\r\n".encode()).decode(),
}  # fmt: skip


def parts(echo: str) -> list[str]:
    """What must not be left of an echo: its middle, which no neighbour in base64 changes."""
    return [echo[len(echo) // 2 - 4 : len(echo) // 2 + 4]]


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES.keys())
async def test_an_echo_is_masked_in_body_and_headers(echo: str) -> None:
    header = f"X-Echo: {echo}"
    async with (
        serving(answering(reply(401, f"before {echo} after {echo}".encode(), header))) as server,
        client(server.port) as outgoing,
    ):
        answer = await outgoing.call(call(server.port))
    shown = answer.body.decode() + repr(answer.headers) + repr(answer)
    assert not any(part in shown for part in parts(echo))
    assert CORE not in shown
    assert answer.body.startswith(b"before ")
    assert b"***" in answer.body
    assert "***" in dict(answer.headers)["x-echo"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
async def test_an_echo_in_utf_16_is_masked(encoding: str) -> None:
    async with serving(answering(reply(200, VALUE.encode(encoding)))) as server, client(server.port) as outgoing:
        assert (await outgoing.call(call(server.port))).body == b"***"


async def test_an_echo_in_chunks_is_masked() -> None:
    async def in_chunks(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for character in VALUE:
            writer.write(b"1\r\n" + character.encode() + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.005)
        writer.write(b"0\r\n\r\n")

    async with serving(in_chunks) as server, client(server.port) as outgoing:
        assert (await outgoing.call(call(server.port))).body == b"***"


async def test_an_echo_in_the_name_of_a_header_is_masked() -> None:
    async with serving(answering(reply())) as server:
        entry = {"value": "PLAINVALUE", "tenants": ["*"], "hosts": [f"http://a.test:{server.port}"], "header": "X-Key"}
        secrets = load_secrets(None, {"QUOTA_SECRET_KEY": json.dumps(entry)})
    async with serving(answering(reply(200, b"", "X-PLAINVALUE: 1")), port=server.port), open_outgoing(
        secrets=secrets, resolve=Names(NAMES), allow_addresses=["127.0.0.0/8"]
    ) as outgoing:  # fmt: skip
        answer = await outgoing.call(call(server.port))
    assert "plainvalue" not in repr(answer.headers).lower()


@given(
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=8, max_size=64),
    st.binary(max_size=20),
    st.binary(max_size=20),
)
def test_a_value_in_base64_of_anything_is_masked(value: str, before: bytes, after: bytes) -> None:
    """At each of the three alignments, all but the edges is gone."""
    encoded = base64.b64encode(before + value.encode() + after)
    masked = Mask([value]).body(encoded)
    assert b"***" in masked
    assert len(masked) <= len(encoded) - (len(value) * 4 // 3 - 4) + 3 * masked.count(b"***")


def test_a_mask_of_nothing_changes_nothing() -> None:
    mask = Mask([])
    assert (mask.body(b"a\xff"), mask.text("b"), mask.is_in("b")) == (b"a\xff", "b", False)


async def closing(_: Received, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def echoing_invalid_head(received: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n" + received.headers["x-key"].encode() + b"\x00\r\n\r\n")


async def echoing_status(received: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 abc " + received.headers["x-key"].encode() + b"\r\n\r\n")


async def echoing_length(received: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: " + received.headers["x-key"].encode() + b"\r\n\r\n")


async def echoing_chunks(received: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + received.raw)


async def echoing_encoding(received: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(reply(200, b"x", f"content-encoding: {received.headers['x-key']}"))


async def echoing_redirect(received: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(reply(302, b"", f"location: http://{CORE}.evil.test/{quote(received.headers['x-key'])}"))


async def echoing_invalid_redirect(received: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(reply(302, b"", f"location: gopher://{received.headers['x-key']}"))


async def echoing_large(received: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(reply(200, received.raw * 10_000))


async def echoing_slowly(received: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n" + received.raw)
    await asyncio.sleep(10)


async def silent(_: Received, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(10)


FAILING: list[Handler] = [
    closing, echoing_invalid_head, echoing_status, echoing_length, echoing_chunks, echoing_encoding, echoing_redirect,
    echoing_invalid_redirect, echoing_large, echoing_slowly, silent,
]  # fmt: skip


@pytest.mark.parametrize("handler", FAILING, ids=lambda handler: handler.__name__)
async def test_a_failure_shows_no_secret(handler: Handler, caplog: pytest.LogCaptureFixture) -> None:
    """Neither its text, nor the errors that it comes from, nor the variables of its traceback, nor the log."""
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    async with serving(handler) as server, client(server.port) as outgoing:
        with pytest.raises(OutgoingError) as caught:
            await outgoing.call(call(server.port))
    assert server.requests[0].headers["x-key"] == f"Key {VALUE}"
    shown = [repr(caught.value), str(caught.value), caplog.text, *traceback.format_exception(caught.value)]
    seen: BaseException | None = caught.value
    while seen is not None:
        shown += [repr(seen), str(seen)]
        frame = seen.__traceback__.tb_next if seen.__traceback__ else None  # without this function
        while frame is not None:
            shown += [repr(value) for value in frame.tb_frame.f_locals.values()]
            frame = frame.tb_next
        seen = seen.__context__
    assert not [one for one in shown if CORE in one]


async def test_a_success_logs_no_secret(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    async with serving(answering(reply(200, VALUE.encode()))) as server, client(server.port) as outgoing:
        answer = await outgoing.call(call(server.port))
    assert CORE not in caplog.text + repr(answer) + repr(outgoing) + "".join(capfd.readouterr())


async def test_a_cancelled_call_leaves_no_secret_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    async with serving(silent) as server, client(server.port) as outgoing:
        task = asyncio.create_task(outgoing.call(call(server.port)))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()
    assert CORE not in caplog.text


async def test_a_connection_that_carried_a_secret_is_not_used_without_it() -> None:
    async with serving(answering(reply())) as server, client(server.port) as outgoing:
        plain = OutgoingCall("GET", f"http://a.test:{server.port}/", tenant="team-a", timeout_s=2)
        for made in (call(server.port), plain, call(server.port), plain):
            await outgoing.call(made)
    assert [one.connection for one in server.requests] == [1, 2, 1, 2]


async def test_a_call_without_secrets_is_not_masked() -> None:
    async with serving(answering(reply(200, VALUE.encode()))) as server, client(server.port) as outgoing:
        answer = await outgoing.call(OutgoingCall("GET", f"http://a.test:{server.port}/", timeout_s=2))
    assert answer.body == VALUE.encode()
