"""The event loop of an agent: descriptors, timers and children, each with a callback."""

import contextlib
import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable

from .capture import Pipe


class Events:
    """Everything an agent waits for. When idle it waits without a timer."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._forgotten: set[int] = set()
        self._numbers = itertools.count()
        self._children: dict[int, Callable[[int], None]] = {}
        self._woken, waking = os.pipe()
        for descriptor in (self._woken, waking):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(waking)
        # Handlers instead of SIG_IGN, because started programs would inherit SIG_IGN.
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self.watch(self._woken, self.reap)

    def watch(self, descriptor: int, callback: "Callable[[], None]") -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def unwatch(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def pipe(self, pipe: Pipe) -> None:
        """Read a pipe until its last writer is gone; then close it."""

        def readable() -> None:
            if not pipe.read():
                self.unwatch(pipe.descriptor)
                os.close(pipe.descriptor)
                pipe.descriptor = -1

        self.watch(pipe.descriptor, readable)

    def after(self, seconds: float, callback: "Callable[[], None]") -> int:
        """Call `callback` after `seconds`, unless forgotten. Return the timer's number."""
        number = next(self._numbers)
        heapq.heappush(self._timers, (time.monotonic() + seconds, number, callback))
        return number

    def forget(self, timer: int) -> None:
        if any(number == timer for _, number, _ in self._timers):
            self._forgotten.add(timer)

    def child(self, pid: int, callback: "Callable[[int], None]") -> None:
        """Call `callback` at the end of a child, with its status as returned by wait(2)."""
        self._children[pid] = callback

    def reap(self) -> None:
        """Call the callback of every child that has ended."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            callback = self._children.pop(pid, None)
            if callback is not None:
                callback(status)

    def turn(self) -> None:
        """Wait for events, and call all their callbacks."""
        timeout = None
        while self._timers and self._timers[0][1] in self._forgotten:
            self._forgotten.discard(heapq.heappop(self._timers)[1])
        if self._timers:
            timeout = max(self._timers[0][0] - time.monotonic(), 0)
        for key, _ in self._selector.select(timeout):
            # An earlier callback of this turn may have closed it, and its number may be reused.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        while self._timers and self._timers[0][0] <= time.monotonic():
            _, number, callback = heapq.heappop(self._timers)
            if number in self._forgotten:
                self._forgotten.discard(number)
            else:
                callback()
