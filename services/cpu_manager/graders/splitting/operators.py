"""Operations on plain data, each with a bound on what it may cost.

They are applied to constants of the tests while a plan is made, and to results when it is judged. A result is hostile:
`f(x) * 10**6` must not cost a terabyte outside. Whatever would be large raises `TooCostlyError`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from services.cpu_manager.graders.splitting.values import PlainDict, PlainSet, Stream

MOST_BITS: Final = 1 << 16
"""Of an integer that an operation makes."""
MOST_PARTS: Final = 1 << 17
"""Elements, characters or bytes of a value that an operation makes."""

Operation = Callable[..., Any]


class TooCostlyError(Exception):
    """The operation would be large; the text runs in one interpreter instead, or the result counts as unequal."""


def size_of(value: Any) -> int:
    """Elements, characters, or 64-bit words of an integer."""
    if isinstance(value, int):
        return value.bit_length() >> 6
    return len(value) if isinstance(value, str | bytes | list | tuple | PlainSet | PlainDict) else 1


_HEAVY: Final = frozenset({list, tuple, str, bytes, int, Stream, PlainSet, PlainDict})


def weight_of(value: Any, most: int) -> int:
    """Work that reading a value takes, in steps of about 1 us; a part that stands in several places counts there.

    Raises:
        TooCostlyError: it is more than `most`. `x = [x, x]` doubles it with each round.
    """
    total, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list | tuple | PlainSet | PlainDict):
            parts = [part for pair in one.items() for part in pair] if isinstance(one, PlainDict) else one
            total += 1 + (len(one) >> 4)
            waiting.extend(part for part in parts if type(part) in _HEAVY)
        else:
            total += size_of(one) >> 6
        if total > most:
            raise TooCostlyError
    return total


def _bounded(size: int, most: int) -> None:
    if size > most:
        raise TooCostlyError


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 64


def _multiply(one: Any, other: Any) -> Any:
    for text, times in ((one, other), (other, one)):
        if isinstance(text, str | bytes | list | tuple) and isinstance(times, int):
            _bounded(len(text) * max(times, 0), MOST_PARTS)
    _bounded(_bits(one) + _bits(other), MOST_BITS)
    return one * other


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int):
        _bounded(_bits(base) * abs(exponent), MOST_BITS)
    return base**exponent


def _shift(value: Any, by: Any) -> Any:
    if isinstance(by, int):
        _bounded(_bits(value) + max(by, 0), MOST_BITS)
    return value << by


def _add(one: Any, other: Any) -> Any:
    _bounded(size_of(one) + size_of(other), MOST_PARTS)
    return one + other


def _remainder(one: Any, other: Any) -> Any:
    if isinstance(one, str | bytes):  # formats: a width could be anything
        raise TooCostlyError
    _bounded(_bits(one), MOST_BITS)
    return one % other


def _quotient(one: Any, other: Any) -> Any:
    _bounded(max(_bits(one), _bits(other)), MOST_BITS)
    return one // other


def _contains(container: Any, element: Any) -> bool:
    if isinstance(container, str | bytes):
        _bounded(len(container), MOST_PARTS)
    return element in container


BINARY: Final[Mapping[str, Operation]] = {
    "Add": _add,
    "Sub": operator.sub,
    "Mult": _multiply,
    "Div": operator.truediv,
    "FloorDiv": _quotient,
    "Mod": _remainder,
    "Pow": _power,
    "LShift": _shift,
    "RShift": operator.rshift,
    "BitOr": operator.or_,
    "BitAnd": operator.and_,
    "BitXor": operator.xor,
}
UNARY: Final[Mapping[str, Operation]] = {
    "USub": operator.neg,
    "UAdd": operator.pos,
    "Invert": operator.invert,
    "Not": operator.not_,
}
COMPARISONS: Final[Mapping[str, Operation]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Is": operator.is_,
    "IsNot": operator.is_not,
    "In": lambda element, container: _contains(container, element),
    "NotIn": lambda element, container: not _contains(container, element),
}


def _list(values: Any = ()) -> list[Any]:
    _bounded(size_of(values), MOST_PARTS)
    return list(values)


def _range(*bounds: int) -> Stream:
    made = range(*bounds)
    _bounded(len(made), MOST_PARTS)
    return Stream(made)


def _text(value: Any = "") -> str:
    if isinstance(value, PlainSet | PlainDict):  # their order and their name differ from Python's own
        raise TooCostlyError
    if isinstance(value, int):
        _bounded(_bits(value), MOST_BITS >> 3)
        return str(value)
    if isinstance(value, str | float) or value is None:
        return str(value)
    raise TooCostlyError


def _dict(values: Any = ()) -> PlainDict:
    return PlainDict(values.items() if isinstance(values, PlainDict) else values)


def _sorted(values: Any, *, reverse: bool = False) -> list[Any]:
    _bounded(size_of(values), MOST_PARTS)
    return sorted(values, reverse=bool(reverse))


def _enumerate(values: Any, start: int = 0) -> Stream:
    return Stream(enumerate(values, start))


def _zip(*columns: Any) -> Stream:
    return Stream(zip(*columns, strict=False))


def _sum(values: Any, start: Any = 0) -> Any:
    if not isinstance(start, int | float | complex):  # of lists it is quadratic
        raise TooCostlyError
    return sum(values, start)


def _integer(value: Any = 0) -> int:
    if isinstance(value, str | bytes):
        _bounded(len(value), 4000)
    return int(value)


def _round(value: Any, digits: Any = None) -> Any:
    _bounded(_bits(value), MOST_BITS)
    if isinstance(digits, int):
        _bounded(abs(digits), 1000)
    return round(value) if digits is None else round(value, digits)


BUILTINS: Final[Mapping[str, Operation]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "bool": bool,
    "chr": chr,
    "complex": complex,
    "dict": _dict,
    "enumerate": _enumerate,
    "float": float,
    "frozenset": lambda values=(): PlainSet(values, frozen=True),
    "int": _integer,
    "len": len,
    "list": _list,
    "max": max,
    "min": min,
    "ord": ord,
    "range": _range,
    "reversed": lambda values: Stream(list(values)[::-1]),
    "round": _round,
    "set": lambda values=(): PlainSet(values),
    "sorted": _sorted,
    "str": _text,
    "sum": _sum,
    "tuple": lambda values=(): tuple(_list(values)),
    "zip": _zip,
}
"""Pure builtins on plain data."""
TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "bool": (bool,),
    "bytes": (bytes,),
    "complex": (complex,),
    "dict": (PlainDict,),
    "float": (float,),
    "int": (int,),
    "list": (list,),
    "set": (PlainSet,),
    "str": (str,),
    "tuple": (tuple,),
}
"""What `isinstance` knows. A subclass in the program has become its base on the way out."""
MATHS: Final[Mapping[str, Any]] = {
    name: getattr(math, name)
    for name in (
        *("pi", "e", "inf", "nan", "tau", "isclose", "isnan", "isinf", "isfinite", "sqrt", "floor", "ceil", "trunc"),
        *("fabs", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "exp", "log", "log2", "log10", "hypot"),
        *("degrees", "radians", "copysign", "fmod"),
    )
}
"""Of the module `math`: what costs the same for every argument."""
TEXTS: Final[frozenset[str]] = frozenset(
    {"lower", "upper", "strip", "lstrip", "rstrip", "title", "capitalize", "split", "splitlines", "startswith"}
    | {"endswith", "isdigit", "isalpha", "swapcase"}
)
"""Methods of text that cost no more than its length, twice."""
INSIDE: Final[frozenset[str]] = frozenset(
    {"list", "tuple", "set", "frozenset", "sorted", "len", "sum", "min", "max", "str", "repr", "bool", "int", "float"}
    | {"dict", "any", "all", "reversed"}
)
"""Builtins that the harness itself applies to the result of a call, before it is sent: so `list(f(x))` means the same
for a generator, and `len(f(x))` costs no transfer. No expected value is needed for them."""
