"""How an environment is held: given cores, frozen, spoken to, killed. A container in two ways, a local cell in one."""

from __future__ import annotations

import socket
from typing import Protocol

import msgspec


class Used(msgspec.Struct, frozen=True):
    """By everything in an environment."""

    cpu_s: float = 0.0
    """Since it began."""
    peak_memory_bytes: int = 0
    """The most at once, since it last woke where that can be told, else since it began."""
    memory_kills: int = 0
    """Processes that its memory limit has ended, as far as that can be told."""


class Hold(Protocol):
    """One environment. The caller sees to it that of `resume`, `pause` and `kill` only one goes on at a time."""

    @property
    def alive(self) -> bool:
        """Its first program runs, as far as was heard."""
        ...

    async def resume(self, cores: frozenset[int]) -> None:
        """Let it run on exactly these cores; none: on those it had.

        Raises:
            Gone: there is nothing there any more.
            RuntimeUnavailable: the container engine does not answer.
        """
        ...

    async def pause(self) -> None:
        """Freeze everything in it. Raises as `resume` does."""
        ...

    async def used(self) -> Used:
        """Raises as `resume` does."""
        ...

    async def connect(self) -> socket.socket:
        """A connection to its resident, not blocking.

        Raises:
            OSError: nothing listens yet.
            Gone, RuntimeUnavailable: as `resume`.
        """
        ...

    async def kill(self) -> None:
        """End everything in it, frozen or not. It may still be there a moment later. Never raises."""
        ...

    async def close(self) -> None:
        """Let go of it; what it is doing it goes on doing."""
        ...


class Gone(Exception):
    """It has ended or was removed."""
