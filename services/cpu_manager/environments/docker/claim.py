"""Claim: at most one manager on a host owns the containers of one node of one mesh (ADR 0029).

Node names are unique in a mesh, not on a host: two meshes on one machine have nodes of the same name by default. So an
owner is the pair of the mesh's identity and the node's name; containers carry both as labels.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
from typing import Final, Self

import msgspec

from services.cpu_manager.environments.protocol import RuntimeUnavailable
from shared.runtime.units import Seconds

MESH: Final = "treadle.mesh"
NODE: Final = "treadle.node"
"""Labels of containers and volumes."""

NO_MESH: Final = "0" * 16
"""The mesh of a runtime without a mesh."""

CLAIM_S: Final = 3.0
"""Seconds within which a predecessor that was just killed, or is closing, releases its claim."""
_LOOK_S: Final = 0.05


class Owner(msgspec.Struct, frozen=True):
    """Owner of containers: one node of one mesh."""

    node: str
    mesh: str = NO_MESH
    """Identity of its store (`shared.bus.identity`)."""

    @property
    def labels(self) -> dict[str, str]:
        return {MESH: self.mesh, NODE: self.node}

    @property
    def filters(self) -> list[str]:
        """The labels in the form of the engine's filters."""
        return [f"{name}={value}" for name, value in self.labels.items()]


class Claim:
    """An abstract socket address of this network namespace. The kernel releases it when its holder ends."""

    def __init__(self, owner: Owner) -> None:
        """Try to take it; `held` is the result."""
        digest = hashlib.sha256(f"{owner.mesh} {owner.node}".encode()).hexdigest()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.held = False
        with contextlib.suppress(OSError):
            self._socket.bind(f"\0treadle-containers-{digest}")
            self.held = True

    @classmethod
    async def take(cls, owner: Owner, within_s: Seconds = CLAIM_S) -> Self:
        """Take it. Retry for `within_s` while another manager holds it.

        Raises:
            RuntimeUnavailable: another manager still holds it.
        """
        deadline = asyncio.get_running_loop().time() + within_s
        while not (claim := cls(owner)).held:
            claim.close()
            if asyncio.get_running_loop().time() >= deadline:
                raise RuntimeUnavailable(
                    f"another manager on this host owns the containers of node {owner.node} in this mesh"
                )
            await asyncio.sleep(_LOOK_S)
        return claim

    def close(self) -> None:
        self._socket.close()
