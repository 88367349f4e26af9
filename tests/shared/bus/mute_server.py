"""Servers that misbehave in ways a real one does not on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Mute:
    """Accepts and receives; sends `greeting` at each receipt and nothing else."""

    greeting: bytes = b""
    hang_up: bool = False
    port: int = 0
    connections: list[asyncio.Transport] = field(default_factory=list)
    received: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """A connection has ended."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


class MuteProtocol(asyncio.Protocol):
    def __init__(self, mute: Mute) -> None:
        self._mute = mute

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._mute.connections.append(transport)

    def data_received(self, data: bytes) -> None:
        self._mute.received.set()
        self._transport.write(self._mute.greeting)
        if self._mute.hang_up:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._mute.left.set()


@asynccontextmanager
async def mute_server(greeting: bytes = b"", *, hang_up: bool = False) -> AsyncIterator[Mute]:
    mute = Mute(greeting, hang_up)
    server = await asyncio.get_running_loop().create_server(lambda: MuteProtocol(mute), "127.0.0.1", 0)
    mute.port = server.sockets[0].getsockname()[1]
    try:
        yield mute
    finally:
        server.close()
        for transport in mute.connections:
            transport.abort()
        await asyncio.sleep(0)  # aborted transports close their sockets at the loop's next turn
