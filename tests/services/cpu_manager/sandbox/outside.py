"""Targets around a sandbox for attacks: as open as possible, and checked after each attack."""

import ctypes
import os
import secrets
import signal
import socket
import subprocess
from pathlib import Path
from typing import Self

_libc = ctypes.CDLL(None, use_errno=True)
_IPC_RMID, _IPC_STAT = 0, 2
_OPEN_TO_ALL = 0o1666


class OutsideResources:
    """Files, sockets, System V objects and a process of the manager's user, open to all users. `close` removes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "outside"
        self.folder.mkdir()
        self.file = self.folder / "file"
        self.file.write_text("untouched")
        self.abstract = f"treadle-attack-{secrets.token_hex(4)}"
        self._sockets = [self._bound(socket.SOCK_STREAM, "stream"), self._bound(socket.SOCK_DGRAM, "datagrams")]
        self._sockets.append(self._bound(socket.SOCK_STREAM, f"\0{self.abstract}"))
        self.memory = _libc.shmget(0, 4096, _OPEN_TO_ALL)
        self.semaphores = _libc.semget(0, 1, _OPEN_TO_ALL)
        self.messages = _libc.msgget(0, _OPEN_TO_ALL)
        self.process = subprocess.Popen(["sleep", "600"])
        self.folder.chmod(0o777)
        self.file.chmod(0o666)
        os.utime(self.file, (1_000, 1_000))
        os.utime(self.folder, (1_000, 1_000))
        self._before = self._seen()

    def _bound(self, kind: int, name: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, kind)
        made.setblocking(False)
        made.bind(name if name.startswith("\0") else str(self.folder / name))
        if kind == socket.SOCK_STREAM:
            made.listen()
        if not name.startswith("\0"):
            (self.folder / name).chmod(0o777)
        return made

    def _seen(self) -> dict[str, object]:
        seen: dict[str, object] = {"content": self.file.read_text(), "names": sorted(os.listdir(self.folder))}  # noqa: PTH208
        for path in (self.folder, self.file):
            found = path.stat()
            seen[path.name] = (found.st_mode, found.st_uid, found.st_mtime_ns, os.listxattr(path), found.st_nlink)
        pid = self.process.pid
        seen["process"] = (self.process.poll(), os.getpriority(os.PRIO_PROCESS, pid), os.sched_getaffinity(pid))
        room = ctypes.create_string_buffer(512)
        seen["memory"] = _libc.shmctl(self.memory, _IPC_STAT, room)
        seen["messages"] = (_libc.msgctl(self.messages, _IPC_STAT, room), room.raw[:200])
        seen["semaphores"] = _libc.semctl(self.semaphores, 0, _IPC_STAT, room)
        seen["received"] = [self._arrived(one) for one in self._sockets]
        return seen

    def _arrived(self, one: socket.socket) -> bool:
        """Return True if a process has connected or sent something."""
        try:
            if one.type == socket.SOCK_DGRAM:
                return bool(one.recv(1))
            one.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def damage(self) -> list[str]:
        """Return what has changed since the last call."""
        before, self._before = self._before, self._seen()
        return [name for name, value in self._before.items() if value != before[name]]

    def close(self) -> None:
        for one in self._sockets:
            one.close()
        _libc.shmctl(self.memory, _IPC_RMID, None)
        _libc.semctl(self.semaphores, 0, _IPC_RMID, None)
        _libc.msgctl(self.messages, _IPC_RMID, None)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
