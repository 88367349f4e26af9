"""Servers for the tests of outgoing calls: each byte of an answer is chosen by the test, and each request is kept."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

TLS = Path(__file__).parent / "tls"
"""A certificate for `secure.test` and `other.test`, valid for a century, and its key."""


@dataclass
class Received:
    """One request that a server received."""

    line: str
    headers: dict[str, str]
    """Lower-case names."""
    body: bytes
    raw: bytes
    connection: int
    """Number of the connection."""


Handler = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Upstream:
    port: int = 0
    connections: int = 0
    requests: list[Received] = field(default_factory=list)


def reply(status: int = 200, body: bytes = b"", *headers: str) -> bytes:
    """An answer with its length."""
    lines = [f"HTTP/1.1 {status} Status", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def answering(*answers: bytes) -> Handler:
    """Give the answers one after another, the last of them for ever."""
    left = list(answers)

    async def answer(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()

    return answer


def redirecting(location: str, status: int = 302) -> Handler:
    return answering(reply(status, b"", f"location: {location}"))


@asynccontextmanager
async def serving(
    handler: Handler | None, *addresses: str, port: int = 0, tls: bool = False
) -> AsyncIterator[Upstream]:
    """Serve on one port of several addresses (127.0.0.1). Without a handler: only count connections, and close them."""
    upstream = Upstream()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream.connections += 1
        number = upstream.connections
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while handler is not None:
                head = await reader.readuntil(b"\r\n\r\n")
                line, *rest = head.decode("latin-1").split("\r\n")
                split = (one.partition(":") for one in rest if one)
                headers = {name.lower(): value.strip() for name, _, value in split}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                received = Received(line, headers, body, head + body, number)
                upstream.requests.append(received)
                await handler(received, writer)
        writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) if tls else None
    if context:
        context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    servers = []
    for address in addresses or ("127.0.0.1",):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((address, port or upstream.port))
        upstream.port = bound.getsockname()[1]
        servers.append(await asyncio.start_server(accept, sock=bound, ssl=context))
    try:
        yield upstream
    finally:
        for server in servers:
            server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # for the connections to be closed


def trusting() -> ssl.SSLContext:
    """Trust the certificate of the tests."""
    return ssl.create_default_context(cafile=str(TLS / "certificate.pem"))


class Names:
    """A resolver: name -> its answers, one for each lookup, the last of them for ever."""

    def __init__(self, names: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self._answers = {name: list(answers) for name, answers in names.items()}
        self.lookups: list[str] = []

    async def __call__(self, host: str) -> Sequence[str]:
        self.lookups.append(host)
        answers = self._answers.get(host)
        if answers is None:
            raise OSError(2, "no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True
