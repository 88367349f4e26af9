"""File descriptors of one attempt: pipes, streams and shared memory for its processes."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Final

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
"""The process with the GPU could cut memory that the judge has mapped. That would kill the judge."""


class Descriptors:
    """Descriptors of one attempt. What is still open at the end of the block is closed."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def __enter__(self) -> Descriptors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(*self._open)

    def close(self, *descriptors: int) -> None:
        for each in descriptors:
            self._open.discard(each)
            os.close(each)

    def taken(self, descriptor: int) -> int:
        """Return a descriptor that its user closes."""
        self._open.discard(descriptor)
        return descriptor

    def _added(self, descriptors: Sequence[int]) -> Iterator[int]:
        self._open.update(descriptors)
        return iter(descriptors)

    def pair(self) -> tuple[int, int]:
        """Return two ends of a stream."""
        one, other = self._added([each.detach() for each in socket.socketpair()])
        return one, other

    def pipe(self) -> tuple[int, int]:
        read, write = self._added(os.pipe())
        return read, write

    def memory(self, name: str, content: bytes = b"") -> int:
        """Return shared memory that nobody can shrink."""
        (descriptor,) = self._added([os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)])
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return descriptor
