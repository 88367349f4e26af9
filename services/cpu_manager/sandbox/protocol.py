"""What a sandbox is asked and what it answers: the seam between graders and walls.

A job is one program run once. It enters with bytes and leaves with an `Exit`; nothing it started outlives it.
Limits hold for the whole process tree. Timers start when the program's process starts on the cores it was given.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Literal, Protocol

import msgspec

EndedBy = Literal[
    "exit", "signal", "wall-limit", "cpu-limit", "memory-limit", "output-limit", "cancelled", "lost", "decided"
]
"""Why a job ended. `lost` is ours (walls failed, zygote died): never a verdict on the program. `decided`: its `enough`
was true, so it was killed."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one job's whole process tree. A breach ends the job and is named in `Exit.ended_by`."""

    wall_s: float = 10.0
    cpu_s: float = 10.0
    """CPU seconds (user + system) of the tree."""
    memory_bytes: int = 1 << 30
    pids: int = 64
    disk_bytes: int = 64 << 20
    """Size of the private writable directory (all files together)."""
    output_bytes: int = 4 << 20
    """Kept of stdout and of stderr, each. More is drained and dropped, with a flag; it never blocks the program."""


class PythonJob(msgspec.Struct, frozen=True, kw_only=True):
    """Python run in a forked, pre-imported interpreter (zygote): no interpreter start per action."""

    harness: str = "script"
    """Which trusted entry runs in the child after the fork (sandbox/harnesses): `script` executes `source` as
    `__main__`; graders add their own, e.g. `asserts`, `function`, `math`."""
    source: str = ""
    payload: bytes = b""
    """Read by the harness after the fork, inside the walls. Never in the zygote."""
    stdin: bytes = b""
    argv: tuple[str, ...] = ()
    files: dict[str, bytes] = {}
    """Relative path -> content, written into the private directory (the working directory) before the start."""
    fetch: tuple[str, ...] = ()
    limits: Limits = Limits()
    zygote: str = "default"
    """One zygote per tenant and per uploaded module; `math` is the one with math-verify imported."""
    enough: Callable[[bytes], bool] | None = None
    """Whether the report so far decides, so that the rest of the run is not needed. Called from time to time while the
    program runs, on the event loop: bounded work, no exceptions. A sandbox may leave it out."""


class ExecJob(msgspec.Struct, frozen=True, kw_only=True):
    """Any other program: argv executed in the private directory, found in the read-only toolchain."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    files: dict[str, bytes] = {}
    executable: tuple[str, ...] = ()
    """Names in `files` that get the execute bit."""
    env: dict[str, str] = {}
    fetch: tuple[str, ...] = ()
    """Paths read back after the end: relative ones from the private directory; missing ones are absent."""
    limits: Limits = Limits()


Job = PythonJob | ExecJob


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended, and what it used. Durations are seconds, monotonic; sizes are bytes."""

    ended_by: EndedBy
    exit_code: int | None = None
    """Set when `ended_by` is `exit`."""
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    report: bytes = b""
    """What the harness wrote to its private descriptor (bounded to 1 MiB). Empty for `ExecJob`."""
    files: dict[str, bytes] = {}
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    detail: str = ""
    """For people: why a job was lost, or which limit it met."""


class Sandbox(Protocol):
    """A node's way of running jobs. Implemented by `LocalSandbox`; in unit tests by `FakeSandbox`."""

    async def run(self, job: Job, cores: frozenset[int]) -> Exit:
        """Run one job on exactly these cores and wait for its end.

        Cancelling this coroutine kills the whole tree before it returns (CancelledError is re-raised).
        Never raises for what the program does; our own failures come back as `ended_by="lost"`.
        """
        ...

    async def close(self) -> None:
        """Kill what runs, remove what was laid down (cgroups, directories, zygotes)."""
        ...


def names_a_file(path: str) -> bool:
    """Whether a path can name a file inside a private directory: relative, not climbing, of a length kernels take."""
    parts = PurePosixPath(path).parts
    climbs = path.startswith("/") or path.endswith("/") or ".." in parts or "\0" in path
    return bool(parts) and not climbs and len(path) <= 1024 and all(len(os.fsencode(part)) <= 255 for part in parts)
