"""A listening socket at the loopback address of this process's network namespace.

A socket belongs to the namespace in which it was made. A process outside that gets its descriptor accepts connections
from inside; nothing else of either side becomes reachable.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from typing import Final

ADDRESS: Final = "127.0.0.1"
BACKLOG: Final = 64
"""Connections that wait to be accepted. Further ones wait in their `connect`."""
BUFFER_BYTES: Final = 256 << 10
"""Half of what the kernel holds for one direction of a connection on the side of whoever accepts."""

_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1
_FLAGS: Final = struct.Struct("16sh14x")
"""struct ifreq with ifr_flags."""


def listen(port: int) -> socket.socket:
    """Raise `lo` and listen on it. Needs CAP_NET_ADMIN in the namespace, unless `lo` is up.

    Raises OSError.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        _raise_loopback(listener.fileno())
        # A successor may listen while connections of its predecessor's are closing.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            listener.setsockopt(socket.SOL_SOCKET, buffer, BUFFER_BYTES)  # the connections inherit it
        listener.bind((ADDRESS, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _raise_loopback(descriptor: int) -> None:
    name, flags = _FLAGS.unpack(fcntl.ioctl(descriptor, _SIOCGIFFLAGS, _FLAGS.pack(b"lo", 0)))
    if not flags & _IFF_UP:
        fcntl.ioctl(descriptor, _SIOCSIFFLAGS, _FLAGS.pack(name, flags | _IFF_UP))
