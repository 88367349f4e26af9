"""Guard of one engine: its parent process, which outlives a crash of the manager, and ends the engine without one.

Run as a program, with its task as JSON on standard input. It imports the standard library only: 7 MB of its own.

Laws (tests/services/gpu_manager/backends/test_engine_guard.py):
  - its own record is on disk before the engine starts. If the manager has ended by then, no engine is started;
  - the engine ends with the guard, whatever ends that: by the kernel's signal to the child of a dead parent;
  - the guard ends with the engine, and ends all processes that the engine left;
  - if the lease file is not touched for `lease_s` on the guard's own clock, the engine ends, and its record too;
  - the output never blocks the engine, and takes at most twice `TAIL_BYTES` on disk.

Signals: SIGTERM asks the engine to end, and kills it after `grace_s`; SIGUSR1 kills it at once.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

TAIL_BYTES = 64 << 10
"""Last bytes of an engine's output that are kept."""
_TICK_S = 0.5
_REAP_S = 1.0
"""Longest wait for processes that the engine left, after they were killed."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None).prctl


class OutputTail:
    """Last part of the engine's output, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0

    def add(self, data: bytes) -> None:
        """Append. A disk that is full loses output, and not the engine."""
        with suppress(OSError):
            if self._size + len(data) > 2 * TAIL_BYTES:
                data = (self._path.read_bytes() + data)[-TAIL_BYTES:]
                new = self._path.with_suffix(".new")
                new.write_bytes(data)
                new.replace(self._path)
                self._size = len(data)
                return
            with self._path.open("ab") as file:
                file.write(data)
            self._size += len(data)


class EngineLease:
    """Time until which the engine may run: it is renewed when the file changes."""

    def __init__(self, path: Path, lease_s: float) -> None:
        self._path = path
        self._lease_s = lease_s
        self._seen = self._read()
        self._until = time.monotonic() + lease_s

    def expired(self) -> bool:
        """Return whether nobody has touched the file for `lease_s`. The guard's clock decides, not the file's time."""
        found = self._read()
        if found != self._seen:
            self._seen, self._until = found, time.monotonic() + self._lease_s
        return time.monotonic() >= self._until

    def _read(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0


class EngineGuard:
    """One engine from its start to its end."""

    def __init__(self, task: dict[str, Any], handshake: int) -> None:
        self._task = task
        self._folder = Path(task["folder"])
        self._handshake = handshake
        self._output = OutputTail(self._folder / "output")
        self._read, self._write = os.pipe()
        self._wake, wake_write = os.pipe()
        for end in (self._read, self._wake, wake_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._kill_at = float("inf")
        self._engine: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Guard the engine until its end. Return the exit status of the guard."""
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, self._on_signal)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            self._record()
        except OSError as error:
            return self._fail(f"its record cannot be written ({error})")
        if os.getppid() != self._task["manager"]:  # the record may be too late for the next manager
            shutil.rmtree(self._folder, ignore_errors=True)
            return 1
        try:
            self._engine = self._started()
        except (OSError, ValueError) as error:  # ValueError: a null byte
            return self._fail(f"the command {self._task['argv'][0]!r} cannot be executed ({error}); correct `command`")
        os.close(self._write)
        self._store("pid", self._engine.pid)
        self._answer({"pid": self._engine.pid})
        lease = EngineLease(Path(self._task["lease"]), self._task["lease_s"])
        is_left = False
        while self._engine.poll() is None:
            if not is_left and lease.expired():
                is_left = True
                self._output.add(b"\nno manager has renewed the lease of this engine, so it was stopped\n")
                self._end(self._task["grace_s"])
            if time.monotonic() >= self._kill_at:
                self._signal_engine(signal.SIGKILL)
                self._kill_at = time.monotonic() + _TICK_S  # again later: one that hangs in a driver does not end
            self._wait()
        self._read_output()
        self._store("status", self._engine.returncode)
        self._end_children()
        self._read_output()
        if is_left:
            shutil.rmtree(self._folder, ignore_errors=True)
        return 0

    def _record(self) -> None:
        started = int(Path(f"/proc/{os.getpid()}/stat").read_bytes().rpartition(b")")[2].split()[19])
        record = {"pid": os.getpid(), "started": started, "boot": self._task["boot"]}
        new = self._folder / "guard.new"
        new.write_text(json.dumps(record))
        new.replace(self._folder / "guard.json")

    def _started(self) -> subprocess.Popen[bytes]:
        guard = os.getpid()

        def bind_to_guard() -> None:
            _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != guard:
                os._exit(1)
            for number in (signal.SIGINT, signal.SIGHUP):  # what is ignored stays so in a new program
                signal.signal(number, signal.SIG_DFL)

        return subprocess.Popen(
            self._task["argv"],
            env=self._task["env"],
            cwd=self._task["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=self._write,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=bind_to_guard,  # noqa: PLW1509  # the guard has one thread
        )

    def _answer(self, document: dict[str, Any]) -> None:
        with suppress(OSError):  # the manager has ended: its successor reads the record
            os.write(self._handshake, json.dumps(document).encode())
        os.close(self._handshake)

    def _fail(self, error: str) -> int:
        self._answer({"error": error})
        shutil.rmtree(self._folder, ignore_errors=True)
        return 1

    def _on_signal(self, number: int, _: object) -> None:
        if number == signal.SIGTERM:
            self._end(self._task["grace_s"])
        elif number == signal.SIGUSR1:
            self._signal_engine(signal.SIGKILL)

    def _end(self, grace_s: float) -> None:
        self._signal_engine(signal.SIGTERM)
        self._kill_at = min(self._kill_at, time.monotonic() + grace_s)

    def _signal_engine(self, number: signal.Signals) -> None:
        """Send a signal to the engine's group. Until the guard reaps the engine, no other group has its number."""
        if self._engine is not None and self._engine.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._engine.pid, number)

    def _wait(self) -> None:
        """Wait for output, a signal, or the next look at the lease."""
        ends = [self._wake] if self._read < 0 else [self._wake, self._read]
        wait_s = max(0.0, min(_TICK_S, self._kill_at - time.monotonic()))
        ready, _, _ = select.select(ends, [], [], wait_s)
        if self._wake in ready:
            with suppress(BlockingIOError):
                os.read(self._wake, 4096)
        if self._read in ready:
            self._read_output()

    def _read_output(self) -> None:
        for _ in range(16):  # a flood of output does not keep the guard from the lease
            if self._read < 0:
                return
            try:
                data = os.read(self._read, TAIL_BYTES)
            except BlockingIOError:
                return
            if not data:
                os.close(self._read)
                self._read = -1
                return
            self._output.add(data)

    def _store(self, name: str, number: int) -> None:
        with suppress(OSError):
            new = self._folder / f"{name}.new"
            new.write_text(str(number))
            new.replace(self._folder / name)

    def _end_children(self) -> None:
        """Kill what the engine left, and wait for its end. They are children of the guard, which is their subreaper."""
        deadline = time.monotonic() + _REAP_S
        while children := _children():
            for pid in children:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if time.monotonic() >= deadline:
                return
            time.sleep(0.005)


def _children() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def main() -> int:
    """Guard the engine of the task on standard input."""
    task = json.loads(sys.stdin.buffer.read())
    return EngineGuard(task, int(sys.argv[1])).run()


if __name__ == "__main__":
    sys.exit(main())
