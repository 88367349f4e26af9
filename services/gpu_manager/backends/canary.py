"""Canaries: requests with known answers. Only they show garbage: an engine without weights answers it with 200."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final

from services.gpu_manager.backends.engine_http import EngineHttp
from services.gpu_manager.backends.protocol import WrongAnswer
from shared.model_services.entries import EngineCanary
from shared.runtime.units import Seconds

MAX_TOKENS: Final = 16
_SHOWN_CHARS: Final = 200
_MISSING: Final = object()
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,17}")
"""Index of a JSON pointer (RFC 6901, 4), bounded: Python refuses to read numbers of more than 4,300 digits."""


async def send_canary(http: EngineHttp, model: str, canary: EngineCanary, *, within_s: Seconds) -> None:
    """Send a canary and check its answer.

    Raises:
        WrongAnswer: the answer is another one.
        EngineError: there is no answer, or its status is not 200.
    """
    if canary.prompt:
        await _check_completion(http, model, canary, within_s)
        return
    answer = await http.call("POST", canary.path, canary.body, within_s=within_s)
    found = _at(answer, canary.pointer or "")
    if found is _MISSING:
        raise WrongAnswer(f"the canary's answer has nothing at {_cut(canary.pointer)}: {_shown(answer)}")
    if not _equal(found, canary.expect, canary.tolerance):
        raise WrongAnswer(
            f"the canary's answer at {_cut(canary.pointer)} is {_shown(found)}, not {_cut(canary.expect)} "
            f"(tolerance {canary.tolerance:g})"
        )


async def _check_completion(http: EngineHttp, model: str, canary: EngineCanary, within_s: Seconds) -> None:
    path = canary.path or "/v1/completions"
    asked: dict[str, Any] = {"model": model, "max_tokens": MAX_TOKENS, "temperature": 0}
    if path.endswith("/chat/completions"):
        asked["messages"] = [{"role": "user", "content": canary.prompt}]
    else:
        asked["prompt"] = canary.prompt
    answer = await http.call("POST", path, asked | canary.body, within_s=within_s)
    text = _text(answer)
    if str(canary.expect) not in text:
        raise WrongAnswer(
            f"the canary's answer is {text[:_SHOWN_CHARS]!r}, which does not contain {_cut(canary.expect)}"
        )


def _text(answer: Any) -> str:
    for pointer in ("/choices/0/text", "/choices/0/message/content"):
        if isinstance(found := _at(answer, pointer), str):
            return found
    return ""


def _at(document: Any, pointer: str) -> Any:
    """Return the value at a JSON pointer (RFC 6901); `_MISSING` if there is none. Empty: the document."""
    here = document
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(here, dict) and part in here:
            here = here[part]
        elif isinstance(here, list) and _INDEX.fullmatch(part) and int(part) < len(here):
            here = here[int(part)]
        else:
            return _MISSING
    return here


def _equal(found: Any, expected: str | float | Sequence[float], tolerance: float) -> bool:
    if isinstance(expected, str):
        return bool(found == expected)
    if isinstance(expected, int | float):
        return abs(_number(found) - expected) <= tolerance
    return (
        isinstance(found, list)
        and len(found) == len(expected)
        and all(_equal(one, other, tolerance) for one, other in zip(found, expected, strict=True))
    )


def _number(found: Any) -> float:
    """Return a number as a float; NaN, which equals nothing, if it is none or is too large."""
    if not isinstance(found, int | float) or isinstance(found, bool):
        return math.nan
    try:
        return float(found)
    except OverflowError:
        return math.nan


def _shown(found: Any) -> str:
    try:
        return str(found)[:_SHOWN_CHARS]
    except (ValueError, RecursionError):
        return "a value that cannot be shown"


def _cut(declared: Any) -> str:
    return repr(declared)[:_SHOWN_CHARS]
