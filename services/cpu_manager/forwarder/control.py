"""Messages between a manager and its forwarder: packets over a socket pair, some with a descriptor.

Both ends are nonblocking. What the other end has not received yet waits in an `ControlOutbox`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from typing import Final

import msgspec

from services.cpu_manager.sandbox.inside import wire


class Serve(msgspec.Struct, frozen=True, tag="serve"):
    """Serve a trajectory's environment. The packet carries the listener inside its network namespace."""

    trajectory: str
    key: str


class StopServing(msgspec.Struct, frozen=True, tag="stop"):
    """Close the trajectory's listener and its connections, and forget its key."""

    trajectory: str


class RouterAt(msgspec.Struct, frozen=True, tag="router"):
    """Address of a trajectory router for calls from now on."""

    url: str


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Answer with `Pong`, which shows that the loop runs."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """Answer to `Ping`."""


class CallsChanged(msgspec.Struct, frozen=True, tag="calls"):
    """Model calls of a trajectory that are under way now."""

    trajectory: str
    open: int
    waiting: int
    """Of these: the request has been received whole, the answer has not ended, and what has come of it fits into the
    buffers of the connection. If all calls wait, the environment can be frozen without a loss."""


Down = Serve | StopServing | RouterAt | Ping
Up = CallsChanged | Pong
_down: Final = msgspec.json.Decoder(Down)
_up: Final = msgspec.json.Decoder(Up)
encode: Final = msgspec.json.Encoder().encode


def receive_down(channel: socket.socket) -> tuple[Down | None, list[int]]:
    """Return the manager's next message with its descriptor; None: the manager has ended.

    Raises:
        BlockingIOError: there is none now.
    """
    packet, descriptors = wire.receive(channel, 1)
    return (_down.decode(packet) if packet else None), descriptors


def receive_up(channel: socket.socket) -> Up | None:
    """Return the forwarder's next message; None: it has ended.

    Raises:
        BlockingIOError: there is none now.
    """
    try:
        packet, _ = wire.receive(channel, 0)
    except ConnectionResetError:
        return None
    return _up.decode(packet) if packet else None


class ControlOutbox:
    """Messages for the other end, in order."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: Down | Up, descriptor: int = -1) -> None:
        """Send a message as soon as possible, with a copy of a descriptor."""
        if self._closed:
            return
        self._waiting.append((encode(message), os.dup(descriptor) if descriptor >= 0 else -1))
        if len(self._waiting) == 1:
            self._flush()
            if self._waiting:
                asyncio.get_running_loop().add_writer(self._channel.fileno(), self._flush)

    def _flush(self) -> None:
        while self._waiting:
            packet, descriptor = self._waiting[0]
            try:
                wire.send(self._channel, packet, (descriptor,) if descriptor >= 0 else ())
            except BlockingIOError:
                return
            except OSError:  # the other end has ended, which its reader notices
                self.close()
                return
            self._waiting.popleft()
            if descriptor >= 0:
                os.close(descriptor)
        asyncio.get_running_loop().remove_writer(self._channel.fileno())

    def close(self) -> None:
        """StopServing what has not been sent. Close the channel after this."""
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().remove_writer(self._channel.fileno())
            for _, descriptor in self._waiting:
                if descriptor >= 0:
                    os.close(descriptor)
            self._waiting.clear()
