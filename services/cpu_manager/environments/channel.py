"""The manager's end of an agent: one action at a time over a stream socket, with bounded waits and checked replies.

The agent runs beside the programs of its environment, so its replies are not trusted: frames are bounded by what the
action may return, and JSON is decoded into types. An agent that breaks the rules or does not answer is abandoned
(`Broken`), which ends the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from services.cpu_manager.environments.agent import wire
from services.cpu_manager.environments.limit import ExecutionLimit
from services.cpu_manager.environments.protocol import ActEnd
from services.cpu_manager.environments.rendering import rendered
from services.cpu_manager.environments.requests import request_of
from shared.kinds.spec import Params

OUTPUT_BYTES: Final = 8 << 20
"""Default limit for a file or an archive that is sent back."""
_SLACK: Final = 1 << 20
"""Bytes of a reply beyond the requested ones: names of entries, errors."""
_LATE_S: Final = 10.0
"""An agent ends an action within two seconds of its time limit. After this time without an answer it is abandoned."""
_CANCEL_S: Final = 5.0
_CONTROL_S: Final = 5.0
_CHUNK: Final = 256 << 10

EndedBy = Literal["done", "wall-limit", "refused", "cancelled"]


class Broken(Exception):
    """The agent has ended, does not answer or sends malformed replies. Its environment must be ended."""


class AgentReply(msgspec.Struct, frozen=True):
    """A well-formed reply of an agent."""

    id: int
    ended_by: EndedBy
    passed: bool | None
    reason: str
    wall_s: float
    output: dict[str, Any]
    parts: list[tuple[str, int]]


class _Doing:
    """The running action."""

    def __init__(self, timeout_s: float) -> None:
        self.limit = ExecutionLimit(timeout_s)
        self.sent = asyncio.Event()
        """Set when its request has been sent, or will not be."""


async def _nothing() -> None:
    """Stand-in for a thaw."""


class AgentChannel:
    """A connection to one agent: one action at a time; `hold`, `proceed` and `control` may run beside it."""

    def __init__(self, connection: socket.socket, most_bytes: int = OUTPUT_BYTES) -> None:
        """Take ownership of a connected stream socket. `most_bytes` bounds files and archives in both directions."""
        connection.setblocking(False)
        self._connection = connection
        self._most_bytes = most_bytes
        self._numbers = itertools.count(1)
        self._buffer = bytearray()
        self._received: asyncio.Future[None] | None = None
        self._sending = asyncio.Lock()
        self._reading = asyncio.Lock()
        """Held by the one that reads, for all that wait for replies."""
        self._awaited: dict[int, int] = {}
        """Number of a request -> most bytes of its reply."""
        self._replies: dict[int, tuple[AgentReply, dict[str, bytes]]] = {}
        """Replies that another reader has received."""
        self._unwanted: set[int] = set()
        """Requests whose replies are discarded: their waiter was cancelled."""
        self._doing: _Doing | None = None
        self.thaw: Callable[[], Awaitable[None]] = _nothing
        """Called before a cancelled action must end: a frozen agent could not end it."""

    async def settle(self, cwd: str, env: Mapping[str, str], timeout_s: float) -> str:
        """Set where actions start (empty: where the agent was started; created if missing), and their variables.

        Returns the working directory as the agent reports it.

        Raises:
            Broken: there is no agent.
            ValueError: the directory cannot be created.
        """
        reply, _ = await self._ask({"op": "settle", "cwd": cwd, "env": dict(env)}, b"", _Doing(timeout_s), 0)
        if not reply.passed:
            raise ValueError(reply.reason)
        return str(reply.output.get("cwd", ""))

    async def ping(self, timeout_s: float) -> None:
        """Return when the agent answers. Raise `Broken` otherwise."""
        await self._ask({"op": "ping"}, b"", _Doing(timeout_s), 0)

    async def control(self, op: str, timeout_s: float) -> bool:
        """Send `stop` or `go` for all processes but the agent's. Return True if it was done. Raises `Broken`."""
        reply, _ = await self._ask({"op": op}, b"", _Doing(timeout_s), 0)
        return reply.passed is True

    async def sent(self) -> None:
        """Wait until the request of the running action has been sent, if one runs."""
        if self._doing is not None:
            await self._doing.sent.wait()

    async def hold(self) -> bool:
        """Stop the clocks of the running action. Return False if none has been sent, or if it is ending.

        Raises:
            Broken: the agent does not answer.
            NotImplementedError: the agent is of an earlier version.
        """
        doing = self._doing
        if doing is None or not doing.sent.is_set():
            return False
        reply, _ = await self._ask({"op": "hold"}, b"", _Doing(_CONTROL_S), 0)
        if reply.reason == "busy":
            raise NotImplementedError("its agent cannot park an action")
        if reply.passed is not True or self._doing is not doing:
            return False
        doing.limit.hold()
        return True

    async def proceed(self) -> None:
        """Let the clocks of a held action continue. Raises `Broken`."""
        doing = self._doing
        await self._ask({"op": "proceed"}, b"", _Doing(_CONTROL_S), 0)
        if doing is not None:
            doing.limit.proceed()

    async def do(self, kind: str, params: Params, timeout_s: float) -> ActEnd:
        """Execute one action. If cancelled, end the action's foreground processes before raising.

        Raises:
            Broken: the environment cannot execute another action.
        """
        try:
            request, body, most = request_of(kind, params, self._most_bytes)
        except ValueError as error:
            return ActEnd(ended_by="done", passed=False, output={"error": str(error)}, reason=str(error))
        request["timeout_s"] = timeout_s
        self._doing = doing = _Doing(timeout_s + _LATE_S)
        try:
            reply, parts = await self._ask(request, body, doing, most)
        finally:
            self._doing = None
        if reply.ended_by == "cancelled":
            raise Broken("it reported a cancellation that was not requested")
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
        self, request: dict[str, Any], body: bytes, doing: _Doing, most: int
    ) -> tuple[AgentReply, dict[str, bytes]]:
        number = next(self._numbers)
        request["id"] = number
        self._awaited[number] = most
        sending = asyncio.create_task(self._send(wire.pack(request, body)), name="send a request")
        try:
            async with doing.limit:
                await asyncio.shield(sending)
                doing.sent.set()
                return await self._receive(number)
        except TimeoutError as error:
            raise Broken(f"no answer to {request['op']} in time") from error
        except OSError as error:
            raise Broken(str(error) or "the connection broke") from error
        except asyncio.CancelledError:
            if doing is self._doing:
                await self._cancel(number, sending)
            else:
                await self._abandon(number, sending)
            raise
        finally:
            sending.cancel()
            doing.sent.set()

    async def _cancel(self, number: int, sending: asyncio.Task[None]) -> None:
        """Cancel the running action after its request is sent. Close the connection if the agent does not answer."""
        try:
            async with asyncio.timeout(_CANCEL_S):
                await sending
                await self._send(wire.pack({"op": "cancel", "id": number}))
                await self.thaw()
                await self._receive(number)
        except (TimeoutError, OSError, Broken, asyncio.CancelledError):
            self.close()

    async def _abandon(self, number: int, sending: asyncio.Task[None]) -> None:
        """Discard the reply to a request about the clock, whenever it comes: the agent may be frozen by now."""
        if self._replies.pop(number, None) is None:
            self._unwanted.add(number)
        try:
            async with asyncio.timeout(_CANCEL_S):
                await sending  # a frame that is sent in part would end the connection
        except (TimeoutError, OSError, asyncio.CancelledError):
            self.close()

    @property
    def broken(self) -> bool:
        """True after the connection was closed here."""
        return self._connection.fileno() < 0

    async def _send(self, frame: bytes) -> None:
        async with self._sending:
            await asyncio.get_running_loop().sock_sendall(self._connection, frame)

    async def _receive(self, number: int) -> tuple[AgentReply, dict[str, bytes]]:
        while number not in self._replies:
            async with self._reading:
                if number not in self._replies:
                    await self._read()
        return self._replies.pop(number)

    async def _read(self) -> None:
        """Read one reply, to whichever request."""
        while (frame := self._frame(max(self._awaited.values(), default=0))) is None:
            await self._more()
        header, body = frame
        try:
            reply = msgspec.json.decode(header, type=AgentReply)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Broken(f"a malformed reply: {error}") from error
        sizes = [size for _, size in reply.parts]
        if reply.id not in self._awaited or sum(sizes) != len(body) or any(size < 0 for size in sizes):
            raise Broken("a reply to another request")
        del self._awaited[reply.id]
        parts, at = {}, 0
        for name, size in reply.parts:
            parts[name] = body[at : at + size]
            at += size
        if reply.id in self._unwanted:
            self._unwanted.discard(reply.id)
        else:
            self._replies[reply.id] = (reply, parts)

    def _frame(self, most: int) -> tuple[bytes, bytes] | None:
        """Return the next whole frame, or None. An incomplete frame stays in the buffer, so a wait can be cancelled."""
        start = wire.HEAD.size
        if len(self._buffer) < start:
            return None
        header_size, body_size = wire.HEAD.unpack_from(self._buffer)
        if header_size > _SLACK + most or body_size > most:
            raise Broken(f"a reply of {header_size} + {body_size} bytes where {most} were requested")
        middle, end = start + header_size, start + header_size + body_size
        if len(self._buffer) < end:
            return None
        header, body = bytes(self._buffer[start:middle]), bytes(self._buffer[middle:end])
        del self._buffer[:end]
        return header, body

    async def _more(self) -> None:
        """Wait for bytes. A callback reads them, so none is lost if the wait is cancelled."""
        loop, descriptor = asyncio.get_running_loop(), self._connection.fileno()
        if descriptor < 0:
            raise Broken("the channel was closed")
        self._received = received = loop.create_future()

        def readable() -> None:
            loop.remove_reader(descriptor)
            try:
                data = self._connection.recv(_CHUNK)
            except OSError:
                data = b""
            self._buffer += data
            if received.done():
                return
            if data:
                received.set_result(None)
            else:
                received.set_exception(Broken("the agent is gone"))

        loop.add_reader(descriptor, readable)
        try:
            await received
        finally:
            self._received = None
            if not self.broken:
                loop.remove_reader(descriptor)

    def close(self) -> None:
        """Close the connection. An agent without another one ends with its environment; waiters get `Broken`."""
        if self._received is not None and not self._received.done():
            self._received.set_exception(Broken("the channel was closed"))
        if not self.broken:
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            asyncio.get_running_loop().remove_writer(self._connection.fileno())
        with contextlib.suppress(OSError):
            self._connection.close()
