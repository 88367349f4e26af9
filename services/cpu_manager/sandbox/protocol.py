"""Requests to a sandbox and its results: the interface between graders and walls.

A job is one program that runs once. It takes bytes and returns an `Exit`; no process that it started outlives it.
Limits hold for the whole process tree. Timers start when the program's process starts on the cores it was given.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Literal, NamedTuple, Protocol

import msgspec

EndedBy = Literal[
    "exit", "signal", "wall-limit", "cpu-limit", "memory-limit", "output-limit", "cancelled", "lost", "decided"
]
"""End of a job. `lost` is our failure (walls failed, zygote died), never a verdict on the program. `decided`: its
`enough` returned True, so it was killed."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one job's whole process tree. A breach ends the job and is reported in `Exit.ended_by`."""

    wall_s: float = 10.0
    cpu_s: float = 10.0
    """CPU seconds (user + system) of the tree."""
    memory_bytes: int = 1 << 30
    pids: int = 64
    disk_bytes: int = 64 << 20
    """Size of the private writable directory (all files together)."""
    output_bytes: int = 4 << 20
    """Bytes kept of stdout and of stderr, each. The rest is read, dropped and flagged; it never blocks the program."""


class PythonJob(msgspec.Struct, frozen=True, kw_only=True):
    """Python run in a forked, pre-imported interpreter (zygote): no interpreter start per action."""

    harness: str = "script"
    """The trusted entry that runs in the child after the fork (sandbox/harnesses): `script` executes `source` as
    `__main__`; graders have their own, for example `asserts`, `function`, `math`."""
    source: str = ""
    payload: bytes = b""
    """The harness reads it after the fork, inside the walls. It is never in the zygote."""
    stdin: bytes = b""
    argv: tuple[str, ...] = ()
    files: dict[str, bytes] = {}
    """Relative path -> content, written into the private directory (the working directory) before the start."""
    fetch: tuple[str, ...] = ()
    limits: Limits = Limits()
    zygote: str = "default"
    """One zygote per tenant and per uploaded module; `math` has math-verify imported."""
    enough: Callable[[bytes], bool] | None = None
    """Returns True if the report so far decides, so that the rest of the run is not needed. Called from time to time
    while the program runs, on the event loop: bounded work, no exceptions. A sandbox may ignore it."""


class ExecJob(msgspec.Struct, frozen=True, kw_only=True):
    """Any other program: argv is executed in the private directory and found in the read-only toolchain."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    files: dict[str, bytes] = {}
    executable: tuple[str, ...] = ()
    """Names in `files` that get the execute bit."""
    env: dict[str, str] = {}
    fetch: tuple[str, ...] = ()
    """Paths to read after the end, relative to the private directory. Missing files are left out of `Exit.files`."""
    limits: Limits = Limits()


Job = PythonJob | ExecJob


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a job and its usage. Durations are seconds, monotonic; sizes are bytes."""

    ended_by: EndedBy
    exit_code: int | None = None
    """Set when `ended_by` is `exit`."""
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    report: bytes = b""
    """Output of the harness on its private descriptor (at most 1 MiB). Empty for `ExecJob`."""
    files: dict[str, bytes] = {}
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    detail: str = ""
    """For people: why a job was lost, or which limit it exceeded."""


class JobCut(NamedTuple):
    """Argument of the CancelledError of a job that was cut. It is no subclass: asyncio's timeouts compare the type."""

    cpu_s: float


class Sandbox(Protocol):
    """Runner of jobs on a node. Implemented by `LocalSandbox`; in unit tests by `FakeSandbox`."""

    async def run(self, job: Job, cores: frozenset[int]) -> Exit:
        """Run one job on exactly these cores and wait for its end.

        Cancelling this coroutine kills the whole tree before it returns. The CancelledError has a `JobCut` among its
        arguments if the job had begun.
        Does not raise for what the program does; our own failures are returned as `ended_by="lost"`.
        """
        ...

    async def close(self) -> None:
        """Kill running programs; remove cgroups, directories and zygotes."""
        ...


def names_a_file(path: str) -> bool:
    """Return True if a path can name a file in a private directory: relative, without `..`, not too long."""
    parts = PurePosixPath(path).parts
    climbs = path.startswith("/") or path.endswith("/") or ".." in parts or "\0" in path
    return bool(parts) and not climbs and len(path) <= 1024 and all(len(os.fsencode(part)) <= 255 for part in parts)
