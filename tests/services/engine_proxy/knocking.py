"""An engine that notes every byte it is told and answers from a script, and callers that say what no client would."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from services.engine_proxy.server import EngineProxy
from services.engine_proxy.settings import EngineProxySettings

NODE = "node-7"
OURS = "a" * 64
"""Id of the container that carries our label; its name is `ours`."""
FOREIGN = "b" * 64
"""One of somebody else's; its name is `foreign`."""
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
    """Keeps what each connection brought, whole, except the engine proxy's own looks."""

    told: list[bytes] = field(default_factory=list)
    upgrades: bool = True
    """It gives a connection away to who asks to start an exec; else it says 409 and goes on listening."""
    waits: asyncio.Event = field(default_factory=asyncio.Event)
    """A `wait` has come in; it is answered when the engine proxy lets go of it."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """The engine proxy has let go of it."""
    looks: int = 0
    """How often the engine proxy asked whose something is."""

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if b" HTTP/1.0\r\n" in head:
                self.looks += 1
                writer.write(_look(head))
            else:
                self.told.append(head)
                await self._answer(head, reader, writer)
        except asyncio.IncompleteReadError:
            pass  # the engine proxy has let go in the middle: what came is in `told`
        finally:
            writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = len(self.told) - 1
        if length := re.search(rb"Content-Length: (\d+)", head):
            self.told[place] += await reader.readexactly(int(length[1]))
        elif b"Transfer-Encoding: chunked" in head:
            self.told[place] += await reader.readuntil(b"0\r\n\r\n")
        if b"/wait " in head:
            self.waits.set()
            await reader.read()
            self.left.set()
        if b"Upgrade: tcp" not in head:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            return
        if self.upgrades:
            writer.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 409 Conflict\r\nContent-Length: 4\r\n\r\nbusy")
            writer.write_eof()
        while more := await reader.read(1024):
            self.told[place] += more
            if self.upgrades:
                writer.write(more.upper())


def _look(head: bytes) -> bytes:
    name = head.split(b"/")[2].decode()
    found = _ANSWERS.get(name)
    status, body = (200, found) if found else (404, {"message": f"No such container: {name}"})
    return f"HTTP/1.0 {status} so\r\n\r\n{json.dumps(body)}".encode()


@dataclass
class Doorstep:
    """An engine proxy, the engine behind it, and where to knock."""

    engine: ScriptedEngine
    socket: Path

    async def knock(self, said: bytes) -> bytes:
        """All that comes back on one connection, until the engine proxy closes it."""
        reader, writer = await asyncio.open_unix_connection(self.socket)
        try:
            async with asyncio.timeout(PATIENCE_S):
                writer.write(said)
                return await reader.read()
        finally:
            writer.close()

    async def call(self, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of an ordinary call."""
        head = f"{method} {target} HTTP/1.1\r\nHost: engine\r\nContent-Length: {len(body)}\r\n\r\n"
        answer = await self.knock(head.encode("latin-1") + body)
        first, _, said = answer.partition(b"\r\n\r\n")
        return int(first.split(b" ")[1]), said


@asynccontextmanager
async def doorstep(folder: Path) -> AsyncIterator[Doorstep]:
    """An engine proxy of `NODE` in front of a scripted engine."""
    engine = ScriptedEngine()
    behind = await asyncio.start_unix_server(engine.meet, folder / "engine.sock", limit=4 << 20)
    settings = EngineProxySettings(
        node=NODE, listen=folder / "proxy.sock", engine=folder / "engine.sock", archive_bytes=1 << 20
    )
    async with EngineProxy(settings):
        yield Doorstep(engine, settings.listen)
    behind.close()
