"""One incarnation of a process: starts it, logs its lines, waits for its end."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable

from shared.runtime.identity import Identity, identify
from shared.runtime.signals import signal_name
from treadle.stack.logs import LineSplitter
from treadle.stack.process import Launch, start

READ_SIZE = 64 << 10


class Child:
    """A running process. The handler of SIGCHLD calls ``reap``; nothing else waits for the process."""

    def __init__(self, launch: Launch, log_line: Callable[[str], None], inherit: int | None = None) -> None:
        """Start it. ``log_line`` gets each line that it or its children print. Call from the main thread.

        Raises:
            OSError: the program cannot be executed.
        """
        self._launch = launch
        self._log_line = log_line
        self._splitter = LineSplitter()
        self._read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.set_blocking(write, True)
            self._process = _start(launch, write, inherit)
        except BaseException:
            os.close(self._read)
            raise
        finally:
            os.close(write)
        self.began = time.monotonic()
        self.ended = asyncio.Event()
        self.identity = identify(self._process.pid) or Identity(self._process.pid, 0)
        asyncio.get_running_loop().add_reader(self._read, self._on_output)

    @property
    def pid(self) -> int:
        return self._process.pid

    def reap(self) -> bool:
        """Check whether it has ended. Return whether it has since the last call."""
        if self.ended.is_set() or self._process.poll() is None:
            return False
        self.ended.set()
        return True

    def signal(self, number: signal.Signals) -> None:
        if not self.ended.is_set():
            self._process.send_signal(number)

    async def stop(self, urgent: asyncio.Event) -> None:
        """Stop it in good order; kill it after its grace, or at once when ``urgent`` is set."""
        self.signal(self._launch.stop_signal)
        waits = [asyncio.ensure_future(event.wait()) for event in (self.ended, urgent)]
        await asyncio.wait(waits, timeout=self._launch.grace_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if not self.ended.is_set():
            self._log_line(f"did not stop in {self._launch.grace_s:.0f} s and is killed")
            self.signal(signal.SIGKILL)
            await self.ended.wait()

    def release(self) -> None:
        """Log its last lines and close its output. Call it after the end."""
        self._on_output()
        for line in self._splitter.end():
            self._log_line(line)
        if self._read >= 0:
            self._close()

    def how_it_ended(self) -> str:
        status = self._process.returncode
        if status is None:
            return "still runs"
        if status < 0:
            return f"killed by {signal_name(-status)}"
        return f"exit status {status}"

    @property
    def succeeded(self) -> bool:
        return self._process.returncode == 0

    def _on_output(self) -> None:
        while self._read >= 0:
            try:
                data = os.read(self._read, READ_SIZE)
            except BlockingIOError:
                return
            for line in self._splitter.feed(data):
                self._log_line(line)
            if not data:
                self._close()
            elif len(data) < READ_SIZE:
                return

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._read)
        os.close(self._read)
        self._read = -1


def _start(launch: Launch, output: int, inherit: int | None) -> subprocess.Popen[bytes]:
    return start(launch, output=output, inherit=() if inherit is None else (inherit,))
