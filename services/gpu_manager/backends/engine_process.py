"""The process of an engine with its guard: started or adopted, watched, and ended with all of its children.

Laws:
  - `stop` ends within its times, also if a process ignores SIGTERM;
  - after `stop` no process is left that is in the group or has the engine's mark in its environment. Device memory is
    free only then, because the driver frees it when the last process that uses it has ended;
  - the engine goes on if this process ends without `stop`, even by SIGKILL. The next one adopts it; if there is none,
    the guard ends it (`engine_guard`).

A child that leaves the group *and* drops its environment is ended by the guard, and not by `stop`.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from services.gpu_manager.backends.engine_folders import EngineFolder
from services.gpu_manager.backends.engine_guard import TAIL_BYTES
from services.gpu_manager.backends.engine_processes import ProcessScan, kill_and_wait
from services.gpu_manager.backends.guard_start import started_guard
from services.gpu_manager.backends.launching import EngineLaunch
from services.gpu_manager.backends.protocol import EngineError
from shared.runtime.kept_processes import boot_id
from shared.runtime.signals import signal_name
from shared.runtime.units import Seconds

SHOWN_CHARS: Final = 2_000
"""Last characters of the output that an error message shows."""
MARK: Final = "TREADLE_ENGINE_PROCESS"
"""Variable in the environment of an engine, its children and its guard. Its value is unique to one start."""
_GUARD_END_S: Final[Seconds] = 2.0
"""Longest wait for a guard that was asked to kill its engine."""
_NO_GROUP: Final = -1
_POLL_S: Final = 0.02
_STATUS_POLL_S: Final = 0.001
_STATUS_POLLS: Final = 100


class EngineProcess:
    """A running engine, by descriptors of itself and of its guard."""

    def __init__(self, folder: EngineFolder, guard: int, pid: int, child: subprocess.Popen[bytes] | None) -> None:
        """Watch it. `guard`, `pid`: its processes. `child`: the guard, if it was started here.

        Raises:
            ProcessLookupError: the guard has ended and was reaped.
        """
        self.folder = folder
        self._pid = pid
        self._child = child
        self._guard = os.pidfd_open(guard)
        try:
            self._engine = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended, and its guard is about to
            self._engine = -1
        self._guard_pid = guard
        self._scan = ProcessScan(pid, f"{MARK}={folder.record.mark}".encode())
        self._end = asyncio.Event()
        self._last: tuple[int | None, str] | None = None
        """Status and output, kept when the folder is removed."""
        self._guard_end = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._guard, self._on_guard_end)
        if self._engine >= 0:
            loop.add_reader(self._engine, self._on_end)
        else:
            self._end.set()

    @classmethod
    async def start(
        cls, launch: EngineLaunch, port: int, folder: EngineFolder, grace_s: Seconds = 10.0
    ) -> EngineProcess:
        """Start an engine. `grace_s`: time for its end after SIGTERM, if its guard ends it.

        Raises:
            EngineError: the command cannot be executed, or no guard could be started.
        """
        mark = {MARK: folder.record.mark}
        task = {
            "argv": launch.argv(port),
            "env": launch.environment(port) | mark,
            "cwd": str(Path.cwd()),
            "folder": str(folder.path.absolute()),
            "lease": str(folder.lease.absolute()),
            "lease_s": folder.lease_s,
            "grace_s": grace_s,
            "manager": os.getpid(),
            "boot": boot_id(),
        }
        try:
            child, answer = await started_guard(msgspec.json.encode(task), mark)
        except OSError as error:
            folder.remove()
            raise EngineError(f"no guard could be started for the engine ({error})") from error
        except BaseException:
            await asyncio.shield(discard(folder, _GUARD_END_S))
            raise
        if not answer.pid:
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(child.wait, _GUARD_END_S)
            folder.remove()
            raise EngineError(answer.error or "the guard of the engine ended before the engine was started")
        return cls(folder, child.pid, answer.pid, child)

    @classmethod
    def adopt(cls, folder: EngineFolder) -> EngineProcess | None:
        """Return the engine of a former manager; None if it has ended."""
        guard, pid = folder.guard, folder.pid
        if guard is None or not pid:
            return None
        try:
            process = cls(folder, guard.pid, pid, None)
        except ProcessLookupError:
            return None
        if guard.alive() and process._scan.has(pid):  # after the descriptors pin them
            return process
        process._close()
        return None

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its group."""
        return self._pid

    @property
    def is_running(self) -> bool:
        """Whether its first process runs. It is the engine: a command must not go to the background."""
        return self._engine >= 0 and not _has_ended(self._engine)

    async def ended(self) -> None:
        """Wait until its first process has ended, and the guard has stored how: about a millisecond later."""
        await self._end.wait()
        for _ in range(_STATUS_POLLS):
            if self._guard_end.is_set() or self.folder.status is not None:
                return
            await asyncio.sleep(_STATUS_POLL_S)

    def end_reason(self) -> str:
        """Return how it ended, with the end of its output."""
        status = self._last[0] if self._last is not None else self.folder.status
        if status is None:
            how = "still runs" if self.is_running else "has ended"
        elif status < 0:
            how = f"was killed by {signal_name(-status)}"
        else:
            how = f"ended with exit status {status}"
        return f"the engine {how}; {self.shown_output()}"

    def shown_output(self) -> str:
        """Return the end of its output as a sentence for an error message."""
        return _shown(self.tail())

    def tail(self) -> str:
        """Return its last output, at most `TAIL_BYTES` bytes of standard output and error."""
        return self._last[1] if self._last is not None else self.folder.output(TAIL_BYTES)

    def processes(self) -> frozenset[int]:
        """Return its running processes. Reads all of /proc: about 5 ms, so call it in a thread."""
        return frozenset(self._scan.pids()) - {self._guard_pid}

    async def stop(self, grace_s: Seconds, kill_s: Seconds) -> None:
        """End it and all of its children. Ends within `grace_s` + `kill_s`. Safe to call again.

        Raises:
            EngineError: a process is left although it was killed. It hangs in the kernel, and its memory is not free.
        """
        if self.is_running:
            self._signal_guard(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._end.wait()
        self.kill()
        end_s = min(_GUARD_END_S, kill_s / 2)
        with suppress(TimeoutError):  # the guard ends children that nobody else finds
            async with asyncio.timeout(end_s):
                await self._guard_end.wait()
        left = await kill_and_wait(self._scan, kill_s - end_s)
        if self._child is not None:
            self._child.poll()
        if left:
            raise EngineError(
                f"processes {', '.join(map(str, sorted(left)))} of the engine were killed and have not ended after "
                f"{kill_s:g} s: they hang in the kernel, so their device memory is not free; the GPU needs a reset"
            )
        self._close()
        self.folder.remove()

    def kill(self) -> None:
        """Kill its group without waiting. Safe to call again."""
        self._signal_guard(signal.SIGUSR1)

    def _signal_guard(self, number: signal.Signals) -> None:
        if self._guard >= 0:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._guard, number)

    def _on_end(self) -> None:
        self._remove_reader(self._engine)
        self._end.set()

    def _on_guard_end(self) -> None:
        self._remove_reader(self._guard)
        if self._child is not None:
            self._child.poll()
        self._guard_end.set()

    def _close(self) -> None:
        if self._guard < 0:
            return
        self._last = self.folder.status, self.folder.output(TAIL_BYTES)
        self._remove_reader(self._guard)
        os.close(self._guard)
        if self._engine >= 0:
            self._remove_reader(self._engine)
            os.close(self._engine)
        self._guard = self._engine = -1
        self._end.set()
        self._guard_end.set()

    def _remove_reader(self, descriptor: int) -> None:
        with suppress(RuntimeError):  # the event loop has ended
            asyncio.get_running_loop().remove_reader(descriptor)


async def discard(folder: EngineFolder, within_s: Seconds) -> set[int]:
    """Kill all processes of an engine that is not adopted, and remove its record. Return processes that are left.

    Ends after `within_s`. If a process is left, its record is left too.
    """
    deadline = asyncio.get_running_loop().time() + within_s
    guard = folder.guard
    scan = ProcessScan(folder.pid or _NO_GROUP, f"{MARK}={folder.record.mark}".encode())
    if not _group_is_its(scan):
        scan = ProcessScan(_NO_GROUP, scan.mark)
    if guard is not None:
        with suppress(ProcessLookupError):
            os.kill(guard.pid, signal.SIGUSR1)
        until = min(deadline, asyncio.get_running_loop().time() + _GUARD_END_S)
        while guard.alive() and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110  # no event: not our child
            await asyncio.sleep(_POLL_S)
    left = await kill_and_wait(scan, max(_POLL_S, deadline - asyncio.get_running_loop().time()))
    if not left:
        folder.remove()
    return left


def _group_is_its(scan: ProcessScan) -> bool:
    """Return whether the group's first process is the engine: after its end, another group may have the number."""
    return scan.group != _NO_GROUP and scan.has_mark(scan.group)


def _has_ended(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _shown(output: str) -> str:
    text = output.strip()
    return f"the end of its output: {text[-SHOWN_CHARS:]}" if text else "it printed nothing"
