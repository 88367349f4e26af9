"""Start of processes; search and end of a session's processes."""

# Plain calls and no path objects: an agent starts in every environment.
# ruff: noqa: PTH123, PTH208

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator

_SWEEPS = 200
"""Most rounds of killing or checking."""
_STOPPED = (b"T", b"t")
_DEAD = (b"Z", b"X")
_CALM = 2
"""Sweeps in a row that find all processes stopped. One that dies during the first may wake another at its end."""
_PAUSE_S = 0.005


class Spawner:
    """Starts programs in separate sessions, marked as first victims of the OOM killer."""

    def __init__(self) -> None:
        try:
            self._score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            self._score = -1

    def _offer(self, score: bytes) -> None:
        if self._score >= 0:
            try:
                os.pwrite(self._score, score, 0)
            except OSError:
                self._score = -1

    def spawn(
        self,
        argv: "list[str]",
        cwd: str,
        env: "dict[str, str]",
        streams: "tuple[int, int, int]",
        kept: "tuple[int, ...]" = (),
    ) -> int:
        """Start a program. Return its process id, which is also its session's. Raise OSError or ValueError."""
        stdin, stdout, stderr = streams
        self._offer(b"1000")
        try:
            process = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=cwd,
                env=env,
                pass_fds=kept,
                start_new_session=True,
            )
        finally:
            self._offer(b"0")
        process.returncode = 0  # the event loop reaps it, not this object
        return process.pid

    def fork(self) -> int:
        """Fork this process; the child is an early victim of the OOM killer. Returns as os.fork does."""
        self._offer(b"1000")
        pid = os.fork()
        if pid:
            self._offer(b"0")
        return pid


def _living() -> "Iterator[tuple[int, bytes, int, int]]":
    """Yield each process that is not dead: its id, state, session, and start in clock ticks."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/" + name + "/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        state = fields[0]
        if state == b"Z" and int(fields[17]) > 1:  # its first thread has ended, others have not
            state = _state_of_threads(name)
        if state not in _DEAD:
            yield int(name), state, int(fields[3]), int(fields[19])


def _state_of_threads(pid: str) -> bytes:
    """Return the state of a process whose first thread is dead: of a running thread, else a stopped one, else dead."""
    found = b"Z"
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/" + pid + "/task"):
            with contextlib.suppress(OSError), open("/proc/" + pid + "/task/" + thread + "/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
                if state not in _DEAD + _STOPPED:
                    return state
                if state not in _DEAD:
                    found = state
    return found


def known(session: int) -> "frozenset[tuple[int, int]]":
    """Return the living processes of a session, to distinguish them from later ones.

    Start times alone would not do: their resolution is 10 ms, and a line can be faster.
    """
    return frozenset((pid, start) for pid, _, of, start in _living() if of == session)


def members(session: int, but: "frozenset[tuple[int, int]]" = frozenset()) -> "list[int]":
    """Return the living processes of a session except those in `but`."""
    return [pid for pid, _, of, start in _living() if of == session and (pid, start) not in but]


def stop_all() -> bool:
    """Stop every other process with one call, which no fork can outrun. Only for pid 1. Return True if all stopped.

    Repeated in each sweep, because a process may have been cloned so that its end sends SIGCONT to its parent.
    """
    if os.getpid() != 1:
        return False
    calm = 0
    for sweep in range(_SWEEPS):
        _kill(-1, signal.SIGSTOP)
        calm = calm + 1 if all(state in _STOPPED for pid, state, _, _ in _living() if pid != 1) else 0
        if calm == _CALM:
            return True
        if not calm:
            _pause(sweep)
    return False


def go_on() -> bool:
    """Continue every process. Only for pid 1."""
    if os.getpid() == 1:
        _kill(-1, signal.SIGCONT)
    return os.getpid() == 1


def end_session(session: int, but: "frozenset[tuple[int, int]]" = frozenset()) -> None:
    """Kill every process of a session except those in `but`, and wait for their ends.

    A killed process that is frozen before it dies would keep its memory until the next action.
    """
    for sweep in range(_SWEEPS):
        left = members(session, but)
        if not left:
            return
        if os.getpid() == 1:
            _kill_standing_still(session, but)
        for pid in left:
            _kill(pid)
        _pause(sweep)


def _kill_standing_still(session: int, but: "frozenset[tuple[int, int]]") -> None:
    """Kill them while nothing can fork: one call stops everything for a moment, which no fork bomb can outrun."""
    stopped = {pid for pid, state, _, _ in _living() if state in _STOPPED}
    _kill(-1, signal.SIGSTOP)
    for pid in members(session, but):
        _kill(pid)
    for pid, _, _, _ in _living():
        if pid not in stopped and pid != 1:
            _kill(pid, signal.SIGCONT)


def _pause(sweep: int) -> None:
    """Wait between two sweeps: short at first, a second in total."""
    time.sleep(min(_PAUSE_S, 1e-4 * 2 ** min(sweep, 8)))


def _kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def exit_code(status: int) -> int:
    """Convert a status of wait(2) as a shell does: 128 plus the signal if a signal ended it."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
