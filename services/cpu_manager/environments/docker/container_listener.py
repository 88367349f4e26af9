"""A listener at the loopback address of a container's network namespace, made by a helper process.

A process enters the namespace, listens there and sends the descriptor. The manager's own threads never leave theirs.
Needs root on the container's host, and nothing inside the container: it keeps `network: none` and its walls.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from services.cpu_manager.sandbox import transport
from services.cpu_manager.sandbox.inside import loopback, wire
from shared.runtime.units import Seconds
from shared.walls import syscalls

_BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from services.cpu_manager.environments.docker.container_listener import main; main(*map(int, sys.argv[2:]))"
)
_REPOSITORY: Final = str(Path(__file__).resolve().parents[4])
_LISTEN_S: Final[Seconds] = 20.0
"""Longest time of the helper, which takes 0.1 s, while other processes start."""
_AGAIN_S: Final[Seconds] = 0.1


async def listen_in(network: int, port: int, again_s: Seconds) -> socket.socket:
    """Return a listener in the network namespace of a descriptor.

    If the port is taken, try again for `again_s`: the forwarder of an earlier manager may not have ended yet.

    Raises:
        OSError: it cannot be made; contains the reason.
    """
    deadline = asyncio.get_running_loop().time() + again_s
    while True:
        try:
            return await _listen_once(network, port)
        except OSError:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(_AGAIN_S)


async def _listen_once(network: int, port: int) -> socket.socket:
    ours, theirs = transport.socket_pair()
    with ours, theirs:
        helper = _start_helper(network, port, theirs.fileno())
        theirs.close()
        try:
            packet, descriptors = await transport.receive(ours, 1, _LISTEN_S)
        except TimeoutError:
            raise OSError(f"no listener within {_LISTEN_S:g} s") from None
        finally:
            helper.kill()
            helper.wait()  # it ends at once
    if not descriptors:
        raise OSError(packet.decode(errors="replace") or "the process that listens in its namespace has died")
    return socket.socket(fileno=descriptors[0])


def _start_helper(network: int, port: int, channel: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _BOOT, _REPOSITORY, str(network), str(port), str(channel)],
        env={},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(network, channel),
    )


def main(network: int, port: int, channel: int) -> None:
    """Enter the namespace, listen, and send the descriptor, or why not."""
    with socket.socket(fileno=channel) as manager:
        try:
            syscalls.setns(network, syscalls.CLONE_NEWNET)
            with loopback.listen(port) as listener:
                wire.send(manager, wire.READY, (listener.fileno(),))
        except OSError as error:
            with contextlib.suppress(OSError):
                wire.send(manager, str(error).encode())
    os._exit(0)
