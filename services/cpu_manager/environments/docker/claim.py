"""One manager a node's name: who is alive keeps the name, and nobody else takes its containers for left behind.

Node names are unique in a mesh, not on a host: two meshes of one machine have nodes of the same name by default.
"""

from __future__ import annotations

import contextlib
import socket


class Claim:
    """A name in the kernel's own table of sockets, of this network namespace; it is free when its holder is gone."""

    def __init__(self, node: str) -> None:
        """Try to have it. `held` says whether it was free."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.held = False
        with contextlib.suppress(OSError):
            self._socket.bind(f"\0treadle-containers-{node}"[:107])
            self.held = True

    def close(self) -> None:
        self._socket.close()
