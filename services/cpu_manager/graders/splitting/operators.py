"""Operations on plain data: on constants while a text is read, and on results when they are judged.

Constants are the tenant's, results are the sample's; both may be hostile. The size of a result of constants is bounded
before it is computed. Operations on results are few, and cost no more than reading the result did.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from services.cpu_manager.graders.splitting.plan import StepBudget, UnsplittableError
from services.cpu_manager.graders.splitting.values import PlainSet

MOST_BITS: Final = 1 << 12
"""Most bits of an integer that the tests compute."""
MOST_RESULT_BITS: Final = 1 << 16
"""Most bits of an integer that the tests compute with."""

Operation = Callable[..., Any]


class TooCostlyError(Exception):
    """A result is too large for the operation; the assertion fails."""


_NUMBERS: Final = (int, float)
_SEQUENCES: Final = (str, list, tuple)


def is_number(value: Any) -> bool:
    """Return True for an int, a float or a bool."""
    return isinstance(value, _NUMBERS)


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MOST_BITS:
        raise UnsplittableError("a large number")
    return base**exponent


def _shift(value: int, by: int) -> int:
    if by > MOST_BITS:
        raise UnsplittableError("a large number")
    return value << by


_ON_NUMBERS: Final[Mapping[str, Operation]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": operator.truediv,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": _power,
}
_ON_INTEGERS: Final[Mapping[str, Operation]] = {
    "LShift": _shift,
    "RShift": operator.rshift,
    "BitOr": operator.or_,
    "BitAnd": operator.and_,
    "BitXor": operator.xor,
}
ON_RESULTS: Final[Mapping[str, Operation]] = {"Add": operator.add, "Sub": operator.sub, "Div": operator.truediv}
"""Operators for a result and a number that the tests state."""
ON_RESULT: Final[Mapping[str, Operation]] = {"abs": abs, "float": float, "round": round}
UNARY: Final[Mapping[str, Operation]] = {"USub": operator.neg, "UAdd": operator.pos, "Invert": operator.invert}


def folded(name: str, one: Any, other: Any, steps: StepBudget) -> Any:
    """Apply a binary operator to constants. Raise UnsplittableError except for numbers, and text and lists joined."""
    if is_number(one) and is_number(other):
        if any(isinstance(side, int) and side.bit_length() > MOST_BITS for side in (one, other)):
            raise UnsplittableError("a large number")
        whole = isinstance(one, int) and isinstance(other, int)
        found = _ON_NUMBERS.get(name) or (_ON_INTEGERS.get(name) if whole else None)
        if found is None:
            raise UnsplittableError(name)
        return found(one, other)
    if name == "Add" and type(one) is type(other) and isinstance(one, _SEQUENCES):
        steps.take(len(one) + len(other))
        return operator.add(one, other)
    if name == "Mult" and isinstance(one, _SEQUENCES) and isinstance(other, int):
        steps.take(len(one) * max(other, 0))
        return operator.mul(one, other)
    raise UnsplittableError(name)


def _text(value: Any) -> str:
    if type(value) not in (str, int, bool, float):
        raise UnsplittableError("str")
    return str(value)


def _float(value: Any = 0.0) -> float:
    if not is_number(value) and (not isinstance(value, str) or len(value) > 40):
        raise UnsplittableError("float")
    return float(value)


def _numbers(values: list[Any]) -> Any:
    found = sum(values) if all(map(is_number, values)) else math.nan
    if found != found:
        raise UnsplittableError("sum")
    return found


def _rounded(value: Any, digits: Any = None) -> Any:
    if not is_number(value) or not (digits is None or is_digits(digits)):
        raise UnsplittableError("round")
    return round(value, digits)


def _absolute(value: Any) -> Any:
    if not is_number(value):
        raise UnsplittableError("abs")
    return abs(value)


def is_digits(value: Any) -> bool:
    """Return True for a valid second argument of `round`."""
    return type(value) is int and abs(value) <= 20


OF_CONSTANTS: Final[Mapping[str, Operation]] = {"abs": _absolute, "float": _float, "round": _rounded, "str": _text}
OF_ELEMENTS: Final[Mapping[str, Operation]] = {
    "list": list,
    "tuple": tuple,
    "set": PlainSet,
    "frozenset": lambda values: PlainSet(values, frozen=True),
    "sorted": sorted,
    "len": len,
    "sum": _numbers,
}
"""Builtins of constants: of values (`OF_CONSTANTS`), or of elements in order (`OF_ELEMENTS`)."""
INSIDE: Final[frozenset[str]] = frozenset(
    {"abs", "all", "any", "bool", "dict", "float", "frozenset", "int", "len", "list", "max", "min", "repr", "round"}
    | {"set", "sorted", "str", "sum", "tuple"}
)
"""Builtins that the harness applies to the program's object itself, so they have Python's own meaning."""
TYPES: Final[frozenset[str]] = frozenset(
    {"bool", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple"}
)
"""Types that `isinstance` may check, inside."""
MATHS: Final[Mapping[str, Any]] = {
    name: getattr(math, name)
    for name in ("pi", "e", "inf", "tau", "isclose", "isnan", "isinf", "isfinite", "sqrt", "floor", "ceil", "fabs")
}


def small(operation: Operation) -> Operation:
    """Return the operation with a limit on its integer operands."""

    def bounded(*operands: Any, **options: Any) -> Any:
        for one in operands:
            if isinstance(one, int) and one.bit_length() > MOST_RESULT_BITS:
                raise TooCostlyError
        return operation(*operands, **options)

    return bounded


COMPARISONS: Final[Mapping[str, Operation]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Is": operator.is_,
    "IsNot": operator.is_not,
    "In": lambda element, container: element in container,
    "NotIn": lambda element, container: element not in container,
}
"""Comparisons of a result and a constant. Their cost is bounded by the constant's size, which the plan has counted."""


def comparable(name: str, constant: Any, *, result_is_left: bool) -> bool:
    """Return True if the comparison of any plain result with this constant is Python's own."""
    if name in ("Eq", "NotEq"):
        return True
    if name in ("Is", "IsNot"):
        return constant is None or constant is True or constant is False
    if name in ("In", "NotIn"):
        return result_is_left and isinstance(constant, _SEQUENCES)
    return _ordered(constant)


def _ordered(constant: Any) -> bool:
    if isinstance(constant, list | tuple):
        return all(map(_ordered, constant))
    return isinstance(constant, int | float | str)
