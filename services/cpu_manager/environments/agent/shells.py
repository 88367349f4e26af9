"""Persistent bash sessions: a line's variables, functions, directory and background jobs remain for the next line.

Each session is an interactive bash without a terminal. It reads two commands of ours for every line: one sources the
line from an unnamed file, one reports its exit code over a socket. So a line with an open quote cannot swallow what
follows, its output is complete when its exit code has come, and an interrupt ends only the whole line. Without bash,
`sh` is used in the same way.

Bash keeps a copy of the socket while a line runs, so programs can write to it. A report counts if the kernel names the
shell itself as its writer and it repeats the line's random word. Everything else on the socket is ignored.
"""

import contextlib
import fcntl
import os
import re
import signal
import socket
import struct
from collections.abc import Callable

from .acting import Action, ActionContext, ActionReply, failed
from .capture import OutputBuffer, Pipe
from .commands import take, unnamed
from .processes import end_session, exit_code, known

_BETWEEN_BYTES = 64 << 10
"""Bytes kept of the output of background jobs between two lines."""
_GRACE_S = 0.5
"""Seconds that an interrupted line has to end; the same again for its killed processes."""
_HIGH = 230
"""First number of our descriptors in bash, above those that lines open."""
_LOW = (6, 7)
"""Their numbers in `sh`, which allows one digit. `reserve` keeps them free."""

_BASH = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
_SH = ["sh", "-i"]
_BEGIN_BASH = "unset HISTFILE; set +o history +H; export -n PS1 PS2\n"
_BEGIN = 'exec 2>&1; __treadle_code() { return "$1"; }; __treadle_last=0\n'
_LINE = """__treadle_code "$__treadle_last"; %(source)s /dev/fd/%(text)d %(codes)d>&- 0</dev/null
__treadle_last=$?; command echo "%(word)s $__treadle_last" >&%(codes)d
"""
_REPORT = re.compile(rb"([0-9a-f]{32}) ([0-9]{1,3})\n")
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a writer, as reported by the kernel (`struct ucred`)."""


def out_of_the_way(descriptor: int) -> int:
    """Return the same file under a number that no shell uses."""
    if descriptor > max(_LOW):
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(_LOW) + 1)
    os.close(descriptor)
    return moved


def reserve() -> None:
    """Occupy every low descriptor. Call it before anything else is opened."""
    while os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) <= max(_LOW):
        pass


class Shell:
    """One bash and its pipes. `on_exit_code` is called with each line's exit code, `on_end` with its own status."""

    def __init__(self, context: ActionContext) -> None:
        self._events = context.events
        self.on_exit_code: Callable[[int], None] | None = None
        self.on_end: Callable[[int], None] | None = None
        self.over = False
        self._text = unnamed()
        # Sockets, not pipes: a child could open its shell's pipe through /proc and write a report, or commands of ours.
        ours, theirs = socket.socketpair()
        self._orders, orders = ours.detach(), theirs.detach()
        self._codes, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._codes.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        codes = theirs.detach()
        self._word = b""
        reader, output = os.pipe()
        self.output = Pipe(reader, OutputBuffer(_BETWEEN_BYTES))
        try:
            self.pid = self._start(context, orders, output, codes)
        except (OSError, ValueError):
            for descriptor in (self._text, self._orders, reader):
                os.close(descriptor)
            self._codes.close()
            raise
        finally:
            for descriptor in (orders, codes, output):
                os.close(descriptor)
        self._events.pipe(self.output)
        self._events.watch(self._codes.fileno(), self._code)
        self._events.child(self.pid, self._ended)

    def _start(self, context: ActionContext, orders: int, output: int, codes: int) -> int:
        env = dict(context.env, PS1="", PS2="")
        env.setdefault("TERM", "dumb")
        silent = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)  # bash warns that it has no terminal
        streams = (orders, output, silent)
        high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _HIGH) for one in (self._text, codes)]
        try:
            self._begin(_BEGIN_BASH + _BEGIN, ".", high[0], high[1])
            return context.spawner.spawn(_BASH, context.cwd, env, streams, tuple(high))
        except FileNotFoundError:
            os.read(orders, 4096)
            for one, low in zip((self._text, codes), _LOW):  # noqa: B905  # Python 3.6
                os.dup2(one, low)
            self._begin(_BEGIN, "command .", *_LOW)  # so that a broken line ends only the line, not `sh`
            return context.spawner.spawn(_SH, context.cwd, env, streams, _LOW)
        finally:
            for descriptor in [silent, *high]:
                os.close(descriptor)

    def _begin(self, begin: str, source: str, text: int, codes: int) -> None:
        os.write(self._orders, begin.encode())
        self._source, self._numbers = source, (text, codes)

    def run(self, line: str, limit: int) -> None:
        """Run a line. The output of background jobs since the last line comes first."""
        os.ftruncate(self._text, 0)
        view = memoryview(line.encode("utf-8", "surrogateescape"))
        at = 0
        while at < len(view):
            at += os.pwrite(self._text, view[at:], at)
        self._collect(limit)
        text, codes = self._numbers
        word = os.urandom(16).hex()
        self._word = word.encode()
        os.write(self._orders, (_LINE % {"source": self._source, "text": text, "codes": codes, "word": word}).encode())

    def _collect(self, limit: int) -> None:
        fresh = OutputBuffer(limit)
        if self.output.capture is not None:
            fresh.absorb(self.output.capture)
        self.output.capture = fresh

    def _code(self) -> None:
        report, ancillary, _, _ = self._codes.recvmsg(64, socket.CMSG_SPACE(_CREDENTIALS.size))
        if not report and not ancillary:
            self._events.unwatch(self._codes.fileno())
            return
        code = _REPORT.fullmatch(report)
        if code is None or code.group(1) != self._word or self._writer(ancillary) != self.pid:
            return
        self._word = b""
        if self.on_exit_code is not None:
            self.on_exit_code(int(code.group(2)))

    def _writer(self, ancillary: "list[tuple[int, int, bytes]]") -> int:
        """Return the process that sent a packet; 0 if the kernel does not report it."""
        for level, kind, data in ancillary:
            if (level, kind, len(data)) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, _CREDENTIALS.size):
                return int(_CREDENTIALS.unpack(data)[0])
        return 0

    def _ended(self, status: int) -> None:
        self.over = True
        if self.on_end is not None:
            self.on_end(status)

    def gone(self) -> None:
        """Close its pipes. Its output is still read, for its remaining background processes."""
        with contextlib.suppress(KeyError):  # the end of the socket was noticed before
            self._events.unwatch(self._codes.fileno())
        for descriptor in (self._text, self._orders):
            os.close(descriptor)
        self._codes.close()


class LineAction(Action):
    """One line in a session."""

    def __init__(self, sessions: "Sessions", request: "dict[str, object]") -> None:
        super().__init__(sessions.context, float(str(request["timeout_s"])))
        self._sessions = sessions
        self._name = str(request["session"])
        self._restarted = False
        line = str(request["line"])
        if "\0" in line:
            self.finish(failed("a line holds no NUL bytes"))
            return
        try:
            self._shell, self._restarted = sessions.get(self._name)
        except (OSError, ValueError) as error:
            self.finish(failed(f"no shell: {getattr(error, 'strerror', None) or error}"))
            return
        self._before = known(self._shell.pid)
        self._shell.on_exit_code, self._shell.on_end = self._on_exit_code, self._exited
        self._shell.run(line, int(str(request["output_bytes"])))

    def _on_exit_code(self, code: int) -> None:
        self._finish(code, ended=False)
        self._shell.output.capture = OutputBuffer(_BETWEEN_BYTES)

    def _exited(self, status: int) -> None:
        self._sessions.forget(self._name)
        self._finish(exit_code(status), ended=True)

    def _finish(self, code: int, *, ended: bool) -> None:
        stopped = self.ended_by != "done"
        if stopped:  # the foreground has ended; of many processes some may have missed the interrupt
            end_session(self._shell.pid, self._before)
        reply = ActionReply(code == 0, {"exit_code": None if stopped else code})
        reply.reason = "" if reply.passed else f"exit code {code}"
        self._shell.output.drain()
        take(reply, "output", self._shell.output)
        reply.output["session_ended"] = ended and not stopped
        reply.output["session_restarted"] = self._restarted or (ended and stopped)
        self._shell.on_exit_code = self._shell.on_end = None
        self.finish(reply)

    def end(self) -> None:
        """Interrupt; then kill the line's processes; then the shell itself."""
        with contextlib.suppress(OSError):
            os.killpg(self._shell.pid, signal.SIGINT)
        self.context.events.after(_GRACE_S, self._kill_its_processes)

    def _kill_its_processes(self) -> None:
        if self.reply is None:
            end_session(self._shell.pid, self._before)
            self.context.events.after(_GRACE_S, self._kill_its_shell)

    def _kill_its_shell(self) -> None:
        if self.reply is None:
            os.kill(self._shell.pid, signal.SIGKILL)
            end_session(self._shell.pid, self._before)


class Sessions:
    """The shells of one environment by name. Each starts with its first line."""

    def __init__(self, context: ActionContext) -> None:
        self.context = context
        self._shells: dict[str, Shell] = {}

    def get(self, name: str) -> "tuple[Shell, bool]":
        """Return the session's shell, and True if it was restarted because it had died between two lines."""
        self.context.events.reap()
        shell = self._shells.get(name)
        died = shell is not None and shell.over
        if died:
            self.forget(name)
        if shell is None or died:
            shell = self._shells[name] = Shell(self.context)
        return shell, died

    def forget(self, name: str) -> None:
        self._shells.pop(name).gone()

    def close(self, name: str) -> ActionReply:
        """End a session's shell and its processes."""
        shell = self._shells.get(name)
        if shell is None:
            return failed("no such session: " + name)
        end_session(shell.pid)
        self.forget(name)
        return ActionReply(True, {})
