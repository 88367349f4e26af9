"""Messages between a manager and the processes inside: packets over socket pairs.

Downwards (manager to zygote and cell) the sender is trusted, so `marshal` is safe and fast. Upwards the sender may have
handled a program's leftovers, so only fixed structures and raw bytes are read.
"""

from __future__ import annotations

import array
import marshal
import socket
import struct
from dataclasses import astuple, dataclass
from typing import Final

PACKET: Final = 64 << 10
"""Largest packet in bytes; well below the smallest default socket buffer."""

READY: Final = b"R"
"""A zygote or a cell is ready. A cell's packet carries a descriptor of its init process (pidfd)."""
STARTED: Final = b"S"
"""Every wall is up and the program begins: timers start. Followed by the time."""
FAILED: Final = b"X"
"""Followed by the failure, for people. The job is lost."""
ENDED: Final = b"E"
"""Followed by `EndedFrame`: the program has ended, and only init is left of its tree."""
FILE: Final = b"F"
"""Followed by size and name; then DATA packets until the size is reached."""
DATA: Final = b"D"
DONE: Final = b"Z"
"""The last packet; the cell has ended."""
REUSABLE: Final = b"A"
"""The last packet of this program; the cell can run another one."""

_ENDED = struct.Struct("=iddQQd")
_SIZE = struct.Struct("=Q")
_TIME = struct.Struct("=d")


@dataclass(frozen=True, slots=True)
class WallPlan:
    """Walls of a zygote and of its cells: one rung of the ladder in detail."""

    namespaces: bool
    """False on the Landlock rung."""
    privileged: bool
    """True if the manager is root. Then a range of user ids is mapped, one per slot."""
    uid_base: int
    uid_count: int
    control_groups: bool
    root: str
    """An empty directory on which the read-only view is mounted."""
    binds: tuple[tuple[str, str], ...]
    """Host path, and its path in the zygote's view."""
    covered: tuple[tuple[str, str], ...]
    """Paths that a cell needs and its private directory would cover: their place in the view, and their own place."""
    links: tuple[tuple[str, str], ...]
    texts: tuple[tuple[str, str], ...]
    interpreter_path: tuple[str, ...]
    """sys.path of programs, without their own directory."""
    preload: tuple[str, ...]
    harnesses: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    executable: str
    agent: str = ""
    """The module whose `serve_descriptor` environments run; empty in zygotes without environments."""
    stopping: bool = False
    """True if environments are stopped by SIGSTOP instead of being frozen by a control group."""


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """A cell that a zygote is to fork."""

    uid: int
    home: str
    """The private directory: `/tmp` in a mount namespace of its own, else a directory of the slot."""
    disk_bytes: int
    """Size of the private directory, if it is a tmpfs."""
    permanent: bool = False
    """True for an environment: it has one agent instead of programs."""
    thawing: int = -1
    """If not -1: the last descriptor with this plan thaws the cell. The zygote keeps it under this number, to use it
    when the zygote ends."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Limits of a job. The manager sends them to the program's process, never through the zygote."""

    cores: tuple[int, ...]
    file_bytes: int
    """RLIMIT_FSIZE."""
    data_bytes: int
    """RLIMIT_DATA of each process; 0 leaves memory to the control group."""
    cpu_s: int
    """RLIMIT_CPU of each process, in case the manager does not run. 0: none."""
    pids: int
    """Task limit of the program."""
    counted_pids: int
    """RLIMIT_NPROC: the task limit plus what the kernel counts with it, at most the hard limit of our own; 0 leaves it
    to the control group."""
    listens: int = 0
    """Port at which an environment's network namespace gets a listener before its programs. STARTED then carries its
    descriptor. 0: none, and no sockets but AF_UNIX."""


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Files that init sends back after the end. The request waits in the socket until then."""

    fetch: tuple[str, ...]
    most_bytes: int


@dataclass(frozen=True, slots=True)
class PythonProgram:
    """A program for the zygote's own interpreter. Read after the fork, behind all walls."""

    harness: str
    source: str
    payload: bytes
    argv: tuple[str, ...]
    files: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class ExecProgram:
    """A program to execute."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    files: dict[str, bytes]
    executable: tuple[str, ...]


Down = WallPlan | SlotPlan | StartRequest | FetchRequest | PythonProgram | ExecProgram
_KINDS: Final[tuple[type[Down], ...]] = (WallPlan, SlotPlan, StartRequest, FetchRequest, PythonProgram, ExecProgram)


def pack(message: Down) -> bytes:
    """Marshal one downward message with its kind."""
    fields = tuple(getattr(message, name) for name in message.__slots__)
    return marshal.dumps((_KINDS.index(type(message)), fields))


def unpack(packet: bytes) -> Down:
    """Read the output of `pack`. Only for packets from the manager."""
    kind, fields = marshal.loads(packet)
    message: Down = _KINDS[kind](*fields)
    return message


@dataclass(frozen=True, slots=True)
class EndedFrame:
    """End of the program, as observed by its init."""

    status: int
    """As returned by wait(2)."""
    at: float
    """On the host's monotonic clock, in seconds."""
    cpu_s: float
    """CPU time of every process that init or its descendants have waited for."""
    peak_bytes: int
    """Peak of the largest single process."""
    excess_tasks: int = 0
    """Number of tasks for which init ended the program; 0 if it did not."""
    init_cpu_s: float = 0.0
    """CPU time of init for the program's calls. The program has used the sum of this and `cpu_s`."""

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
    """Receive one packet and at most `descriptors` descriptors (closed on exec). An empty packet is the end."""
    received = array.array("i")
    packet, ancillary, _, _ = channel.recvmsg(
        PACKET, socket.CMSG_LEN(descriptors * received.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    return packet, list(received)
