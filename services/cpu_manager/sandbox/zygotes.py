"""The manager's side of zygotes: starting them when first asked for, knowing when they die, keeping only so many."""

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

from services.cpu_manager.sandbox import packets
from services.cpu_manager.sandbox.child_processes import ChildProcesses, reap
from services.cpu_manager.sandbox.inside import wire
from services.cpu_manager.sandbox.protocol import PythonJob
from services.cpu_manager.sandbox.walls import syscalls
from services.cpu_manager.sandbox.watch import process_of

_BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from services.cpu_manager.sandbox.inside.zygote import main; main(int(sys.argv[2]))"
)
_REPOSITORY: Final = str(Path(__file__).resolve().parents[3])
_START_S: Final = 60.0
_END_S: Final = 5.0
_LOOK_S: Final = 0.001
LAUNCHER: Final = "-launcher"
"""The zygote that forks other programs: it imports nothing, so its forks are the quickest."""

_USUAL: Final = (
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
"""What nearly every program imports. Forking copies page tables: each megabyte imported here costs every program."""
_HEAVY: Final = (
    *("argparse", "ast", "asyncio", "base64", "cmath", "contextlib", "csv", "ctypes", "difflib", "glob", "inspect"),
    *("logging", "multiprocessing", "numbers", "numpy", "numpy.linalg", "numpy.random", "pathlib", "pickle", "pprint"),
    *("queue", "secrets", "shutil", "struct", "subprocess", "tempfile", "textwrap", "threading", "unicodedata"),
    *("unittest.mock", "uuid", "warnings", "weakref", "zlib"),
)
_IMPORTS_HEAVY: Final = re.compile(
    rb"\b(?:import|from)\b[^\n]*\b(?:%b)\b" % "|".join(name for name in _HEAVY if "." not in name).encode()
)
HEAVY: Final = "+heavy"
"""Suffix of a zygote's name that says it has all of `_HEAVY` imported too."""
_MATH: Final = ("math_verify", "sympy")


def zygote_for(job: PythonJob) -> str:
    """Name of the zygote a job is forked from: the lean one, unless its text imports something heavy.

    Looked for in source and payload (tests import too), line by line. A wrong guess costs time, never a verdict.
    """
    heavy = _IMPORTS_HEAVY.search(job.source.encode(errors="replace")) or _IMPORTS_HEAVY.search(job.payload)
    return job.zygote + HEAVY if heavy else job.zygote


class ZygoteError(RuntimeError):
    """A zygote could not be started, or died. Its jobs are lost and may be run again."""


class Zygote:
    """One running zygote process."""

    def __init__(self, name: str, child_processes: ChildProcesses) -> None:
        self.name = name
        self.dead = False
        self._child_processes = child_processes
        self._gone = asyncio.Event()
        self.cells = 0
        self.most_cells = 0
        self.end_listeners: set[Callable[[], None]] = set()
        """Called when it is dead."""
        self._channel, self._theirs = packets.pair()
        self._pidfd = -1

    async def start(self, plan: wire.WallPlan, log: Path) -> None:
        """Wait until its walls stand: 50 ms for a bare interpreter, 300 ms with the usual imports."""
        self._process = self._launch(plan, log)
        self._theirs.close()
        try:
            wire.send(self._channel, wire.pack(plan))
            # Two words in either order: the process we started names the zygote it forked, the zygote says it stands.
            for _ in range(2):
                packet, descriptors = await packets.receive(self._channel, 1, _START_S)
                if descriptors:
                    self._pidfd = descriptors[0]
                if packet != wire.READY:
                    break
            if plan.namespaces:
                await self._starter_ended()
        except (TimeoutError, OSError) as error:
            packet = wire.FAILED + (str(error) or "no answer").encode()
        except asyncio.CancelledError:
            self.kill()
            raise
        if packet != wire.READY:
            self.kill()
            said = packet[1:].decode(errors="replace") or _last_words(log)
            raise ZygoteError(f"zygote {self.name!r} did not start: {said or 'it died'}")
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._hung_up)

    async def _starter_ended(self) -> None:
        """Wait for the process that we started: it ends as soon as it has named the zygote that it forked."""
        async with asyncio.timeout(_START_S):
            while self._process.poll() is None:  # noqa: ASYNC110  # it takes less than a millisecond
                await asyncio.sleep(_LOOK_S)

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
        self._child_processes.launched(process.pid, forks=plan.namespaces)
        return process

    def _hung_up(self) -> None:
        self.kill()

    def spawn(self, slot: wire.SlotPlan, joining: tuple[int, ...]) -> socket.socket:
        """Order a cell. Returns our end of its control socket; raises `ZygoteError` when the zygote is gone."""
        ours, theirs = packets.pair()
        try:
            wire.send(self._channel, wire.pack(slot), (theirs.fileno(), *joining))
        except OSError as error:
            ours.close()
            if not isinstance(error, BlockingIOError):
                self.kill()
            raise ZygoteError(f"zygote {self.name!r} takes no orders: {error}") from error
        finally:
            theirs.close()
        return ours

    @property
    def pid(self) -> int:
        """Its process id as the manager sees it; 0 when it is gone."""
        return process_of(self._pidfd) if self._pidfd >= 0 else 0

    def kill(self) -> None:
        """End it and everything in its pid namespace. Safe to call again."""
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
        self._await_end()

    def _await_end(self) -> None:
        """Have it reaped when it has ended: after all that was in its pid namespace."""
        if self._pidfd < 0:  # it named no zygote: what we started is all there is, and ends at once
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            self._child_processes.gone(self._process.pid)
            self._gone.set()
            return
        try:
            asyncio.get_running_loop().add_reader(self._pidfd, self._has_ended)
        except RuntimeError:  # no loop is left that could tell
            self._has_ended()

    def _has_ended(self) -> None:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(self._pidfd)
        self._process.poll()
        reap(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self._child_processes.gone(self._process.pid)
        self._gone.set()

    async def ended(self) -> None:
        """Wait until nothing is left of it, for five seconds at most. Call after `kill`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self._gone.wait()


def _last_words(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-500:]


class Zygotes:
    """Zygotes by name, started lazily, restarted when dead; the least recently used idle one gives way."""

    def __init__(
        self, plan: wire.WallPlan, logs: Path, most: int, child_processes: ChildProcesses | None = None
    ) -> None:
        self._plan = plan
        self._child_processes = child_processes or ChildProcesses()
        self._logs = logs
        self._most = most
        self._running: OrderedDict[str, asyncio.Task[Zygote]] = OrderedDict()

    async def get(self, name: str) -> Zygote:
        """The zygote of this name, standing. Raises `ZygoteError`."""
        task = self._running.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() or task.result().dead)):
            self._make_room()
            task = asyncio.create_task(self._start(name), name=f"zygote {name}")
            self._running[name] = task
        self._running.move_to_end(name)
        # One start serves all who wait: the cancelling of one of them must not undo it.
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
        preload = _USUAL + (_HEAVY if name.endswith(HEAVY) else ())
        if name.removesuffix(HEAVY).partition("@")[0] == "math":
            return replace(self._plan, preload=preload + _MATH)
        # A program's private directory is its own; only sympy, which imports as it goes, gets one in /tmp back.
        return replace(self._plan, preload=preload, covered=())

    def _make_room(self) -> None:
        for name, task in list(self._running.items()):
            if len(self._running) < self._most:
                return
            if task.done() and (task.cancelled() or task.exception() or not task.result().cells):
                if not task.cancelled() and not task.exception():
                    task.result().kill()
                del self._running[name]

    def pids(self) -> dict[str, int]:
        """The zygotes that stand, with their process ids as the manager sees them."""
        standing = {name: task.result() for name, task in self._running.items() if task.done() and not task.exception()}
        return {name: zygote.pid for name, zygote in standing.items() if not zygote.dead}

    async def close(self) -> None:
        """Kill every zygote, those still starting too, and wait for their ends."""
        for task in self._running.values():
            task.cancel()
        found = await asyncio.gather(*self._running.values(), return_exceptions=True)
        zygotes = [zygote for zygote in found if isinstance(zygote, Zygote)]
        for zygote in zygotes:
            zygote.kill()
        await asyncio.gather(*(zygote.ended() for zygote in zygotes))
        self._running.clear()
