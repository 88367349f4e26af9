"""A trainer's scoring function: loads its module, calls it with keyword arguments, reports the result.

The report begins with BEGUN at the start of the call. If the process ends after that, the sample may have caused it.

C code converts the result to JSON. It is looked up before the module runs, so a solution that the module executes and
that patches `json` has no effect on it.
"""

from __future__ import annotations

import builtins
import json.encoder
import math
import os
import sys
import types
from collections.abc import Callable
from typing import Any, Final

from services.cpu_manager.sandbox.harnesses import guard

globals()["__builtins__"] = dict(vars(builtins))  # private, see `guard`

MODULE: Final = "reward_module"
BEGUN: Final = b"begun\n"
"""Head of the report: the module is loaded and the call of its function begins."""
Encode = Callable[[Any, int], tuple[str, ...]]


def main(source: str, payload: bytes, report: Callable[[bytes], None]) -> None:
    """Call `function(**arguments)` of the module `source`, and report `{score, type, extra}`. Never returns."""
    nonces, call = guard.unpack(payload)
    guard.install_guards(payload)
    del payload
    flush_and_exit, describe, exit_now = guard.flush_and_exit, guard.describe, guard.exit_function()
    exit_code = 1
    try:
        guard.report_success(
            report,
            nonces.pop(),
            os.getpid,
            os.getpid(),
            _encode_result(_encoder(), math.isfinite, _call(report, source, call["function"], call["arguments"])),
        )
        exit_code = 0
    except BaseException as error:  # noqa: BLE001  # report whatever the module raised
        report(describe(error))
    finally:
        flush_and_exit(exit_code, exit_now)


def _call(report: guard.Report, source: str, function: str, arguments: dict[str, Any]) -> Any:
    module = types.ModuleType(MODULE)
    module.__file__ = f"{MODULE}.py"
    sys.modules[MODULE] = module
    exec(compile(source, module.__file__, "exec", dont_inherit=True), module.__dict__)
    found = getattr(module, function, None)
    if not callable(found):
        raise LookupError(f"the module defines no function {function!r}")
    report(BEGUN)
    returned = found(**arguments)
    if not hasattr(returned, "__await__"):
        return returned
    import asyncio  # imported late: with its imports (threads, TLS, logging) every fork would cost a third more

    return asyncio.run(_awaited(returned))


async def _awaited(returned: Any) -> Any:
    return await returned


def _encoder() -> Encode:
    """Return a JSON encoder in C: strict numbers, other objects by their `repr`; keys that are not text are omitted."""
    make: Callable[..., Encode] = vars(json.encoder)["c_make_encoder"]
    return make(None, repr, json.encoder.encode_basestring_ascii, None, ": ", ", ", False, True, False)


def _encode_result(encode: Encode, is_finite: Callable[[float], bool], returned: Any) -> bytes:
    extra = {}
    score = returned
    if isinstance(returned, dict):
        if "score" not in returned:
            raise TypeError("the function returned a dict without 'score'")
        extra = {key: value for key, value in returned.items() if key != "score"}
        score = returned["score"]
    if not isinstance(score, bool | int | float) and hasattr(score, "item"):
        score = score.item()  # a scalar of numpy or torch
    if not isinstance(score, bool | int | float) or not is_finite(score):
        raise TypeError(f"the score must be a finite number or a bool, not {score!r:.200}")
    result = {"score": float(score), "type": type(score).__name__, "extra": extra}
    text = "".join(encode(result, 0)).encode()
    if len(text) > guard.REPORT_BYTES:
        raise ValueError(f"the result is {len(text)} bytes of JSON; there is room for {guard.REPORT_BYTES}")
    return text
