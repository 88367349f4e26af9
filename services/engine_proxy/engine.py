"""The engine's socket: connections to it, and the check that a container behind it is ours."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from services.engine_proxy.bodies import NODE_LABEL
from services.engine_proxy.http1 import MOST_HEAD_BYTES, Rejected

ANSWER_S = 30.0
"""Time limit of the engine proxy's own requests."""
MOST_ANSWER_BYTES = 16 << 20
MOST_KNOWN = 10_000
"""Ids kept in memory as ours. When there are more, all are looked up again."""

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ProxiedEngine:
    """The engine of this host.

    A container's id is never used again and its labels never change, so each is looked up once. A name can move to
    another container, so it is looked up every time, and the forwarded call has the id.
    """

    def __init__(self, socket: Path, node: str) -> None:
        self._socket = socket
        self._node = node
        self._ours: set[str] = set()

    async def connect(self) -> Stream:
        """Return a new connection.

        Raises:
            Rejected: nothing listens there.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.open_unix_connection(self._socket, limit=MOST_HEAD_BYTES)
        except (OSError, TimeoutError) as error:
            raise Rejected(503, f"the engine cannot be reached: {error}") from None

    async def container(self, reference: str) -> str:
        """Return the full id of a container of ours, from its id, the id's beginning, or its name.

        Raises:
            Rejected: it does not exist, or it is not ours.
        """
        if reference in self._ours:
            return reference
        found = await self._inspect(f"/containers/{reference}/json")
        config = found.get("Config") or {}
        if (config.get("Labels") or {}).get(NODE_LABEL) != self._node:
            message = f"container {reference} does not have the label {NODE_LABEL}={self._node}; only those that do"
            raise Rejected(403, f"{message} can be reached through the engine proxy")
        if len(self._ours) >= MOST_KNOWN:
            self._ours.clear()
        self._ours.add(found["Id"])
        return str(found["Id"])

    async def container_of(self, execution: str) -> str:
        """Return the full id of the container of ours that an exec runs in.

        Raises:
            Rejected: there is no such exec, or its container is not ours.
        """
        return await self.container(str((await self._inspect(f"/exec/{execution}/json"))["ContainerID"]))

    async def _inspect(self, path: str) -> dict[str, Any]:
        """Read one object. HTTP/1.0 answers end with the connection, so they need no framing."""
        reader, writer = await self.connect()
        try:
            async with asyncio.timeout(ANSWER_S):
                writer.write(f"GET {path} HTTP/1.0\r\nHost: engine\r\n\r\n".encode("ascii"))
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.read(MOST_ANSWER_BYTES)
                while more := await reader.read(MOST_ANSWER_BYTES):
                    body += more
        except (OSError, TimeoutError, EOFError) as error:
            raise Rejected(503, f"the engine does not answer: {error!r}") from None
        finally:
            writer.close()
        status = int(head.split(b" ", 2)[1])
        found: dict[str, Any] = json.loads(body)
        if status != 200:
            raise Rejected(status, str(found.get("message", "")))
        return found
