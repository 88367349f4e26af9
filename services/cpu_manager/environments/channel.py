"""The manager's end of a resident: one action at a time over a stream socket, every wait bounded, every word checked.

The other end lives among the programs of its environment, so nothing it says is trusted further than that: its frames
are bounded by what the action may bring, its JSON is read into types, and a resident that breaks the rules or stays
silent is given up (`Broken`), which ends the environment.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import socket
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from services.cpu_manager.environments.protocol import ActEnd
from services.cpu_manager.environments.requests import request_of
from services.cpu_manager.environments.resident import wire
from shared.messages.kinds import Params

OUTPUT_BYTES: Final = 8 << 20
"""Of a file or an archive that is brought back, where the node says nothing else."""
_SLACK: Final = 1 << 20
"""Of a reply beyond the bytes that were asked for: names of entries, errors."""
_LATE_S: Final = 10.0
"""A resident ends an action at its time limit within two seconds; one that has not answered by then is given up."""
_CANCEL_S: Final = 5.0
_CHUNK: Final = 256 << 10

EndedBy = Literal["done", "wall-limit", "refused", "cancelled"]


class Broken(Exception):
    """The resident is gone, silent or speaks nonsense. Its environment is to be ended."""


class Reply(msgspec.Struct, frozen=True):
    """A resident's reply, as far as it is well-formed."""

    id: int
    ended_by: EndedBy
    passed: bool | None
    reason: str
    wall_s: float
    output: dict[str, Any]
    parts: list[tuple[str, int]]


class Resident:
    """A connection to one resident. `do` and `settle` are called one after the other, never two at once."""

    def __init__(self, connection: socket.socket, most_bytes: int = OUTPUT_BYTES) -> None:
        """Take over a connected stream socket; `most_bytes` bounds files and archives in either direction."""
        connection.setblocking(False)
        self._connection = connection
        self._most_bytes = most_bytes
        self._numbers = itertools.count(1)
        self._buffer = bytearray()
        self._came: asyncio.Future[None] | None = None

    async def settle(self, cwd: str, env: Mapping[str, str], timeout_s: float) -> str:
        """Say where actions start (empty: where the resident was started; made where it is missing) and with which
        variables. Returns the working directory as the resident knows it.

        Raises:
            Broken: no resident is there.
            ValueError: the directory cannot be made.
        """
        reply, _ = await self._ask({"op": "settle", "cwd": cwd, "env": dict(env)}, b"", timeout_s, 0)
        if not reply.passed:
            raise ValueError(reply.reason)
        return str(reply.output.get("cwd", ""))

    async def ping(self, timeout_s: float) -> None:
        """Return when it answers. Raises `Broken`."""
        await self._ask({"op": "ping"}, b"", timeout_s, 0)

    async def order(self, op: str, timeout_s: float) -> bool:
        """`stop` or `go`: every process but the resident's. Returns whether it is so. Raises `Broken`."""
        reply, _ = await self._ask({"op": op}, b"", timeout_s, 0)
        return reply.passed is True

    async def do(self, kind: str, params: Params, timeout_s: float) -> ActEnd:
        """One action. Cancelled, it ends what the action runs in the foreground before it raises.

        Raises:
            Broken: the environment is not fit for another action.
        """
        try:
            request, body, most = request_of(kind, params, self._most_bytes)
        except ValueError as error:
            return ActEnd(ended_by="done", passed=False, output={"error": str(error)}, reason=str(error))
        request["timeout_s"] = timeout_s
        reply, parts = await self._ask(request, body, timeout_s + _LATE_S, most)
        if reply.ended_by == "cancelled":
            raise Broken("it cancelled what nobody asked it to")
        try:
            output = rendered(reply.output, parts, getattr(params, "encoding", "utf-8"))
        except UnicodeDecodeError:
            binary = "not UTF-8: ask for base64"
            return ActEnd(ended_by="done", passed=False, output={"error": binary}, reason=binary, wall_s=reply.wall_s)
        return ActEnd(
            ended_by=reply.ended_by,
            passed=reply.passed,
            output=output,
            reason=reply.reason,
            wall_s=reply.wall_s,
        )

    async def _ask(
        self, request: dict[str, Any], body: bytes, timeout_s: float, most: int
    ) -> tuple[Reply, dict[str, bytes]]:
        number = next(self._numbers)
        request["id"] = number
        sending = asyncio.create_task(self._send(wire.pack(request, body)), name="send a request")
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(sending)
                return await self._receive(number, most)
        except TimeoutError as error:
            raise Broken(f"no answer in {timeout_s:g} s") from error
        except OSError as error:
            raise Broken(str(error) or "the connection broke") from error
        except asyncio.CancelledError:
            await self._cancel(number, most, sending)
            raise
        finally:
            sending.cancel()

    async def _cancel(self, number: int, most: int, sending: asyncio.Task[None]) -> None:
        """Have the running action ended, once its request is whole; a resident that does not answer is hung up on."""
        try:
            async with asyncio.timeout(_CANCEL_S):
                await sending
                await self._send(wire.pack({"op": "cancel", "id": number}))
                await self._receive(number, most)
        except (TimeoutError, OSError, Broken, asyncio.CancelledError):
            self.close()

    @property
    def broken(self) -> bool:
        """It was hung up on."""
        return self._connection.fileno() < 0

    async def _send(self, frame: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._connection, frame)

    async def _receive(self, number: int, most: int) -> tuple[Reply, dict[str, bytes]]:
        while (frame := self._frame(most)) is None:
            await self._more()
        header, body = frame
        try:
            reply = msgspec.json.decode(header, type=Reply)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Broken(f"a reply that is none: {error}") from error
        sizes = [size for _, size in reply.parts]
        if reply.id != number or sum(sizes) != len(body) or any(size < 0 for size in sizes):
            raise Broken("a reply to another question")
        parts, at = {}, 0
        for name, size in reply.parts:
            parts[name] = body[at : at + size]
            at += size
        return reply, parts

    def _frame(self, most: int) -> tuple[bytes, bytes] | None:
        """The next whole frame, if it is there. Nothing is taken of one that is not, so that waiting can be ended."""
        start = wire.HEAD.size
        if len(self._buffer) < start:
            return None
        header_size, body_size = wire.HEAD.unpack_from(self._buffer)
        if header_size > _SLACK + most or body_size > most:
            raise Broken(f"a reply of {header_size} + {body_size} bytes where {most} were asked for")
        middle, end = start + header_size, start + header_size + body_size
        if len(self._buffer) < end:
            return None
        header, body = bytes(self._buffer[start:middle]), bytes(self._buffer[middle:end])
        del self._buffer[:end]
        return header, body

    async def _more(self) -> None:
        """Wait for bytes. A callback takes them, so that none is lost when the waiting is cancelled."""
        loop, descriptor = asyncio.get_running_loop(), self._connection.fileno()
        self._came = came = loop.create_future()

        def readable() -> None:
            loop.remove_reader(descriptor)
            try:
                data = self._connection.recv(_CHUNK)
            except OSError:
                data = b""
            self._buffer += data
            if came.done():
                return
            if data:
                came.set_result(None)
            else:
                came.set_exception(Broken("the resident is gone"))

        loop.add_reader(descriptor, readable)
        try:
            await came
        finally:
            self._came = None
            if not self.broken:
                loop.remove_reader(descriptor)

    def close(self) -> None:
        """Hang up. A resident that has no other way in ends, and its environment with it; who waits hears `Broken`."""
        if self._came is not None and not self._came.done():
            self._came.set_exception(Broken("it was hung up on"))
        if not self.broken:
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            asyncio.get_running_loop().remove_writer(self._connection.fileno())
        with contextlib.suppress(OSError):
            self._connection.close()


def rendered(output: dict[str, Any], parts: dict[str, bytes], encoding: str) -> dict[str, Any]:
    """What a trainer sees (docs/environments.md): bytes as text, or base64 where that was asked for."""
    seen = dict(output)
    for name in ("stdout", "stderr", "output"):
        if name in parts:
            seen[name] = _text(parts[name], parts.get(f"{name}_tail", b""), int(output.get(f"{name}_dropped", 0)))
    if "archive" in parts:
        seen["archive"] = base64.b64encode(parts["archive"]).decode("ascii")
    if "content" in parts:
        seen["content"] = parts["content"].decode() if encoding == "utf-8" else _base64(parts["content"])
    return seen


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _text(head: bytes, tail: bytes, dropped: int) -> str:
    if not dropped:
        return (head + tail).decode(errors="replace")
    between = f"\n[... {dropped} bytes left out ...]\n"
    return head.decode(errors="replace") + between + tail.decode(errors="replace")
