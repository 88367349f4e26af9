"""Awaiting packets with descriptors on a socket pair: asyncio has no `recvmsg`."""

from __future__ import annotations

import asyncio
import socket

from services.cpu_manager.sandbox.inside import wire


def pair() -> tuple[socket.socket, socket.socket]:
    """Our end (not blocking) and the other's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


async def receive(channel: socket.socket, descriptors: int, timeout: float) -> tuple[bytes, list[int]]:
    """Wait for one packet. An empty one is the end; raises TimeoutError after `timeout` seconds."""
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
