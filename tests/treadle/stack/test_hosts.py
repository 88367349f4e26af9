"""Which names a request may carry, by the address on which its connection arrived."""

from __future__ import annotations

import pytest
from starlette.types import Message, Receive, Scope, Send

from treadle.stack.hosts import HostCheck

LOOPBACK, PUBLISHED = "127.0.0.1", "172.18.0.4"


async def status(server: str | None, allowed: list[str], host: str, *origin: str) -> int:
    """Status of a request that arrived on this address."""
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", host.encode()), *((b"origin", one.encode()) for one in origin)]
    scope: Scope = {
        "type": "http", "http_version": "1.1", "headers": headers, "server": (server, 8700) if server else None,
    }  # fmt: skip
    await HostCheck(app, allowed)(scope, receive, send)
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("server", "allowed", "host", "expected"),
    [
        (LOOPBACK, [], "evil.example", 403),
        ("::1", [], "evil.example", 403),
        ("::ffff:127.0.0.1", [], "evil.example", 403),
        ("::1", [], "[::1]:8700", 200),
        (LOOPBACK, ["*"], "evil.example", 200),
        (PUBLISHED, [], "mesh.internal:8700", 200),
        (PUBLISHED, ["proxy"], "evil.example:8700", 403),
        (PUBLISHED, ["proxy"], "proxy:8700", 200),
        (PUBLISHED, ["proxy"], "localhost:8700", 200),
        (PUBLISHED, ["proxy"], "10.0.0.9:8700", 200),
        (None, [], "anything", 200),
    ],
)
async def test_a_foreign_name_is_refused_where_a_page_could_send_it(
    server: str | None, allowed: list[str], host: str, expected: int
) -> None:
    assert await status(server, allowed, host) == expected


async def test_a_foreign_origin_is_refused_where_hosts_are_named() -> None:
    assert await status(PUBLISHED, ["proxy"], "10.0.0.9:8700", "https://evil.example") == 403
    assert await status(PUBLISHED, ["proxy"], "10.0.0.9:8700", "http://10.0.0.9:8700") == 200
    assert await status(PUBLISHED, [], "10.0.0.9:8700", "https://evil.example") == 200
