"""Control over an environment: cores, freezing, connection, kill. Containers have two kinds, local cells one."""

from __future__ import annotations

import socket
from typing import Protocol

import msgspec


class EnvironmentUsage(msgspec.Struct, frozen=True):
    """Usage of everything in an environment."""

    cpu_s: float = 0.0
    """Since its beginning."""
    peak_memory_bytes: int = 0
    """Peak since the last `resume` if that can be measured, else since its beginning."""
    memory_kills: int = 0
    """Processes killed by its memory limit, if that can be measured."""


class EnvironmentHandle(Protocol):
    """Control over one environment. The caller never runs two of `resume`, `pause` and `kill` at the same time."""

    @property
    def alive(self) -> bool:
        """True until the end of its first program is noticed."""
        ...

    async def resume(self, cores: frozenset[int]) -> None:
        """Let it run on exactly these cores; an empty set keeps its cores.

        Raises:
            Gone: it does not exist any more.
            RuntimeUnavailable: the container engine does not answer.
        """
        ...

    async def pause(self) -> None:
        """Freeze everything in it. Raises as `resume`."""
        ...

    async def usage(self) -> EnvironmentUsage:
        """Return its usage. Raises as `resume`."""
        ...

    async def connect(self) -> socket.socket:
        """Return a non-blocking connection to its agent.

        Raises:
            OSError: nothing listens yet.
            Gone, RuntimeUnavailable: as `resume`.
        """
        ...

    async def kill(self) -> None:
        """End everything in it, frozen or not. It may still exist a moment later. Never raises."""
        ...

    async def close(self) -> None:
        """Release the handle. The environment is not changed."""
        ...


class Gone(Exception):
    """It has ended or was removed."""
