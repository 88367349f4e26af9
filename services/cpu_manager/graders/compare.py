"""Equality of an output and the expected one: the compare modes of `code.stdio`.

Pure, and run in the manager: a program's output is data here, bounded by the sandbox, and every mode is linear in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

Compare = Literal["lines", "exact", "tokens", "numeric"]

RELATIVE_TOLERANCE: Final = 1e-5
"""For `numeric`: allowed difference, relative to the expected number (as in SandboxFusion's CommonOJ)."""
LONGEST_NUMBER: Final = 64
"""Characters. A longer token is compared as text: no float is printed that long, and int() of it is quadratic."""


def outputs_equal(actual: bytes, expected: str, compare: Compare) -> bool:
    """Return True if a program's stdout equals the expected one. O(length). Never raises for what a program printed."""
    if compare == "exact":
        return actual == expected.encode("utf-8", "surrogatepass")
    return _COMPARE[compare](actual.decode("utf-8", "replace"), expected)


def _lines_equal(actual: str, expected: str) -> bool:
    return _trimmed(actual) == _trimmed(expected)


def _trimmed(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.rstrip().split("\n")]
    return lines if lines != [""] else []


def _tokens_equal(actual: str, expected: str) -> bool:
    return actual.split() == expected.split()


def _numeric_equal(actual: str, expected: str) -> bool:
    got, wanted = actual.split(), expected.split()
    return len(got) == len(wanted) and all(map(_number_equal, got, wanted))


def _number_equal(actual: str, expected: str) -> bool:
    if actual == expected:
        return True
    if max(len(actual), len(expected)) > LONGEST_NUMBER:
        return False
    if _is_integer(actual) and _is_integer(expected) and max(len(actual), len(expected)) > 15:
        return int(actual) == int(expected)  # above 2**53 different integers are equal as floats
    try:
        got, wanted = float(actual), float(expected)
    except ValueError:
        return False
    return got == wanted or abs(got - wanted) <= RELATIVE_TOLERANCE * abs(wanted) < float("inf")


def _is_integer(token: str) -> bool:
    return token.removeprefix("-").isdecimal()


_COMPARE: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "lines": _lines_equal,
    "tokens": _tokens_equal,
    "numeric": _numeric_equal,
}
