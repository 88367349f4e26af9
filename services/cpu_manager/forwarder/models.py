"""What a runtime needs to let environments reach their models."""

from __future__ import annotations

import socket
from typing import Protocol

from services.cpu_manager.environments.protocol import BadEnvironment


class Models(Protocol):
    """Access of environments to the models of their trajectories."""

    async def ready(self, *, router: bool = True) -> None:
        """Prepare for an environment, before it is created. `router`: there must be one now.

        Raises:
            BadEnvironment: no model can be reached; contains the reason.
        """
        ...

    def serve(self, trajectory: str, listener: socket.socket) -> None:
        """Take ownership of a listener inside the network namespace of an environment, and serve it."""
        ...

    def forget(self, trajectory: str) -> None:
        """Close the listener of an environment, and every connection to it. No effect without one."""
        ...


class NoModels:
    """`Models` of a manager without a store."""

    async def ready(self, *, router: bool = True) -> None:
        """Refuse."""
        del router
        raise BadEnvironment("this node reaches no model: its manager has no store in which routers are found")

    def serve(self, trajectory: str, listener: socket.socket) -> None:
        """See `Models.serve`: never called after `ready` has raised."""
        listener.close()
        raise NotImplementedError(trajectory)

    def forget(self, trajectory: str) -> None:
        """See `Models.forget`."""
