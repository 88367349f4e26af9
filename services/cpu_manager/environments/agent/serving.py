"""Serves one manager: frames in, one action at a time, replies out.

Started with the argument `fd:N` it serves the connected socket N and ends with it. Started with a path it
listens there. A new connection replaces the one before, after the running action has been cancelled.
"""

# Plain calls and no path objects: an agent starts in every environment.
# ruff: noqa: PTH100, PTH103, PTH108, PTH109, PTH118, PTH123

import contextlib
import ctypes
import os
import socket
import struct
import sys
import time

from . import archives, files, wire
from .acting import Action, ActionContext, ActionReply, failed
from .commands import CommandAction, keep_files_in
from .events import Events
from .processes import go_on, stop_all
from .shells import LineAction, Sessions, out_of_the_way, reserve

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_CHUNK = 256 << 10
_SEND_S = 30.0
"""A manager that reads no bytes for this long is gone."""


class ManagerConnection:
    """The connection to the current manager."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.frames = wire.Frames()
        connection.settimeout(_SEND_S)

    def send(self, number: object, reply: ActionReply, wall_s: float) -> None:
        header = {
            "id": number,
            "ended_by": reply.ended_by,
            "passed": reply.passed,
            "reason": reply.reason,
            "wall_s": wall_s,
            "output": reply.output,
            "parts": [(name, len(content)) for name, content in reply.parts],
        }
        self.connection.sendall(wire.pack(header, b"".join(content for _, content in reply.parts)))


class EnvironmentAgent:
    """Server of one environment: accepts a manager and runs its actions."""

    def __init__(self) -> None:
        self.events = Events()
        self._context = ActionContext(self.events, os.getcwd(), dict(os.environ))
        self._image_env = dict(os.environ)
        self._sessions = Sessions(self._context)
        self._manager: ManagerConnection | None = None
        self._listener: socket.socket | None = None
        self._action: Action | None = None
        self._number: object = None
        self._requester: ManagerConnection | None = None
        self._over = False

    def listen(self, path: str) -> None:
        """Accept managers at a socket of this name."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(4)
        self.events.watch(self._listener.fileno(), self._accept)
        self._run()

    def serve(self, connection: socket.socket) -> None:
        """Serve only this connection."""
        self._serve(connection)
        self._run()

    def _accept(self) -> None:
        assert self._listener is not None
        connection, _ = self._listener.accept()
        peer = struct.unpack("iii", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        if os.getpid() == 1 and not from_outside(peer):
            connection.close()
            return
        if self._action is not None:
            self._action.cancel()
        self._disconnect()
        self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        """Use this connection as the manager's."""
        self._manager = ManagerConnection(connection)
        self.events.watch(connection.fileno(), self._readable)

    def _disconnect(self) -> None:
        if self._manager is not None:
            self.events.unwatch(self._manager.connection.fileno())
            self._manager.connection.close()
            self._manager = None
            self._over = self._listener is None

    def _run(self) -> None:
        """Run until the manager closes its connection, if there can be only one."""
        while not self._over:
            self.events.turn()
            self._answer()

    def _readable(self) -> None:
        assert self._manager is not None
        try:
            data = self._manager.connection.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            if self._action is not None:
                self._action.cancel()
            self._disconnect()
            return
        self._manager.frames.feed(data)
        while self._manager is not None:
            try:
                frame = self._manager.frames.take()
            except ValueError:
                self._disconnect()
                return
            if frame is None:
                return
            self._take(*frame)

    def _take(self, request: "dict[str, object]", body: bytes) -> None:
        if request["op"] == "cancel":
            if self._action is not None and request["id"] == self._number:
                self._action.cancel()
            return
        if request["op"] in ("hold", "proceed", "stop", "go"):
            self._send(request["id"], self._control(str(request["op"])), 0.0)
            return
        if self._action is not None:
            self._send(request["id"], failed("busy"), 0.0)
            return
        self._number, self._requester = request["id"], self._manager
        began = time.monotonic()
        started = self._start(request, body)
        if isinstance(started, Action):
            self._action = started
            self._answer()
        else:
            self._send(self._number, started, time.monotonic() - began)

    def _answer(self) -> None:
        """Send the reply of the action if it has ended."""
        if self._action is not None and self._action.reply is not None:
            action, self._action = self._action, None
            assert action.reply is not None
            if self._requester is self._manager:  # else a new manager is connected, which did not ask
                self._send(self._number, action.reply, action.wall_s)

    def _send(self, number: object, reply: ActionReply, wall_s: float) -> None:
        if self._manager is not None:
            try:
                self._manager.send(number, reply, wall_s)
            except OSError:
                self._disconnect()

    def _start(self, request: "dict[str, object]", body: bytes) -> "Action | ActionReply":
        op = request["op"]
        if op == "exec":
            return CommandAction(self._context, request, body)
        if op == "bash":
            return LineAction(self._sessions, request)
        if op == "close_session":
            return self._sessions.close(str(request["session"]))
        if op == "settle":
            return self._settle(request)
        if "path" in request:
            return self._start_with_files(str(op), request, body)
        return ActionReply(True, {}) if op == "ping" else failed(f"no such op: {op}")

    def _control(self, op: str) -> ActionReply:
        """Control the processes or the running action's clock; also while an action runs."""
        if op in ("stop", "go"):
            return ActionReply(stop_all() if op == "stop" else go_on(), {})
        if self._action is None:
            return failed("no action runs")
        if op == "hold":
            return ActionReply(self._action.hold(), {})
        self._action.proceed()
        return ActionReply(True, {})

    def _start_with_files(self, op: str, request: "dict[str, object]", body: bytes) -> "Action | ActionReply":
        shown, most = str(request["path"]), int(str(request.get("most", 0)))
        path = os.path.join(self._context.cwd, shown)
        if "\0" in path:
            return failed("a path holds no NUL bytes")
        if op == "read":
            return files.read(path, shown, most)
        if op == "write":
            return files.write(path, shown, body, int(str(request["mode"])), keep_mode=bool(request.get("keep_mode")))
        if op == "list":
            return files.listing(path, shown, most)
        timeout_s = float(str(request["timeout_s"]))
        if op == "download":
            return archives.ArchiveAction(
                self._context, timeout_s, shown, lambda out: archives.pack(path, most, out), "archive"
            )
        if op == "upload":
            return archives.ArchiveAction(self._context, timeout_s, shown, lambda out: archives.unpack(path, body, out))
        return failed("no such op: " + op)

    def _settle(self, request: "dict[str, object]") -> ActionReply:
        """Set the working directory and the variables of all later actions."""
        cwd = str(request["cwd"])
        if cwd:
            try:
                os.makedirs(cwd, exist_ok=True)
            except OSError as error:
                return failed(f"{error.strerror}: {cwd}")
            except ValueError as error:
                return failed(f"{error}: {cwd!r}")
            self._context.cwd = os.path.abspath(cwd)
        self._context.env = dict(self._image_env)
        self._context.env.update(request["env"])  # type: ignore[call-overload]
        return ActionReply(True, {"pid": os.getpid(), "cwd": self._context.cwd})


def from_outside(pid: int) -> bool:
    """Return True for a manager's process: outside all visible namespaces, or started here by the container engine.

    A process that began inside has a parent inside, because pid 1 adopts orphans.
    """
    if pid == 0:
        return True
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1]) == 0
    except OSError:
        return False


def close_to_others() -> None:
    """Hide this process's memory from others of the same user, and adopt orphans."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def serve_descriptor(descriptor: int, folder: int = -1) -> None:
    """Serve a connected socket until its other end closes.

    Args:
        folder: an open directory for its own files; -1: in memory.
    """
    descriptor = out_of_the_way(descriptor)
    if folder >= 0:
        keep_files_in(out_of_the_way(folder))
    _begin().serve(socket.socket(fileno=descriptor))


def main() -> None:
    """Serve `fd:N` or a path, as given by the argument."""
    where = sys.argv[1]
    if where.startswith("fd:"):
        serve_descriptor(int(where[3:]))
    else:
        _begin().listen(where)


def _begin() -> EnvironmentAgent:
    reserve()
    agent = EnvironmentAgent()
    close_to_others()
    return agent
