"""What the graders' harnesses share: a report that a program in the same interpreter cannot write.

A report of success starts with a nonce that came at the head of the payload. The program shares the interpreter, so
the question is where the nonce rests while the program runs. Python code reaches what has a name (frames, modules,
closures) and what lies in a container that the collector knows. It does not reach the value stack of a frame that is
running. So harnesses write ::

    settle(report, nonces.pop(), os.getpid, os.getpid(), run(program))

The arguments are evaluated from left to right: while `run` runs, the nonce is an unnamed value on this frame's stack.
It gets a name again in `settle`, when nothing of the program is to come. The same holds for the tests (`asserts`),
which appear only after the program's own body has run, and for every function used after it: they were fetched before,
so replacing `os.write`, `json.dumps` or a builtin changes nothing for them.

What Python offers to look deeper is refused by an audit hook, which no Python code can remove: tracing and profiling
(they could skip lines of the tests), the collector's inventories, other threads' frames, new code for the
harnesses' functions, more audit hooks. Reading or writing raw memory is beyond it; docs/graders.md says what remains.
"""

from __future__ import annotations

import builtins
import json
import linecache
import marshal
import os
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any, Final

globals()["__builtins__"] = dict(vars(builtins))
"""Private: functions look names up here, so a program that patches `builtins` does not reach them. Each harness that
does something after the program has one."""

NONCE_BYTES: Final = 32
TRACEBACK_CHARS: Final = 2000
TRACEBACK_FRAMES: Final = 6
MESSAGE_CHARS: Final = 500
REPORT_BYTES: Final = (1 << 20) - 4096
"""Most that a report may have: what is longer would be cut, and then mean nothing."""
PROGRAM: Final = "main.py"
"""File name of the program in its tracebacks."""

_HERE: Final = os.path.dirname(__file__)  # noqa: PTH120  # no pathlib in the zygote

Report = Callable[[bytes], None]


def unpack(payload: bytes) -> tuple[list[bytes], Any]:
    """The nonce, in a list so that it can be taken out, and the secret part of the payload."""
    return [payload[:NONCE_BYTES]], marshal.loads(payload[NONCE_BYTES:])


def settle(report: Report, nonce: bytes, getpid: Callable[[], int], pid: int, told: bytes) -> None:
    """Report success. A forked copy of the program comes here as well; only the first process may speak."""
    if getpid() == pid:
        report(nonce + told)


def close_doors(payload: bytes) -> None:
    """Before the program runs: drop the callers' hold on the payload, and watch what is asked of the interpreter."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        for value in frame.f_locals.values():
            if getattr(value, "payload", None) is payload:
                object.__setattr__(value, "payload", b"")
    sys.addaudithook(_refuse)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    """The audit hook. It uses constants and its own arguments alone: whatever it looked up could be replaced."""
    if event == "object.__setattr__":
        if args[1] == "__code__" and "/sandbox/harnesses/" in args[0].__code__.co_filename:
            raise RuntimeError("the code of a harness cannot be replaced")
    elif event in (
        "sys.addaudithook",
        "sys.settrace",
        "sys.setprofile",
        "sys.monitoring.register_callback",
        "sys._current_frames",
        "sys._current_exceptions",
        "gc.get_objects",
        "gc.get_referrers",
        "gc.get_referents",
    ):
        raise RuntimeError(f"{event} is not available in a graded program")


def fresh_main(source: str) -> dict[str, Any]:
    """The namespace of a new `__main__`, as the interpreter makes it for a script; tracebacks will find its lines."""
    linecache.cache[PROGRAM] = (len(source), None, source.splitlines(keepends=True), PROGRAM)
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=PROGRAM, __builtins__=builtins, __spec__=None, __cached__=None)
    sys.modules["__main__"] = module
    return module.__dict__


def forgive_depth() -> None:
    """Give the program the recursion depth it would have as a script: what lies under it does not count."""
    depth, frame = 0, sys._getframe(1)
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]  # typeshed: f_back of the last is None
    sys.setrecursionlimit(sys.getrecursionlimit() + depth)


def describe(error: BaseException) -> bytes:
    """An exception for the unsealed report. Foreign exception classes can only spoil their own."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace, limit=-TRACEBACK_FRAMES)
    told = {
        "exception": type(error).__name__,
        "assertion": isinstance(error, AssertionError),
        "ordinary": isinstance(error, Exception) and not isinstance(error, MemoryError),
        "message": lines[-1].strip().partition(": ")[2][:MESSAGE_CHARS],
        "traceback": "".join(lines)[-TRACEBACK_CHARS:],
    }
    return json.dumps(told).encode()


def leave(exit_code: int, exit_now: Callable[[int], None]) -> None:
    """End the process now: neither threads nor exit handlers of the program have a say after the report."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001  # a stream of the program's own making
            continue
    exit_now(exit_code)


def exit_function() -> Callable[[int], None]:
    """`os._exit` as it is before the program runs."""
    return os._exit
