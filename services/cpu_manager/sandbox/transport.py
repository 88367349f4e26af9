"""Packets, descriptors and bytes to processes inside the walls, without blocking: asyncio has no `recvmsg`."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket

from services.cpu_manager.sandbox.inside import wire


def socket_pair() -> tuple[socket.socket, socket.socket]:
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


def sealed_file(name: str, content: bytes) -> int:
    """Return an anonymous, immutable file with this content, positioned at its start. Costs a copy, but no waiting."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
