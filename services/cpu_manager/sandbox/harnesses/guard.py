"""Shared parts of the graders' harnesses: a report that a program in the same interpreter cannot forge.

A report of success starts with a nonce from the head of the payload. The program shares the interpreter, so the nonce
must be out of its reach while the program runs. Python code can reach what has a name (frames, modules, closures) and
what is in a container that the collector tracks. It cannot reach the value stack of a running frame. So harnesses
write ::

    report_success(report, nonces.pop(), os.getpid, os.getpid(), run(program))

The arguments are evaluated from left to right: while `run` runs, the nonce is an unnamed value on this frame's stack.
It gets a name again in `report_success`, after all code of the program has run. The same holds for the tests
(`asserts`), which are unpacked only after the program's own body has run, and for every function that is used after it.
These functions were looked up before, so replacing `os.write`, `json.dumps` or a builtin does not change them.

An audit hook, which Python code cannot remove, refuses Python's deeper means of inspection: tracing and profiling
(they could skip lines of the tests), the collector's inventories, other threads' frames, new code for the harnesses'
functions, more audit hooks. It cannot prevent reads and writes of raw memory; docs/graders.md lists what remains.
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
"""Private: functions look up names here, so a program that patches `builtins` does not affect them. Each harness that
runs code after the program has its own."""

NONCE_BYTES: Final = 32
TRACEBACK_CHARS: Final = 2000
TRACEBACK_FRAMES: Final = 6
MESSAGE_CHARS: Final = 500
REPORT_BYTES: Final = (1 << 20) - 4096
"""Longest report: a longer one would be cut, and then be invalid."""
PROGRAM: Final = "main.py"
"""File name of the program in its tracebacks."""

_HERE: Final = os.path.dirname(__file__)  # noqa: PTH120  # no pathlib in the zygote

Report = Callable[[bytes], None]


def unpack(payload: bytes) -> tuple[list[bytes], Any]:
    """Return the nonce, in a list so that it can be removed, and the secret part of the payload."""
    return [payload[:NONCE_BYTES]], marshal.loads(payload[NONCE_BYTES:])


def report_success(report: Report, nonce: bytes, getpid: Callable[[], int], pid: int, result: bytes) -> None:
    """Report success. A forked copy of the program gets here as well; only the first process may report."""
    if getpid() == pid:
        report(nonce + result)


def install_guards(payload: bytes) -> None:
    """Before the program runs: remove the callers' references to the payload, and install the audit hook."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        for value in frame.f_locals.values():
            if getattr(value, "payload", None) is payload:
                object.__setattr__(value, "payload", b"")
    sys.addaudithook(_refuse)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    """The audit hook. It uses only constants and its own arguments, because the program could replace anything else."""
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


def new_main(source: str) -> dict[str, Any]:
    """Return the namespace of a new `__main__`, as for a script. Tracebacks can find its lines."""
    linecache.cache[PROGRAM] = (len(source), None, source.splitlines(keepends=True), PROGRAM)
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=PROGRAM, __builtins__=builtins, __spec__=None, __cached__=None)
    sys.modules["__main__"] = module
    return module.__dict__


def extend_recursion_limit() -> None:
    """Give the program the recursion depth of a script: the frames below it do not count."""
    depth, frame = 0, sys._getframe(1)
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]  # typeshed: f_back of the last is None
    sys.setrecursionlimit(sys.getrecursionlimit() + depth)


def describe(error: BaseException) -> bytes:
    """Encode an exception, without nonce. The exception classes of a program can spoil its own report only."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace, limit=-TRACEBACK_FRAMES)
    description = {
        "exception": type(error).__name__,
        "assertion": isinstance(error, AssertionError),
        "ordinary": isinstance(error, Exception) and not isinstance(error, MemoryError),
        "message": lines[-1].strip().partition(": ")[2][:MESSAGE_CHARS],
        "traceback": "".join(lines)[-TRACEBACK_CHARS:],
    }
    return json.dumps(description).encode()


def flush_and_exit(exit_code: int, exit_now: Callable[[int], None]) -> None:
    """End the process now, so that threads and exit handlers of the program cannot act after the report."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001  # the program may have replaced the stream
            continue
    exit_now(exit_code)


def exit_function() -> Callable[[int], None]:
    """Return `os._exit` as it is before the program runs."""
    return os._exit
