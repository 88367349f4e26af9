"""No call reaches a server at an address that is not public. The judge is the server: it counts its connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from services.quota_manager.outgoing.calls import OutgoingCall
from services.quota_manager.outgoing.client import open_outgoing
from services.quota_manager.outgoing.errors import BrokenAnswer, ForbiddenAddress, InvalidCall, OutgoingError
from services.quota_manager.secrets import Secrets
from shared.runtime import http
from shared.runtime.http_addresses import JudgedResolver
from tests.services.quota_manager.outgoing.tricks import ADDRESSES, HOSTS, NAMES, SPELLINGS
from tests.services.quota_manager.outgoing.upstreams import (
    Names,
    Upstream,
    answering,
    has_ipv6,
    redirecting,
    reply,
    serving,
)

FRONT, CANARY = "127.0.0.1", "127.0.0.2"
"""For redirects: a server that may be called, and one that may not."""


@pytest_asyncio.fixture
async def canary() -> AsyncIterator[Upstream]:
    async with serving(None, "0.0.0.0", *(["::"] if has_ipv6() else [])) as upstream:
        yield upstream


async def refused(url: str, error: type[OutgoingError], resolve: Names, allow: Sequence[str] = ()) -> str:
    async with open_outgoing(secrets=Secrets(), resolve=resolve, allow_addresses=allow) as outgoing:
        with pytest.raises(error) as caught:
            await outgoing.call(OutgoingCall("GET", url, timeout_s=5))
    return caught.value.reason


@pytest.mark.parametrize("address", ADDRESSES.values(), ids=ADDRESSES.keys())
async def test_a_literal_address_is_not_called(canary: Upstream, address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    await refused(f"http://{host}:{canary.port}/", ForbiddenAddress, Names({}))
    assert canary.connections == 0


@pytest.mark.parametrize("address", ADDRESSES.values(), ids=ADDRESSES.keys())
async def test_the_address_of_a_name_is_not_called(canary: Upstream, address: str) -> None:
    names = Names({"name.test": [[address]]})
    await refused(f"http://name.test:{canary.port}/", ForbiddenAddress, names)
    assert canary.connections == 0
    assert names.lookups == ["name.test"]


@pytest.mark.parametrize("url", SPELLINGS.values(), ids=SPELLINGS.keys())
async def test_a_spelling_of_an_address_is_not_called(canary: Upstream, url: str) -> None:
    names = Names(NAMES)
    await refused(url.replace("PORT", str(canary.port)), InvalidCall, names)
    assert canary.connections == 0
    assert names.lookups == []


@pytest.mark.parametrize("url", HOSTS.values(), ids=HOSTS.keys())
async def test_a_host_that_leads_to_an_address_is_not_called(canary: Upstream, url: str) -> None:
    await refused(url.replace("PORT", str(canary.port)), ForbiddenAddress, Names(NAMES))
    assert canary.connections == 0


@pytest.mark.parametrize("name", ["localhost", "localhost.", socket.gethostname()])
async def test_names_of_this_host_are_not_called(canary: Upstream, name: str) -> None:
    """Through the operating system's resolver."""
    async with open_outgoing(secrets=Secrets()) as outgoing:
        with pytest.raises(OutgoingError):
            await outgoing.call(OutgoingCall("GET", f"http://{name}:{canary.port}/", timeout_s=5))
    assert canary.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "loopback.test", "mixed.test"])
async def test_the_canary_counts_a_call_that_is_allowed(canary: Upstream, host: str) -> None:
    """Else the tests above would show nothing."""
    names = Names({**NAMES, "mixed.test": [["127.0.0.1", "127.0.0.2"]]})
    await refused(f"http://{host}:{canary.port}/", OutgoingError, names, ["127.0.0.0/8"])
    assert canary.connections == 1


REDIRECTS = {
    "address": "http://127.0.0.2:PORT/",
    "other-scheme-upper": "HTTP://127.0.0.2:PORT/",
    "scheme-relative": "//127.0.0.2:PORT/",
    "name": "http://canary.test:PORT/",
    "name-final-dot": "http://canary.test.:PORT/",
    "name-mixed": "http://mixed.test:PORT/",
    "v6-loopback": "http://[::1]:PORT/",
    "v6-mapped": "http://[::ffff:127.0.0.2]:PORT/",
    "v6-nat64": "http://[64:ff9b::127.0.0.2]:PORT/",
    "v6-6to4": "http://[2002:7f00:2::]:PORT/",
    "metadata": "http://169.254.169.254/latest/meta-data/",
    "https": "https://127.0.0.2:PORT/",
}
BROKEN_REDIRECTS = {
    "decimal": "http://2130706434:PORT/",
    "hexadecimal": "http://0x7f000002:PORT/",
    "octal": "http://017700000002:PORT/",
    "short": "http://127.2:PORT/",
    "userinfo": "http://front.test@127.0.0.2:PORT/",
    "userinfo-relative": "//front.test@127.0.0.2:PORT/",
    "backslash": "http:\\\\127.0.0.2:PORT\\",
    "backslash-relative": "/\\127.0.0.2:PORT/",
    "space-before": "\x0bhttp://127.0.0.2:PORT/",
    "tab-inside": "ht\ttp://127.0.0.2:PORT/",
    "full-width": "http://１２７.0.0.2:PORT/",
    "percent-encoded": "http://%3127.0.0.2:PORT/",
    "zone": "http://[::1%25lo]:PORT/",
    "file": "file:///etc/passwd",
    "gopher": "gopher://127.0.0.2:PORT/_GET",
    "javascript": "javascript:alert(1)",
    "data": "data:text/plain,x",
}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("location", REDIRECTS.values(), ids=REDIRECTS.keys())
async def test_a_redirect_is_judged_as_the_first_url(location: str, status: int) -> None:
    names = Names({"front.test": [[FRONT]], "canary.test": [[CANARY]], "mixed.test": [[FRONT, CANARY]]})
    async with serving(None, CANARY, *(["::1"] if has_ipv6() else [])) as canary:
        target = location.replace("PORT", str(canary.port))
        async with serving(redirecting(target, status), FRONT) as front:
            await refused(f"http://front.test:{front.port}/", ForbiddenAddress, names, [f"{FRONT}/32"])
    assert (len(front.requests), canary.connections) == (1, 0)


@pytest.mark.parametrize("location", BROKEN_REDIRECTS.values(), ids=BROKEN_REDIRECTS.keys())
async def test_a_redirect_to_a_spelling_is_not_followed(location: str) -> None:
    names = Names({"front.test": [[FRONT]]})
    async with serving(None, CANARY) as canary:
        target = location.replace("PORT", str(canary.port)).encode().decode("latin-1")
        handler = answering(f"HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: {target}\r\n\r\n".encode("latin-1"))
        async with serving(handler, FRONT) as front:
            await refused(f"http://front.test:{front.port}/", BrokenAnswer, names, [f"{FRONT}/32"])
    assert (len(front.requests), canary.connections) == (1, 0)


async def test_a_name_that_changes_its_address_is_judged_at_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "DNS_KEEP_S", 0)
    names = Names({"flip.test": [[FRONT], [CANARY]]})
    async with (
        serving(answering(reply(200, b"front", "connection: close")), FRONT) as front,
        serving(answering(reply(200, b"canary")), CANARY, port=front.port) as canary,
        open_outgoing(secrets=Secrets(), resolve=names, allow_addresses=[f"{FRONT}/32"]) as outgoing,
    ):
        call = OutgoingCall("GET", f"http://flip.test:{front.port}/", timeout_s=5)
        assert (await outgoing.call(call)).body == b"front"
        with pytest.raises(ForbiddenAddress):
            await outgoing.call(call)
    assert (front.connections, canary.connections, len(names.lookups)) == (1, 0, 2)


async def test_a_name_that_changes_its_address_between_check_and_connection_is_looked_up_once() -> None:
    names = Names({"flip.test": [[FRONT], [CANARY]]})
    async with (
        serving(answering(reply(200, b"front")), FRONT) as front,
        serving(answering(reply(200, b"canary")), CANARY, port=front.port) as canary,
        open_outgoing(secrets=Secrets(), resolve=names, allow_addresses=[f"{FRONT}/32"]) as outgoing,
    ):
        answer = await outgoing.call(OutgoingCall("GET", f"http://flip.test:{front.port}/", timeout_s=5))
    assert (answer.body, names.lookups, canary.connections) == (b"front", ["flip.test"], 0)


async def test_a_redirect_to_the_same_name_with_another_address_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "DNS_KEEP_S", 0)
    names = Names({"flip.test": [[FRONT], [CANARY]]})
    handler = answering(reply(302, b"", "location: /again", "connection: close"))
    async with (
        serving(handler, FRONT) as front,
        serving(answering(reply(200, b"canary")), CANARY, port=front.port) as canary,
    ):
        await refused(f"http://flip.test:{front.port}/", ForbiddenAddress, names, [f"{FRONT}/32"])
    assert (len(front.requests), canary.connections) == (1, 0)


async def test_the_socket_is_judged_even_if_a_name_is_not(monkeypatch: pytest.MonkeyPatch, canary: Upstream) -> None:
    async def unjudged(self: JudgedResolver, host: str, port: int = 0, family: Any = 0) -> list[Any]:
        return [{"hostname": host, "host": CANARY, "port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}]

    monkeypatch.setattr(JudgedResolver, "resolve", unjudged)
    await refused(f"http://name.test:{canary.port}/", ForbiddenAddress, Names({}))
    assert canary.connections == 0


async def test_an_address_is_judged_even_if_its_socket_is_not(
    monkeypatch: pytest.MonkeyPatch, canary: Upstream
) -> None:
    monkeypatch.setattr(http, "judged_socket", lambda judge, info: socket.socket(info[0], info[1], info[2]))
    await refused(f"http://{CANARY}:{canary.port}/", ForbiddenAddress, Names({}))
    assert canary.connections == 0


async def test_proxies_and_netrc_of_the_environment_are_not_used(
    monkeypatch: pytest.MonkeyPatch, canary: Upstream, tmp_path: Any
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.2:{canary.port}")
    (tmp_path / "netrc").write_text("machine front.test login user password hidden")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with (
        serving(answering(reply()), FRONT) as front,
        open_outgoing(
            secrets=Secrets(), resolve=Names({"front.test": [[FRONT]]}), allow_addresses=["127.0.0.0/8"]
        ) as outgoing,
    ):
        assert (await outgoing.call(OutgoingCall("GET", f"http://front.test:{front.port}/"))).status == 200
    assert canary.connections == 0
    assert "authorization" not in front.requests[0].headers


async def test_many_calls_of_one_refused_name_are_all_refused(canary: Upstream) -> None:
    """They share one lookup."""
    names = Names({"name.test": [[CANARY]]})
    async with open_outgoing(secrets=Secrets(), resolve=names) as outgoing:
        call = OutgoingCall("GET", f"http://name.test:{canary.port}/", timeout_s=5)
        ends = await asyncio.gather(*(outgoing.call(call) for _ in range(20)), return_exceptions=True)
    assert [type(end) for end in ends] == [ForbiddenAddress] * 20
    assert canary.connections == 0


def test_the_suite_has_not_shrunk() -> None:
    assert len(ADDRESSES) >= 60
    assert len(SPELLINGS) >= 70
    assert len(HOSTS) >= 20
    assert len(REDIRECTS) + len(BROKEN_REDIRECTS) >= 25
