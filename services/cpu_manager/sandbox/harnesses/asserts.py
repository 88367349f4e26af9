"""A program, then its tests, in one interpreter; a pass is reported only after the last assert.

Program and tests are compiled apart: no open quote, bracket or decorator at the program's end swallows a test. They
share one namespace, as one file would. Tests see the builtins as they were before the program ran.
"""

from __future__ import annotations
import __future__

import builtins
import os
from collections.abc import Callable
from functools import reduce
from operator import or_
from types import CodeType
from typing import Any, Final

from services.cpu_manager.sandbox.harnesses import sealed

globals()["__builtins__"] = dict(vars(builtins))  # private, see `sealed`

FUTURES: Final = reduce(or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))
"""Flags of `from __future__` imports: those of the program hold for the tests too, as in one file."""


def main(source: str, payload: bytes, report: Callable[[bytes], None]) -> None:
    """Run `source`, then the tests in the payload, and report. Never returns."""
    nonces, texts = _unpack(payload)
    sealed.close_doors(payload)
    del payload
    leave, describe, exit_now = sealed.leave, sealed.describe, sealed.exit_function()
    run: Callable[[CodeType, dict[str, Any]], object] = exec
    exit_code = 1
    try:
        program = compile(source.encode("utf-8", "surrogatepass"), sealed.PROGRAM, "exec", dont_inherit=True)
        namespace = sealed.fresh_main(source)
        sealed.forgive_depth()
        # Nothing that follows the program's run is looked up after it: see `sealed`.
        sealed.settle(
            report,
            nonces.pop(),
            os.getpid,
            os.getpid(),
            _run_tests(
                compile,
                exec,
                dict(vars(builtins)),
                namespace,
                texts.pop(),
                program.co_flags & FUTURES,
                run(program, namespace),
            ),
        )
        exit_code = 0
    except BaseException as error:  # noqa: BLE001  # SystemExit too: who leaves before the last assert has not passed
        report(describe(error))
    finally:
        leave(exit_code, exit_now)


def _unpack(payload: bytes) -> tuple[list[bytes], list[str]]:
    nonces, tests = sealed.unpack(payload)
    return nonces, [tests]


def _run_tests(
    compile_now: Callable[..., CodeType],
    execute: Callable[[CodeType, dict[str, Any]], object],
    pristine: dict[str, Any],
    namespace: dict[str, Any],
    tests: str,
    futures: int,
    _program_ran: object,
) -> bytes:
    """Compile and run the tests with pristine builtins. Returns what a passed run tells; raises what a test raises."""
    namespace["__builtins__"] = pristine
    execute(compile_now(tests.encode("utf-8", "surrogatepass"), "tests.py", "exec", futures, True), namespace)
    return b"{}"
