"""A trainer's scoring function: load its module, call it with keyword arguments, report what it returned.

The report begins with BEGUN as soon as the call does: what ends the process afterwards may be the sample's doing.

The result is turned into JSON by C code that was fetched before the module ran, so a solution that the module executes
and that patches `json` changes nothing in it.
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

from services.cpu_manager.sandbox.harnesses import sealed

globals()["__builtins__"] = dict(vars(builtins))  # private, see `sealed`

MODULE: Final = "reward_module"
BEGUN: Final = b"begun\n"
"""Head of the report: the module is loaded and its function is about to be called."""
Encode = Callable[[Any, int], tuple[str, ...]]


def main(source: str, payload: bytes, report: Callable[[bytes], None]) -> None:
    """Call `function(**arguments)` of the module `source` and report `{score, type, extra}`. Never returns."""
    nonces, call = sealed.unpack(payload)
    sealed.close_doors(payload)
    del payload
    leave, describe, exit_now = sealed.leave, sealed.describe, sealed.exit_function()
    exit_code = 1
    try:
        sealed.settle(
            report,
            nonces.pop(),
            os.getpid,
            os.getpid(),
            _told(_encoder(), math.isfinite, _call(report, source, call["function"], call["arguments"])),
        )
        exit_code = 0
    except BaseException as error:  # noqa: BLE001  # whatever the module raised is what we report
        report(describe(error))
    finally:
        leave(exit_code, exit_now)


def _call(report: sealed.Report, source: str, function: str, arguments: dict[str, Any]) -> Any:
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
    import asyncio  # with all it brings (threads, TLS, logging) every fork of the zygote would cost a third more

    return asyncio.run(_awaited(returned))


async def _awaited(returned: Any) -> Any:
    return await returned


def _encoder() -> Encode:
    """A JSON encoder in C: strict numbers, foreign objects by their `repr`, keys that are no text left out."""
    make: Callable[..., Encode] = vars(json.encoder)["c_make_encoder"]
    return make(None, repr, json.encoder.encode_basestring_ascii, None, ": ", ", ", False, True, False)


def _told(encode: Encode, is_finite: Callable[[float], bool], returned: Any) -> bytes:
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
    told = {"score": float(score), "type": type(score).__name__, "extra": extra}
    text = "".join(encode(told, 0)).encode()
    if len(text) > sealed.REPORT_BYTES:
        raise ValueError(f"the result is {len(text)} bytes of JSON; there is room for {sealed.REPORT_BYTES}")
    return text
