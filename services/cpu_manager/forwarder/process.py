"""The forwarder as a process: it serves what the manager passes to it, and ends with the manager.

Started with one argument, the descriptor of its control socket, and without variables. It has no access to the store.
"""

from __future__ import annotations

import asyncio
import encodings.idna  # noqa: F401  # imported before the change of user, after which files may not be readable
import logging
import os
import resource
import signal
import socket
from typing import Final, NoReturn

import uvloop

from services.cpu_manager.forwarder.control import (
    CallsChanged,
    ControlOutbox,
    Ping,
    Pong,
    RouterAt,
    Serve,
    receive_down,
)
from services.cpu_manager.forwarder.served import ServedTrajectory
from shared.runtime import log
from shared.runtime.http_streams import StreamClient, open_streams
from shared.walls import syscalls

_NOBODY: Final = 65534
_CONNECT_S: Final = 5.0
_MOST_REPORTS: Final = 1 << 16
"""Reports that the manager has not received. A manager that is so far behind does not run any more."""


def main(descriptor: int) -> NoReturn:
    """Serve until the manager closes its end."""
    channel = socket.socket(fileno=descriptor)
    channel.setblocking(False)
    _give_up_rights()
    log.configure("model_forwarder")
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)  # an environment must not fill the log of its node
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(channel))
    os._exit(0)


def _give_up_rights() -> None:
    """Become nobody, if this is root. It reads what hostile programs send."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # set now: a change of user clears it


async def _run(channel: socket.socket) -> None:
    async with open_streams(connect_s=_CONNECT_S) as routers:
        served = _Served(channel, routers)
        loop = asyncio.get_running_loop()
        loop.add_reader(channel.fileno(), served.receive)
        await served.ended.wait()


class _Served:
    """All trajectories that are served, by what the manager requests."""

    def __init__(self, channel: socket.socket, routers: StreamClient) -> None:
        self.ended = asyncio.Event()
        self._channel = channel
        self._outbox = ControlOutbox(channel)
        self._routers = routers
        self._router_url = ""
        self._served: dict[str, ServedTrajectory] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def receive(self) -> None:
        """Receive all messages that have arrived."""
        while not self.ended.is_set():
            try:
                message, descriptors = receive_down(self._channel)
            except BlockingIOError:
                return
            except ConnectionResetError:
                message, descriptors = None, []
            if message is None:
                self.ended.set()
            elif isinstance(message, RouterAt):
                self._router_url = message.url
            elif isinstance(message, Ping):
                self._outbox.put(Pong())
            else:
                self._forget(message.trajectory)
                if isinstance(message, Serve):
                    self._serve(message, socket.socket(fileno=descriptors[0]))

    def _serve(self, message: Serve, listener: socket.socket) -> None:
        self._served[message.trajectory] = ServedTrajectory(
            message.trajectory, message.key, listener, self._routers, lambda: self._router_url, self._report
        )

    def _forget(self, trajectory: str) -> None:
        if (served := self._served.pop(trajectory, None)) is not None:
            task = asyncio.create_task(served.close(), name=f"close {trajectory}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _report(self, change: CallsChanged) -> None:
        if len(self._outbox) > _MOST_REPORTS:
            self.ended.set()
        self._outbox.put(change)
