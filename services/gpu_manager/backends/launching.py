"""The process of an engine: started in a process group of its own, watched, and ended with all of its children.

Laws:
  - `stop` ends within its times, also if a process ignores SIGTERM;
  - after `stop` no process is left that is in the group or has the engine's mark in its environment. Device memory is
    free only then, because the driver frees it when the last process that uses it has ended;
  - if this process ends without `stop`, even by SIGKILL, the kernel kills the engine, and a watcher kills its group.

A child that leaves the group *and* drops its environment is not found. A child that only leaves the group (torchrun's
workers do) is found by `stop`, but not by the watcher; under `treadle up` the supervisor ends it.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from services.gpu_manager.backends.engine_processes import ProcessScan, kill_and_wait
from services.gpu_manager.backends.protocol import EngineError
from shared.runtime.units import Seconds

TAIL_BYTES: Final = 64 << 10
"""Last bytes of an engine's output that are kept."""
SHOWN_CHARS: Final = 2_000
"""Last characters of the output that an error message shows."""
MARK: Final = "TREADLE_ENGINE_PROCESS"
"""Variable in the environment of an engine and its children. Its value is unique to one start."""
PORTS: Final = range(20_000, 32_000)
"""Ports for engines. Linux takes ports from 32768 on for outgoing connections: one of those could be gone before the
engine binds it, which takes a minute with some engines."""

_PR_SET_PDEATHSIG: Final = 1
_WATCHER: Final = 'trap "" TERM INT HUP; read -r _; kill -KILL 0'
"""Program of the watcher, a member of the engine's group. Its input ends when the manager's process ends."""
_PLACE: Final = re.compile(r"\{(port|devices|degree|model)\}")


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """Command of one engine. `{port}`, `{devices}`, `{degree}` and `{model}` are filled in; other braces stay."""

    command: tuple[str, ...]
    model: str
    devices: tuple[int, ...]
    """GPU numbers of the chunk, in NVML's order. Their count is the degree."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the manager's own environment. The same places are filled in."""

    def argv(self, port: int) -> list[str]:
        """Return the command with its places filled in."""
        return [self._filled(part, port) for part in self.command]

    def environment(self, port: int) -> dict[str, str]:
        """Return the environment. The chunk decides `CUDA_VISIBLE_DEVICES`, whatever `env` says."""
        return {
            **os.environ,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # CUDA's default order is by speed, and NVML's by bus
            **{name: self._filled(value, port) for name, value in self.env.items()},
            "CUDA_VISIBLE_DEVICES": self._devices,
        }

    @property
    def _devices(self) -> str:
        return ",".join(map(str, self.devices))

    def _filled(self, text: str, port: int) -> str:
        places = {
            "port": str(port),
            "devices": self._devices,
            "degree": str(len(self.devices)),
            "model": self.model,
        }
        return _PLACE.sub(lambda found: places[found[1]], text)


class Ports:
    """TCP ports for the engines of one manager. Two engines that start at once never get the same one.

    An engine on another's port would pass for it: its health would be read as the other's.
    """

    def __init__(self, ports: range = PORTS) -> None:
        self._ports = ports
        self._taken: set[int] = set()

    def take(self) -> int:
        """Return a port at which nothing listens, and reserve it.

        Raises:
            EngineError: there is none.
        """
        first = random.randrange(len(self._ports))  # managers of one machine try different ones
        for port in itertools.chain(self._ports[first:], self._ports[:first]):
            if port not in self._taken and _can_bind(port):
                self._taken.add(port)
                return port
        raise EngineError(f"no port from {self._ports[0]} to {self._ports[-1]} is free for an engine")

    def release(self, port: int) -> None:
        """Return a port. Safe to call again."""
        self._taken.discard(port)


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))  # on every address: a listener on any of them is in the way
        except OSError:
            return False
        return True


class EngineProcess:
    """A started engine. Needs the event loop of the main thread, because the kernel's signal follows that thread."""

    def __init__(self, launch: EngineLaunch, port: int) -> None:
        """Start it.

        Raises:
            EngineError: the command cannot be executed.
        """
        mark = uuid.uuid4().hex
        self._tail = bytearray()
        self._end = asyncio.Event()
        self._read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        try:
            self._process = _started(launch.argv(port), launch.environment(port) | {MARK: mark}, write)
        except BaseException:
            os.close(self._read)
            raise
        finally:
            os.close(write)
        self._scan = ProcessScan(self._process.pid, f"{MARK}={mark}".encode())
        self._pidfd = os.pidfd_open(self._process.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._read, self._on_output)
        loop.add_reader(self._pidfd, self._on_end)
        try:
            self._watcher = _watcher_of(self._process.pid)
        except OSError as error:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._close()
            raise EngineError(f"no watcher could be started for the engine ({error})") from error

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its group."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its first process runs. It is the engine: a command must not go to the background."""
        return not self._end.is_set() and self._process.poll() is None

    async def ended(self) -> None:
        """Wait until its first process has ended."""
        await self._end.wait()

    def end_reason(self) -> str:
        """Return how it ended, with the end of its output."""
        status = self._process.poll()
        if status is None:
            how = "still runs"
        elif status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        else:
            how = f"ended with exit status {status}"
        return f"the engine {how}; {self.shown_output()}"

    def shown_output(self) -> str:
        """Return the end of its output as a sentence for an error message."""
        text = self.tail().strip()
        return f"the end of its output: {text[-SHOWN_CHARS:]}" if text else "it printed nothing"

    def tail(self) -> str:
        """Return its last output, at most `TAIL_BYTES` bytes of standard output and error."""
        self._on_output()
        return self._tail.decode(errors="replace")

    def processes(self) -> frozenset[int]:
        """Return its running processes. Reads all of /proc: about 5 ms, so call it in a thread."""
        return frozenset(self._scan.pids()) - {self._watcher.pid}

    async def stop(self, grace_s: Seconds, kill_s: Seconds) -> None:
        """End it and all of its children. Ends within `grace_s` + `kill_s`. Safe to call again.

        Raises:
            EngineError: a process is left although it was killed. It hangs in the kernel, and its memory is not free.
        """
        if self.is_running:
            self._signal_group(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._end.wait()
        self.kill()
        left = await kill_and_wait(self._scan, kill_s)
        self._process.poll()
        self._watcher.poll()
        if left:
            raise EngineError(
                f"processes {', '.join(map(str, sorted(left)))} of the engine were killed and have not ended after "
                f"{kill_s:g} s: they hang in the kernel, so their device memory is not free; the GPU needs a reset"
            )
        self._close()

    def kill(self) -> None:
        """Kill its group without waiting. Safe to call again."""
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        # The watcher is a member, so the group's id belongs to no other group until the watcher has been reaped.
        if self._watcher.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _on_end(self) -> None:
        if self._process.poll() is not None:
            self._remove_reader(self._pidfd)
            self._end.set()

    def _on_output(self) -> None:
        if self._read < 0:
            return
        try:
            data = os.read(self._read, TAIL_BYTES)
        except BlockingIOError:
            return
        self._tail += data
        del self._tail[:-TAIL_BYTES]
        if not data:
            self._remove_reader(self._read)
            os.close(self._read)
            self._read = -1

    def _close(self) -> None:
        if self._read >= 0:
            self._on_output()
        if self._read >= 0:
            self._remove_reader(self._read)
            os.close(self._read)
            self._read = -1
        if self._pidfd >= 0:
            self._remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        watcher = getattr(self, "_watcher", None)
        if watcher is not None and watcher.stdin is not None:
            watcher.stdin.close()
        self._end.set()

    def _remove_reader(self, descriptor: int) -> None:
        with suppress(RuntimeError):  # the event loop has ended
            asyncio.get_running_loop().remove_reader(descriptor)


def _started(argv: list[str], environment: Mapping[str, str], output: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # not a session: the watcher must be able to join it
            preexec_fn=_dies_with_us(),  # noqa: PLW1509 - two system calls; takes no lock that a thread could hold
        )
    except (OSError, ValueError) as error:  # ValueError: a null byte
        raise EngineError(f"the command {argv[0]!r} cannot be executed ({error}); correct `command`") from error


def _dies_with_us() -> Callable[[], None]:
    parent, prctl = (
        os.getpid(),
        ctypes.CDLL(None).prctl,
    )  # loaded before the fork, because the child must not take locks

    def bind_to_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it ended before the line above took effect
            os._exit(1)

    return bind_to_parent


def _watcher_of(group: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", _WATCHER],
        env={},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=group,
    )
