"""Memory limit of an environment without a control group: above the limit only the largest process is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Final

from services.cpu_manager.sandbox.usage import TreeSampler, Usage, process_tree, resident_bytes, sample_in_thread
from shared.walls.syscalls import signal_pidfd

_LOOK_S: Final = 0.02


class MemoryWatch:
    """Measures every 20 ms between `start` and `stop`, and not otherwise: a stopped environment cannot grow."""

    def __init__(self, init: int, tree: TreeSampler, memory_bytes: int) -> None:
        self._init = init
        self._tree = tree
        self._memory_bytes = memory_bytes
        self._timer: asyncio.TimerHandle | None = None
        self._measuring: asyncio.Future[Usage] | None = None
        self.peak_bytes = 0
        """Since the last `start`."""
        self.kills = 0

    def start(self) -> None:
        self.stop()
        self.peak_bytes = 0
        self._measure()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._measuring = None

    def _measure(self) -> None:
        try:
            self._measuring = sample_in_thread(self._tree, self._init)
        except (OSError, RuntimeError):  # no descriptor or no thread is left
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._measure)
        else:
            self._measuring.add_done_callback(self._measured)

    def _measured(self, looked: asyncio.Future[Usage]) -> None:
        looked.exception()  # retrieved in any case
        if looked is not self._measuring:
            return  # it was stopped in the meantime
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._measure)
        with contextlib.suppress(OSError):
            held = looked.result().peak_bytes
            self.peak_bytes = max(self.peak_bytes, held)
            if held > self._memory_bytes:
                self._kill_largest()

    def _kill_largest(self) -> None:
        sizes = {pid: resident_bytes(pid) for pid in process_tree(self._init) if pid != self._init}
        if sum(sizes.values()) <= self._memory_bytes:
            return  # the process that held the memory has ended since
        victim = max(sizes, key=sizes.__getitem__)
        pidfd = os.pidfd_open(victim)
        try:
            # The number may have been reused before it was pinned.
            if victim in process_tree(self._init):
                signal_pidfd(pidfd, signal.SIGKILL)
                self.kills += 1
        finally:
            os.close(pidfd)
