"""Zygotes on the manager's side: started at first use, restarted after their death, bounded in number."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from services.cpu_manager.sandbox import transport
from services.cpu_manager.sandbox.child_processes import ChildProcesses, reap
from services.cpu_manager.sandbox.inside import wire
from services.cpu_manager.sandbox.protocol import PythonJob
from services.cpu_manager.sandbox.usage import pid_of
from shared.walls import syscalls

_BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from services.cpu_manager.sandbox.inside.zygote import main; main(int(sys.argv[2]))"
)
_REPOSITORY: Final = str(Path(__file__).resolve().parents[3])
_START_S: Final = 60.0
_END_S: Final = 5.0
_POLL_S: Final = 0.001
LAUNCHER: Final = "-launcher"
"""Name of the zygote that forks other programs. It imports nothing, so its forks are the fastest."""

_COMMON_MODULES: Final = (
    *("abc", "bisect", "collections", "collections.abc", "copy", "dataclasses", "datetime", "decimal", "enum"),
    *(
        "fractions",
        "functools",
        "hashlib",
        "heapq",
        "io",
        "itertools",
        "json",
        "math",
        "operator",
        "os",
        "random",
        "re",
    ),
    *("statistics", "string", "sys", "time", "traceback", "types", "typing", "unittest"),
)
"""Modules that nearly every program imports. A fork copies page tables, so each megabyte here costs every program."""
_HEAVY_MODULES: Final = (
    *("argparse", "ast", "asyncio", "base64", "cmath", "contextlib", "csv", "ctypes", "difflib", "glob", "inspect"),
    *("logging", "multiprocessing", "numbers", "numpy", "numpy.linalg", "numpy.random", "pathlib", "pickle", "pprint"),
    *("queue", "secrets", "shutil", "struct", "subprocess", "tempfile", "textwrap", "threading", "unicodedata"),
    *("unittest.mock", "uuid", "warnings", "weakref", "zlib"),
)
_IMPORTS_HEAVY: Final = re.compile(
    rb"\b(?:import|from)\b[^\n]*\b(?:%b)\b" % "|".join(name for name in _HEAVY_MODULES if "." not in name).encode()
)
HEAVY_SUFFIX: Final = "+heavy"
"""Suffix in the name of a zygote that has imported all of `_HEAVY_MODULES` too."""
_MATH: Final = ("math_verify", "sympy")


def zygote_for(job: PythonJob) -> str:
    """Return the name of the zygote for a job: the lean one, unless its text imports a heavy module.

    Searches source and payload (tests import too), line by line. A wrong guess costs time, never a verdict.
    """
    heavy = _IMPORTS_HEAVY.search(job.source.encode(errors="replace")) or _IMPORTS_HEAVY.search(job.payload)
    return job.zygote + HEAVY_SUFFIX if heavy else job.zygote


class ZygoteError(RuntimeError):
    """A zygote could not be started, or died. Its jobs are lost and may be run again."""


class Zygote:
    """One running zygote process."""

    def __init__(self, name: str, child_processes: ChildProcesses) -> None:
        self.name = name
        self.dead = False
        self._child_processes = child_processes
        self._end_event = asyncio.Event()
        self.cells = 0
        self.most_cells = 0
        self.end_listeners: set[Callable[[], None]] = set()
        """Called when it has died."""
        self._channel, self._theirs = transport.socket_pair()
        self._pidfd = -1

    async def start(self, plan: wire.WallPlan, log: Path) -> None:
        """Start it and wait until its walls are ready: 50 ms for a bare interpreter, 300 ms with the usual imports."""
        self._process = self._launch(plan, log)
        self._theirs.close()
        try:
            wire.send(self._channel, wire.pack(plan))
            # Two packets in either order: our process sends the forked zygote's descriptor; the zygote sends READY.
            for _ in range(2):
                packet, descriptors = await transport.receive(self._channel, 1, _START_S)
                if descriptors:
                    self._pidfd = descriptors[0]
                if packet != wire.READY:
                    break
            if plan.namespaces:
                await self._wait_for_starter()
        except (TimeoutError, OSError) as error:
            packet = wire.FAILED + (str(error) or "no answer").encode()
        except asyncio.CancelledError:
            self.kill()
            raise
        if packet != wire.READY:
            self.kill()
            reason = packet[1:].decode(errors="replace") or _log_tail(log)
            raise ZygoteError(f"zygote {self.name!r} did not start: {reason or 'it died'}")
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._disconnected)

    async def _wait_for_starter(self) -> None:
        """Wait for the process that we started. It ends as soon as it has sent the descriptor of the forked zygote."""
        async with asyncio.timeout(_START_S):
            while self._process.poll() is None:  # noqa: ASYNC110  # it takes less than a millisecond
                await asyncio.sleep(_POLL_S)

    def _launch(self, plan: wire.WallPlan, log: Path) -> subprocess.Popen[bytes]:
        descriptor = self._theirs.fileno()
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [plan.executable, "-I", "-S", "-B", "-X", "utf8", "-c", _BOOT, _REPOSITORY, str(descriptor)],
                env={},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(descriptor,),
                start_new_session=True,
            )
        self._child_processes.add_session(process.pid, forks=plan.namespaces)
        return process

    def _disconnected(self) -> None:
        self.kill()

    def spawn(self, slot: wire.SlotPlan, joining: tuple[int, ...]) -> socket.socket:
        """Request a cell. Return our end of its control socket. Raise `ZygoteError` if the zygote has ended."""
        ours, theirs = transport.socket_pair()
        try:
            wire.send(self._channel, wire.pack(slot), (theirs.fileno(), *joining))
        except OSError as error:
            ours.close()
            if not isinstance(error, BlockingIOError):
                self.kill()
            raise ZygoteError(f"zygote {self.name!r} accepts no request: {error}") from error
        finally:
            theirs.close()
        return ours

    @property
    def pid(self) -> int:
        """Its process id as the manager sees it; 0 if it has ended."""
        return pid_of(self._pidfd) if self._pidfd >= 0 else 0

    def kill(self) -> None:
        """Kill it and everything in its pid namespace. Safe to call again."""
        if self.dead:
            return
        self.dead = True
        with contextlib.suppress(ValueError, OSError, RuntimeError):
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
        self._channel.close()
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                syscalls.signal_pidfd(self._pidfd, signal.SIGKILL)
        else:
            self._process.kill()
        for listener in tuple(self.end_listeners):
            listener()
        self._watch_end()

    def _watch_end(self) -> None:
        """Reap it when it has ended, which is after all processes of its pid namespace."""
        if self._pidfd < 0:  # no zygote was forked: only the process that we started exists, and it ends at once
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            self._child_processes.remove_session(self._process.pid)
            self._end_event.set()
            return
        try:
            asyncio.get_running_loop().add_reader(self._pidfd, self._reap)
        except RuntimeError:  # the event loop has ended
            self._reap()

    def _reap(self) -> None:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(self._pidfd)
        self._process.poll()
        reap(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self._child_processes.remove_session(self._process.pid)
        self._end_event.set()

    async def ended(self) -> None:
        """Wait until nothing of it is left, at most five seconds. Call it after `kill`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self._end_event.wait()


def _log_tail(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-500:]


class Zygotes:
    """Zygotes by name: started at first use, restarted after death. The least recently used idle one is evicted."""

    def __init__(
        self, plan: wire.WallPlan, logs: Path, most: int, child_processes: ChildProcesses | None = None
    ) -> None:
        self._plan = plan
        self._child_processes = child_processes or ChildProcesses()
        self._logs = logs
        self._most = most
        self._running: OrderedDict[str, asyncio.Task[Zygote]] = OrderedDict()

    async def get(self, name: str) -> Zygote:
        """Return the running zygote of this name. Raise `ZygoteError`."""
        task = self._running.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() or task.result().dead)):
            self._evict()
            task = asyncio.create_task(self._start(name), name=f"zygote {name}")
            self._running[name] = task
        self._running.move_to_end(name)
        # One start serves all waiting callers. Cancelling one of them must not cancel the start.
        await asyncio.wait([task])
        if task.cancelled():
            raise ZygoteError("the sandbox was closed")
        return task.result()

    async def _start(self, name: str) -> Zygote:
        zygote = Zygote(name, self._child_processes)
        safe = "".join(character if character.isalnum() else "_" for character in name)[:40]
        await zygote.start(self._plan_of(name), self._logs / f"zygote-{safe}.log")
        return zygote

    def _plan_of(self, name: str) -> wire.WallPlan:
        if name == LAUNCHER:
            return replace(self._plan, harnesses=(), preload=(), covered=())
        preload = _COMMON_MODULES + (_HEAVY_MODULES if name.endswith(HEAVY_SUFFIX) else ())
        if name.removesuffix(HEAVY_SUFFIX).partition("@")[0] == "math":
            return replace(self._plan, preload=preload + _MATH)
        # A program's private directory is its own. Only sympy, which imports lazily, gets one in /tmp bound back.
        return replace(self._plan, preload=preload, covered=())

    def _evict(self) -> None:
        for name, task in list(self._running.items()):
            if len(self._running) < self._most:
                return
            if task.done() and (task.cancelled() or task.exception() or not task.result().cells):
                if not task.cancelled() and not task.exception():
                    task.result().kill()
                del self._running[name]

    def pids(self) -> dict[str, int]:
        """Return the running zygotes with their process ids as the manager sees them."""
        running = {name: task.result() for name, task in self._running.items() if task.done() and not task.exception()}
        return {name: zygote.pid for name, zygote in running.items() if not zygote.dead}

    async def close(self) -> None:
        """Kill every zygote, also those that are starting, and wait for their ends."""
        for task in self._running.values():
            task.cancel()
        found = await asyncio.gather(*self._running.values(), return_exceptions=True)
        zygotes = [zygote for zygote in found if isinstance(zygote, Zygote)]
        for zygote in zygotes:
            zygote.kill()
        await asyncio.gather(*(zygote.ended() for zygote in zygotes))
        self._running.clear()
