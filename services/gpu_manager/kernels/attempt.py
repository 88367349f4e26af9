"""One attempt of a kernel: starts both processes behind their walls, and ends them. Returns the judge's report.

Laws:
  - both processes, with all that they have started, have ended when `attempt` returns or is cancelled; or `END_S` have
    passed after they were killed;
  - the kernel has half of the time limit, and all else the other half. So a slow kernel cannot exceed the reference's
    time, and a slow reference cannot exceed the kernel's;
  - no process gets the manager's environment, which has the addresses and keys of the mesh;
  - this module, and what it imports, need msgspec, NumPy and the standard library alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from services.gpu_manager.kernels.descriptors import Descriptors

ROOT: Final = Path(__file__).parents[3]
"""Directory of the packages `services` and `shared`."""
COMMAND: Final = (sys.executable, "-P", "-m", "services.gpu_manager.kernels")
END_S: Final = 20.0
"""Limit for the end of killed processes. The driver first ends the work that they have on the GPU."""
PROBE_S: Final = 30.0
MOST_LINE: Final = 4 << 20
MOST_WORDS: Final = 2000
"""Bytes that are read of the last words of a process."""
_INHERITED: Final = ("PATH", "LANG", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class GpuAccess:
    """One GPU, as a process behind walls gets it."""

    files: tuple[str, ...]
    """Device files."""
    shown: tuple[str, ...] = ()
    """Directories of the driver's libraries beside the toolchain."""
    library: str = "libcuda.so.1"
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoleCommands:
    """Commands of the two processes. A test replaces that of the GPU."""

    device: Sequence[str] = COMMAND
    judge: Sequence[str] = COMMAND


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt has ended."""

    report: dict[str, Any] | None
    """The judge's report; None: it wrote none."""
    phase: str
    """Last phase that the judge reported, see `judge_process`; `judge`: none."""
    hung: bool
    """The phase has used up its part of the time limit."""
    took_s: float
    words: str = ""
    """Last words of the processes, for people."""


@dataclass(slots=True)
class _Phases:
    """Time that the kernel and all else have used, each of half of the limit."""

    limit_s: float
    phase: str = "judge"
    """That of the judge's start, until it reports another one."""
    _used_s: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    _since: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    def enter(self, phase: str) -> None:
        now = asyncio.get_running_loop().time()
        self._used_s[self.is_sample] += now - self._since
        self.phase, self._since = phase, now

    @property
    def is_sample(self) -> bool:
        """The present phase is one of the sample."""
        return self.phase in ("load", "kernel")

    @property
    def deadline(self) -> float:
        return self._since + max(0.0, self.limit_s / 2 - self._used_s[self.is_sample])


async def attempt(
    job: Mapping[str, Any], module: bytes, gpu: GpuAccess, limit_s: float, commands: RoleCommands = RoleCommands()
) -> AttemptEnd:
    """Run a kernel, and judge it.

    Args:
        job: of the judge (`job_of`).
        module: the compiled kernel.
        gpu: the GPU, which nothing else uses.
        limit_s: seconds, half of them for the kernel.
        commands: of the processes.

    Raises:
        OSError: a process cannot be started.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    with Descriptors() as open_, tempfile.TemporaryDirectory(prefix="treadle-kernel-") as folder:
        judge_end, device_end = open_.pair()
        image, result, code = open_.memory("image"), open_.memory("result"), open_.memory("module", module)
        read, write = open_.pipe()
        plan: dict[str, Any] = {"image": image, "result": result, "devices": [], "shown": []}
        device = plan | _device_plan(gpu, device_end, code, _root(folder, "device"))
        judge = plan | {"role": "judge", "channel": judge_end, "out": write, "root": _root(folder, "judge"),
                        "job": dict(job)}  # fmt: skip
        async with (
            _running(commands.device, device, (device_end, image, result, code)) as device_process,
            _running(commands.judge, judge, (judge_end, image, result, write)) as judge_process,
        ):
            open_.close(device_end, judge_end, write)
            phases = _Phases(limit_s)
            report, hung = await _read(open_.taken(read), phases)
        words = f"device: {device_process.words()}; judge: {judge_process.words()}"
        return AttemptEnd(report, phases.phase, hung, loop.time() - began, words)


async def probe(gpu: GpuAccess, commands: RoleCommands = RoleCommands()) -> str:
    """Use the GPU from a new process without a module. Return why it does not work; empty: it works."""
    with Descriptors() as open_, tempfile.TemporaryDirectory(prefix="treadle-kernel-") as folder:
        own, device_end = open_.pair()
        image, result, code = open_.memory("image"), open_.memory("result"), open_.memory("module")
        plan: dict[str, Any] = {"image": image, "result": result}
        plan |= _device_plan(gpu, device_end, code, _root(folder, "device"))
        try:
            async with _running(commands.device, plan, (device_end, image, result, code)) as process:
                open_.close(device_end)
                answer = await _asked(open_.taken(own))
        except TimeoutError:
            return f"it has not answered within {PROBE_S:g} s"
        except OSError as error:
            return str(error)
        return "" if answer == "{}" else answer or process.words()


async def _asked(channel: int) -> str:
    """Return the answer of a probed process; empty: it has ended."""
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=channel))
    try:
        async with asyncio.timeout(PROBE_S):
            writer.write(b'{"do": "probe"}\n')
            await reader.readline()  # its description
            answer = await reader.readline()
    except ConnectionError:
        return ""
    finally:
        writer.close()
    return answer.decode(errors="replace").strip()[:MOST_WORDS]


def _root(folder: str, name: str) -> str:
    """Return a new empty directory, on which a process mounts its view."""
    path = Path(folder) / name
    path.mkdir(0o700)
    return str(path)


def _device_plan(gpu: GpuAccess, channel: int, module: int, root: str) -> dict[str, Any]:
    return {
        "role": "device",
        "channel": channel,
        "module": module,
        "library": gpu.library,
        "root": root,
        "devices": list(gpu.files),
        "shown": list(gpu.shown),
        "environment": {"CUDA_CACHE_DISABLE": "1", **gpu.environment},
    }


async def _read(descriptor: int, phases: _Phases) -> tuple[dict[str, Any] | None, bool]:
    """Return the judge's report, and whether a phase has taken too long."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MOST_LINE)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        while True:
            try:
                async with asyncio.timeout_at(phases.deadline):
                    line = await reader.readline()
            except TimeoutError:
                return None, True
            message = json.loads(line) if line.endswith(b"\n") else None
            if not isinstance(message, dict):
                return None, False
            if "report" in message:
                return message["report"], False
            phases.enter(str(message.get("phase")))
    except ValueError:  # too long, or no JSON: the judge is broken
        return None, False
    finally:
        transport.close()


@dataclass(slots=True)
class _Process:
    """A process with its inner one, which has its standard error open as long as it lives."""

    outer: asyncio.subprocess.Process
    _words: bytearray = field(default_factory=bytearray)
    _reading: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self._reading = asyncio.create_task(self._read(), name="words of a kernel's process")

    async def _read(self) -> None:
        assert self.outer.stderr is not None, "it is a pipe"
        while part := await self.outer.stderr.read(4096):
            self._words += part[: max(0, MOST_WORDS - len(self._words))]

    def words(self) -> str:
        """Return its last words."""
        return " ".join(self._words.decode(errors="replace").split()) or f"exit status {self.outer.returncode}"

    async def end(self) -> None:
        """Kill it, and wait for the end of all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            self.outer.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self._reading
                await self.outer.wait()
        self._reading.cancel()


@asynccontextmanager
async def _running(command: Sequence[str], plan: Mapping[str, Any], given: Sequence[int]) -> AsyncIterator[_Process]:
    """Start a process with its plan on standard input. It has ended after the block."""
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    with tempfile.TemporaryFile() as text:
        text.write(json.dumps(plan).encode())
        text.seek(0)
        outer = await asyncio.create_subprocess_exec(
            *command,
            stdin=text,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=given,
            env=environment | {"PYTHONPATH": _search(), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
        )
    process = _Process(outer)
    try:
        yield process
    finally:
        await process.end()


def _search() -> str:
    """Return the places of modules: this package's, then those that the manager has of its caller."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
