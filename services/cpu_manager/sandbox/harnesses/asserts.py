"""Harness of a program and its tests in one interpreter. A pass is reported only after the last assert.

For tests that `graders/splitting` cannot express as calls and comparisons. Program and tests are compiled separately,
and the tests before the program runs, so an open quote, bracket or decorator at the program's end cannot swallow a
test. The program sees what the tests define, as in one file, but the tests look it up in their own namespace. The tests
see the builtins as they were before the program ran.
"""

from __future__ import annotations
import __future__

import builtins
import json
import os
from collections.abc import Callable
from functools import reduce
from operator import or_
from types import CodeType
from typing import Any, Final

from services.cpu_manager.sandbox.harnesses import guard

globals()["__builtins__"] = dict(vars(builtins))  # private, see `guard`

FUTURES: Final = reduce(or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))
"""Flags of `from __future__` imports. Those of the program hold for the tests too, as in one file."""

ONLY_TREE: Final = 0x400
"""`ast.PyCF_ONLY_AST`, without importing `ast`."""


def main(source: str, payload: bytes, report: Callable[[bytes], None]) -> None:
    """Run `source`, then the tests of the payload, and report. Never returns."""
    nonces, texts = _unpack(payload)
    guard.install_guards(payload)
    del payload
    flush_and_exit, describe, exit_now = guard.flush_and_exit, guard.describe, guard.exit_function()
    run: Callable[[CodeType, dict[str, Any]], object] = exec
    exit_code = 1
    try:
        if fault := _fault(texts[0]):
            report(nonces.pop() + fault)
            return
        program = compile(source.encode("utf-8", "surrogatepass"), guard.PROGRAM, "exec", dont_inherit=True)
        namespace = guard.new_main(source)
        guard.extend_recursion_limit()
        # All that is used after the program is looked up before it: see `guard`.
        guard.report_success(
            report,
            nonces.pop(),
            os.getpid,
            os.getpid(),
            _run_tests(
                exec,
                _Space(namespace, dict(vars(builtins))),
                _compiled(texts.pop(), program.co_flags & FUTURES),
                run(program, namespace),
            ),
        )
        exit_code = 0
    except BaseException as error:  # noqa: BLE001  # SystemExit too: an exit before the last assert is not a pass
        report(describe(error))
    finally:
        flush_and_exit(exit_code, exit_now)


def _unpack(payload: bytes) -> tuple[list[bytes], list[str]]:
    nonces, tests = guard.unpack(payload)
    return nonces, [tests]


def _fault(tests: str) -> bytes:
    """Return what is wrong with the tests themselves: they do not compile, or contain no statement. Empty if nothing.

    It is reported before the program starts, under the nonce, so that no program can forge it to be masked. A
    MemoryError is not the tests' fault, because a large program might cause it.
    """
    source = tests.encode("utf-8", "surrogatepass")
    try:
        tree: Any = compile(source, "tests.py", "exec", ONLY_TREE, dont_inherit=True)
        if tree.body:
            compile(source, "tests.py", "exec", dont_inherit=True)
            return b""
        problem = "they contain no statement"
    except MemoryError:
        return b""
    except Exception as error:  # noqa: BLE001  # SyntaxError, ValueError, RecursionError
        problem = f"{type(error).__name__}: {error}"
    return json.dumps({"fault": problem[: guard.MESSAGE_CHARS]}).encode()


class _Space(dict[str, Any]):
    """The tests' globals. Names that the tests do not define come from the program, which sees the tests' names."""

    __slots__ = ("_programs",)

    def __init__(self, programs: dict[str, Any], pristine: dict[str, Any]) -> None:
        super().__init__(__builtins__=pristine)
        self._programs = programs

    def __missing__(self, name: str) -> Any:
        return self._programs[name]

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self._programs[name] = value


def _compiled(tests: str, futures: int) -> CodeType:
    code: CodeType = compile(tests.encode("utf-8", "surrogatepass"), "tests.py", "exec", futures, dont_inherit=True)
    return code


def _run_tests(
    execute: Callable[[CodeType, dict[str, Any]], object], space: dict[str, Any], tests: CodeType, _program_ran: object
) -> bytes:
    """Run the tests with unmodified builtins. Return the report of a pass; raise what a test raises."""
    execute(tests, space)
    return b"{}"
