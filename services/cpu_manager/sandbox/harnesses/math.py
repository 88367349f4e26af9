"""math-verify on one response and one gold answer. Its own timeouts are off: they need signals; the walls are safer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from services.cpu_manager.sandbox.harnesses import guard

SHOWN_CHARS: Final = 200


def _silence() -> None:
    import logging  # imported late: its locks are renewed at every fork of a zygote that has it

    logging.disable(logging.CRITICAL)


def main(source: str, payload: bytes, report: Callable[[bytes], None]) -> None:  # noqa: ARG001  # every harness's shape
    """Parse both, compare, report `{gold, response, equal}`. The first two are what was parsed, as text, or empty."""
    from math_verify import parse, verify  # imported before the fork, by the `math` zygote

    _silence()
    nonces, secret = guard.unpack(payload)
    gold = parse(gold_text(secret["gold"]), parsing_timeout=None) or parse(secret["gold"], parsing_timeout=None)
    response = parse(secret["response"], parsing_timeout=None)
    result = {
        "gold": _shown(gold),
        "response": _shown(response),
        "equal": bool(gold and response and _equal(verify, gold, response)),
    }
    guard.report_success(report, nonces.pop(), os.getpid, os.getpid(), json.dumps(result).encode())


def _equal(verify: Callable[..., bool], gold: list[Any], response: list[Any]) -> bool:
    """Return math-verify's verdict.

    math-verify treats every exception as "not equal". An exception of ours (a missing module) must not become a wrong
    answer, so after a "no" the call is repeated with exceptions enabled.
    """
    if verify(gold, response, timeout_seconds=None):
        return True
    try:
        verify(gold, response, timeout_seconds=None, raise_on_error=True)
    except ImportError:
        raise
    except Exception:  # noqa: BLE001  # math-verify cannot handle what the model wrote: not equal
        return False
    return False


def warm() -> None:
    """Prepare what math-verify builds at its first use (patterns, grammar tables): 90 ms that each fork would pay."""
    from math_verify import parse, verify

    _silence()
    half = parse(r"The final answer is $\boxed{\frac{1}{2}}$. I hope", parsing_timeout=None)
    verify(half, parse("so it is 1/2 or 0.5", parsing_timeout=None), timeout_seconds=None)


def gold_text(gold: str) -> str:
    """Return the gold answer as math-verify reads it: bare LaTeX in a box; of GSM8K's `... #### N` only N."""
    answer = gold.rpartition("####")[2].strip() if "####" in gold else gold.strip()
    return answer if "\\boxed" in answer or "$" in answer else f"\\boxed{{{answer}}}"


def _shown(parsed: list[Any]) -> str:
    return str(parsed[0])[:SHOWN_CHARS] if parsed else ""


if "math_verify" in sys.modules:  # only in the `math` zygote, which imports it before it forks
    warm()
