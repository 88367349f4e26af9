"""Harness that runs a source as `python main.py` does: the same `__main__`, traceback, exit code, streams."""

from __future__ import annotations

import builtins
import os
import sys
import types
from collections.abc import Callable


def main(source: str, payload: bytes, report: Callable[[bytes], None]) -> None:  # noqa: ARG001  # every harness's shape
    """Execute `source` as the main module from a real file `main.py`, so that tracebacks and `spawn` find it."""
    path = f"{os.getcwd()}/main.py"  # noqa: PTH109
    with open(path, "w", encoding="utf-8", errors="surrogatepass") as file:  # noqa: PTH123
        file.write(source)
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=builtins, __spec__=None, __cached__=None)
    sys.modules["__main__"] = module
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001  # as the interpreter does at its top level
        trace = error.__traceback__
        shown = error.with_traceback(trace.tb_next if trace else None)  # without the frame of this harness
        sys.excepthook(type(shown), shown, shown.__traceback__)
        raise SystemExit(1) from None
