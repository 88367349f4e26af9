"""The words between a manager and what runs inside: packets over socket pairs, marshalled downwards, packed upwards.

Downwards (manager to zygote and cell) the sender is trusted, so `marshal` is fine and quick. Upwards the sender has
touched what a program left behind, so nothing but fixed structures and raw bytes is read.
"""

from __future__ import annotations

import array
import marshal
import socket
import struct
from dataclasses import astuple, dataclass
from typing import Final

PACKET: Final = 64 << 10
"""Largest packet, bytes; well under the smallest default socket buffer."""

READY: Final = b"R"
"""A zygote or a cell stands. The cell's comes with a descriptor of its init process (pidfd)."""
STARTED: Final = b"S"
"""Every wall stands and the program begins: timers start. Followed by the time."""
FAILED: Final = b"X"
"""Followed by what failed, for people. The job is lost."""
ENDED: Final = b"E"
"""Followed by `EndedFrame`: the program has ended and nothing of its tree is left but init."""
FILE: Final = b"F"
"""Followed by size and name; then DATA packets until the size is reached."""
DATA: Final = b"D"
DONE: Final = b"Z"
"""Nothing more will come; the cell is gone."""
AGAIN: Final = b"A"
"""Nothing more will come of this program; the cell takes the order of another."""

_ENDED = struct.Struct("=iddQ")
_SIZE = struct.Struct("=Q")
_TIME = struct.Struct("=d")


@dataclass(frozen=True, slots=True)
class WallPlan:
    """How a zygote builds its walls and those of its cells: one rung of the ladder, spelt out."""

    namespaces: bool
    """False on the Landlock rung."""
    privileged: bool
    """The manager is root: a range of user ids is mapped, one per slot."""
    uid_base: int
    uid_count: int
    control_groups: bool
    root: str
    """An empty directory on which the read-only view is put together."""
    binds: tuple[tuple[str, str], ...]
    """Host path, and where it appears in the zygote's view."""
    covered: tuple[tuple[str, str], ...]
    """What a cell's private directory would cover and it needs: where the view has it, and where it belongs."""
    links: tuple[tuple[str, str], ...]
    texts: tuple[tuple[str, str], ...]
    interpreter_path: tuple[str, ...]
    """sys.path of programs, but for their own directory."""
    preload: tuple[str, ...]
    harnesses: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    executable: str
    resident: str = ""
    """The module whose `serve_descriptor` environments run; empty in zygotes that make none."""
    stopping: bool = False
    """Environments are stopped by SIGSTOP, not frozen by a control group."""


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """What a zygote is told of a cell it is to fork."""

    uid: int
    home: str
    """The private directory: `/tmp` in a mount namespace of its own, else a directory of the slot."""
    disk_bytes: int
    """Its size, where it is a tmpfs."""
    stays: bool = False
    """It is an environment: one resident instead of programs."""
    thawing: int = -1
    """The last descriptor that comes with it thaws it; the zygote keeps it under this number for its own end."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the program's process is told of its job by the manager, never by the zygote."""

    cores: tuple[int, ...]
    file_bytes: int
    """RLIMIT_FSIZE."""
    data_bytes: int
    """RLIMIT_DATA of each process; 0 leaves memory to the control group."""
    cpu_s: int
    """RLIMIT_CPU of each process: the brake if the manager sleeps. 0: none."""
    pids: int
    """Most tasks of the program."""
    counted_pids: int
    """RLIMIT_NPROC: the same, and what the kernel counts with them; 0 leaves it to the control group."""


@dataclass(frozen=True, slots=True)
class Errand:
    """What init is to bring back after the end. It waits in the socket until then."""

    fetch: tuple[str, ...]
    most_bytes: int


@dataclass(frozen=True, slots=True)
class PythonParcel:
    """A program for the zygote's own interpreter. Read after the fork, with all walls up."""

    harness: str
    source: str
    payload: bytes
    argv: tuple[str, ...]
    files: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class ExecParcel:
    """A program to execute."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    files: dict[str, bytes]
    executable: tuple[str, ...]


Down = WallPlan | SlotPlan | Order | Errand | PythonParcel | ExecParcel
_KINDS: Final[tuple[type[Down], ...]] = (WallPlan, SlotPlan, Order, Errand, PythonParcel, ExecParcel)


def pack(message: Down) -> bytes:
    """Marshal one downward message with its kind."""
    fields = tuple(getattr(message, name) for name in message.__slots__)
    return marshal.dumps((_KINDS.index(type(message)), fields))


def unpack(packet: bytes) -> Down:
    """Read what `pack` wrote. Only for packets from the manager."""
    kind, fields = marshal.loads(packet)
    message: Down = _KINDS[kind](*fields)
    return message


@dataclass(frozen=True, slots=True)
class EndedFrame:
    """How the program ended, as its init saw it."""

    status: int
    """As wait(2) gives it."""
    at: float
    """Of the host's monotonic clock, seconds."""
    cpu_s: float
    """Of every process that init or its descendants waited for."""
    peak_bytes: int
    """Of the largest single process."""

    def pack(self) -> bytes:
        return ENDED + _ENDED.pack(*astuple(self))

    @classmethod
    def unpack(cls, packet: bytes) -> EndedFrame:
        return cls(*_ENDED.unpack(packet[1:]))


def pack_started(at: float) -> bytes:
    return STARTED + _TIME.pack(at)


def unpack_started(packet: bytes) -> float:
    (at,) = _TIME.unpack_from(packet, 1)
    return float(at)


def pack_file(name: str, size: int) -> bytes:
    return FILE + _SIZE.pack(size) + name.encode(errors="surrogateescape")


def unpack_file(packet: bytes) -> tuple[str, int]:
    (size,) = _SIZE.unpack_from(packet, 1)
    return packet[1 + _SIZE.size :].decode(errors="surrogateescape"), size


def send(channel: socket.socket, packet: bytes, descriptors: tuple[int, ...] = ()) -> None:
    """Send one packet and copies of some descriptors."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    channel.sendmsg([packet], rights)


def receive(channel: socket.socket, descriptors: int) -> tuple[bytes, list[int]]:
    """Receive one packet and at most so many descriptors (closed on exec). An empty packet is the end."""
    received = array.array("i")
    packet, ancillary, _, _ = channel.recvmsg(
        PACKET, socket.CMSG_LEN(descriptors * received.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    return packet, list(received)
