"""An engine that records every byte and answers from a script, and callers that send malformed requests."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from services.engine_proxy.app import EngineProxy
from services.engine_proxy.settings import EngineProxySettings

NODE = "node-7"
OURS = "a" * 64
"""Id of the container with our label. Its name is `ours`."""
FOREIGN = "b" * 64
"""Id of another node's container. Its name is `foreign`."""
EXEC_OF_OURS, EXEC_OF_FOREIGN = "c" * 64, "d" * 64
PATIENCE_S = 10.0

_ANSWERS = {
    OURS: {"Id": OURS, "Config": {"Labels": {"treadle.node": NODE}}},
    "ours": {"Id": OURS, "Config": {"Labels": {"treadle.node": NODE}}},
    FOREIGN: {"Id": FOREIGN, "Config": {"Labels": {"treadle.node": "node-8"}}},
    "foreign": {"Id": FOREIGN, "Config": {"Labels": {"treadle.node": "node-8"}}},
    "bare": {"Id": FOREIGN, "Config": {"Labels": None}},
    EXEC_OF_OURS: {"ContainerID": OURS},
    EXEC_OF_FOREIGN: {"ContainerID": FOREIGN},
}


@dataclass
class ScriptedEngine:
    """Records all bytes of each connection, except the engine proxy's own inspections."""

    received: list[bytes] = field(default_factory=list)
    upgrades: bool = True
    """True: the start of an exec is answered with 101. False: with 409, and the connection stays HTTP."""
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a `wait` has arrived. It is answered when the engine proxy closes the connection."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the engine proxy has closed that connection."""
    inspections: int = 0
    """Number of the engine proxy's own requests for labels."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if b" HTTP/1.0\r\n" in head:
                self.inspections += 1
                writer.write(_inspected(head))
            else:
                self.received.append(head)
                await self._answer(head, reader, writer)
        except asyncio.IncompleteReadError:
            pass  # the engine proxy closed the connection early: `received` has the bytes so far
        finally:
            writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = len(self.received) - 1
        if length := re.search(rb"Content-Length: (\d+)", head):
            self.received[place] += await reader.readexactly(int(length[1]))
        elif b"Transfer-Encoding: chunked" in head:
            self.received[place] += await reader.readuntil(b"0\r\n\r\n")
        if b"/wait " in head:
            self.waiting.set()
            await reader.read()
            self.released.set()
        if b"Upgrade: tcp" not in head:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            return
        if self.upgrades:
            writer.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 409 Conflict\r\nContent-Length: 4\r\n\r\nbusy")
            writer.write_eof()
        while more := await reader.read(1024):
            self.received[place] += more
            if self.upgrades:
                writer.write(more.upper())


def _inspected(head: bytes) -> bytes:
    name = head.split(b"/")[2].decode()
    found = _ANSWERS.get(name)
    status, body = (200, found) if found else (404, {"message": f"No such container: {name}"})
    return f"HTTP/1.0 {status} so\r\n\r\n{json.dumps(body)}".encode()


@dataclass
class ProxyUnderTest:
    """An engine proxy, the engine behind it, and its socket."""

    engine: ScriptedEngine
    socket: Path

    async def send(self, request: bytes) -> bytes:
        """Send bytes on a new connection. Return everything received until the engine proxy closes it."""
        reader, writer = await asyncio.open_unix_connection(self.socket)
        try:
            async with asyncio.timeout(PATIENCE_S):
                writer.write(request)
                return await reader.read()
        finally:
            writer.close()

    async def call(self, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        """Make an ordinary call. Return its status and body."""
        head = f"{method} {target} HTTP/1.1\r\nHost: engine\r\nContent-Length: {len(body)}\r\n\r\n"
        answer = await self.send(head.encode("latin-1") + body)
        first, _, content = answer.partition(b"\r\n\r\n")
        return int(first.split(b" ")[1]), content


@asynccontextmanager
async def proxy_under_test(folder: Path) -> AsyncIterator[ProxyUnderTest]:
    """An engine proxy of `NODE` in front of a scripted engine."""
    engine = ScriptedEngine()
    behind = await asyncio.start_unix_server(engine.serve, folder / "engine.sock", limit=4 << 20)
    settings = EngineProxySettings(
        node=NODE, listen=folder / "proxy.sock", engine=folder / "engine.sock", archive_bytes=1 << 20
    )
    async with EngineProxy(settings):
        yield ProxyUnderTest(engine, settings.listen)
    behind.close()
