"""Receives packets with descriptors from a socket pair without blocking: asyncio has no `recvmsg`."""

from __future__ import annotations

import asyncio
import socket

from services.cpu_manager.sandbox.inside import wire


def pair() -> tuple[socket.socket, socket.socket]:
    """Return our end (non-blocking) and the other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


async def receive(channel: socket.socket, descriptors: int, timeout: float) -> tuple[bytes, list[int]]:
    """Wait for one packet; an empty packet is the end. Raise TimeoutError after `timeout` seconds."""
    try:
        return wire.receive(channel, descriptors)
    except BlockingIOError:
        pass
    except ConnectionResetError:
        return b"", []
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(channel.fileno(), wake)
    try:
        async with asyncio.timeout(timeout):
            await readable
    finally:
        loop.remove_reader(channel.fileno())
    try:
        return wire.receive(channel, descriptors)
    except ConnectionResetError:
        return b"", []
