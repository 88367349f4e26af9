"""Init's work while a program runs on the Landlock rung.

Init makes the calls that the filter passes to it (seccomp_unotify(2)): changes of metadata (`metadata`). If the kernel
does not count the program's tasks for it alone, init counts them (`tasks`) and ends a program that has too many. The
time of the calls is charged to the program, that of counting is not.

A signal interrupts a passed call until init has received it, and then the kernel restarts the call only if the signal's
handler has SA_RESTART. Programs expect an interruption of no fork and no change of metadata; handlers without
SA_RESTART are frequent in shells, for the end of a child. So forks are not passed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

from services.cpu_manager.sandbox.inside import wire
from services.cpu_manager.sandbox.inside.metadata import Metadata
from services.cpu_manager.sandbox.inside.tasks import tasks_below
from shared.walls import refused, syscalls

_NOTIF_RECV: Final = 0xC050_2100
_NOTIF_SEND: Final = 0xC018_2101
_ID_VALID: Final = 0x4008_2102
_NOTICE: Final = struct.Struct("=QIIiIQ6Q")
"""id, thread, flags; number, architecture, instruction pointer and arguments of the call."""
_REPLY: Final = struct.Struct("=QqiI")
_LIMIT: Final = struct.Struct("=Q")
_SIGNALS: Final = 4096
_COUNT_S: Final = 0.01
"""Seconds between two counts of the tasks."""
_REST: Final = 50
"""Init rests fifty times as long as a count took, so counts take at most 2 % of a core."""


class SeccompSupervisor:
    """Init's side: waits for its children and for the calls of successive programs."""

    def __init__(self, home: str) -> None:
        self._metadata = Metadata(home)
        self._most_tasks = 0
        self.excess_tasks = 0
        """Number of tasks for which `wait` ended the program; 0 if it did not."""
        self.counting_s = 0.0
        """CPU time that `wait` has spent on counting."""
        column = 0 if os.uname().machine == "x86_64" else 1
        self._names = {numbers[column]: name for name, numbers in refused.SUPERVISED.items()}
        self._wakeup_reader, self._wakeup_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._listener = -1
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def start(self) -> None:
        """Begin with the program that was forked last."""
        signal.signal(signal.SIGCHLD, _no_op)
        signal.set_wakeup_fd(self._wakeup_writer, warn_on_full_buffer=False)

    def send_listener(self, listener: int, pids: int) -> None:
        """Pass the filter's descriptor and the program's task limit to init. Runs in the program's process.

        `pids` is 0 if the kernel holds the program to its limit.
        """
        wire.send(self._theirs, _LIMIT.pack(pids), (listener,))
        os.close(listener)

    def reset_signals(self) -> None:
        """Remove init's signal handling from a child. Runs in the program's process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def wait(self, reap: Callable[[], bool], kill: Callable[[], None]) -> None:
        """Answer calls until `reap` returns True. It is called whenever a child may have ended.

        Calls `kill` if the program has more tasks than its limit.
        """
        self._most_tasks = self.excess_tasks = 0
        self.counting_s = 0.0
        next_count = time.monotonic()
        poller = select.poll()
        for descriptor in (self._wakeup_reader, self._ours.fileno()):
            poller.register(descriptor, select.POLLIN)
        try:
            while not reap():
                due_s = max(next_count - time.monotonic(), 0) if self._most_tasks else None
                for descriptor, events in poller.poll(None if due_s is None else math.ceil(due_s * 1000)):
                    if descriptor == self._wakeup_reader:
                        with contextlib.suppress(BlockingIOError):
                            os.read(self._wakeup_reader, _SIGNALS)
                    elif descriptor == self._ours.fileno():
                        self._receive_listener()
                        poller.register(self._listener, select.POLLIN)
                    elif events & select.POLLIN:
                        self._serve()
                    else:  # no process is left behind the filter
                        poller.unregister(descriptor)
                if self._most_tasks and time.monotonic() >= next_count:
                    took_s = self._check_tasks(reap, kill)
                    next_count = time.monotonic() + max(_COUNT_S, _REST * took_s)
        finally:
            if self._listener < 0 and _is_readable(self._ours):  # of a program that ended before its packet was read
                self._receive_listener()
            if self._listener >= 0:
                os.close(self._listener)
                self._listener = -1

    def _receive_listener(self) -> None:
        packet, (self._listener,) = wire.receive(self._ours, 1)
        (self._most_tasks,) = _LIMIT.unpack(packet)

    def _check_tasks(self, reap: Callable[[], bool], kill: Callable[[], None]) -> float:
        """End the program if it has too many tasks. Returns the CPU time that this took."""
        began, most = time.process_time(), self._most_tasks
        # Dead orphans are tasks until they are reaped, so an excess is counted again after that.
        if tasks_below(os.getpid(), most + 1) > most and not reap():
            tasks = tasks_below(os.getpid(), most + 1)
            if tasks > most:
                self.excess_tasks = tasks
                kill()
        took_s = time.process_time() - began
        self.counting_s += took_s
        return took_s

    def _serve(self) -> None:
        """Answer one call. A caller that was killed in the meantime needs no answer."""
        notice = ctypes.create_string_buffer(_NOTICE.size)
        with contextlib.suppress(OSError):
            syscalls.ioctl(self._listener, _NOTIF_RECV, notice)
            call, thread, _, number, _, _, *arguments = _NOTICE.unpack(notice.raw)
            error = 0
            try:
                self._make(call, thread, number, arguments)
            except OSError as refusal:
                error = refusal.errno or errno.EPERM
            reply = ctypes.create_string_buffer(_REPLY.pack(call, 0, -error, 0))
            self._retry_ioctl(_NOTIF_SEND, reply)

    def _retry_ioctl(self, request: int, argument: ctypes.Array[ctypes.c_char]) -> None:
        """Make an ioctl that a signal may interrupt: the end of a child must not lose the answer to a call."""
        while True:
            with contextlib.suppress(InterruptedError):
                syscalls.ioctl(self._listener, request, argument)
                return

    def _make(self, call: int, thread: int, number: int, arguments: list[int]) -> None:
        def check_alive() -> None:
            self._retry_ioctl(_ID_VALID, ctypes.create_string_buffer(struct.pack("=Q", call)))

        self._metadata.make(thread, self._names[number], arguments, check_alive)


def _is_readable(stream: socket.socket) -> bool:
    poller = select.poll()
    poller.register(stream, select.POLLIN)
    return bool(poller.poll(0))


def _no_op(*_: object) -> None:
    """Do nothing. SIGCHLD wakes init only if it has a handler."""
