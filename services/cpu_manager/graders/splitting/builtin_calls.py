"""Calls of builtins and of `math`: computed for constants, recorded or deferred for results."""

from __future__ import annotations

import ast
from typing import Any, Protocol

from services.cpu_manager.graders.splitting.operators import (
    INSIDE,
    MATHS,
    OF_CONSTANTS,
    OF_ELEMENTS,
    ON_RESULT,
    TYPES,
    is_digits,
    is_number,
    small,
)
from services.cpu_manager.graders.splitting.plan import Later, Recorder, Register, Sent, StepBudget, UnsplittableError
from services.cpu_manager.graders.splitting.symbols import Pure, Scope, is_constant


class Reader(Protocol):
    """Reads the arguments."""

    def read(self, node: ast.expr, scope: Scope) -> Any:
        """Return a constant, a register, or a deferred operation."""

    def constant(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of an expression that is known now."""

    def operand(self, found: Any) -> Any:
        """Return a value that was read, as an operand of a deferred operation."""

    def counted_elements(self, node: ast.expr, scope: Scope) -> list[Any]:
        """Return the elements of a constant whose order is known, charged to the steps."""


class BuiltinCalls:
    """Reads calls of builtins and of `math`. Every method raises UnsplittableError for unsupported forms."""

    def __init__(self, reader: Reader, recorder: Recorder, steps: StepBudget) -> None:
        self._reader = reader
        self._recorder = recorder
        self._steps = steps

    def math(self, function: Pure, node: ast.Call, scope: Scope) -> Any:
        """Read a function of `math`, of constants and at most one result."""
        arguments = [self._reader.operand(self._reader.read(one, scope)) for one in node.args]
        options = {one.arg: self._reader.constant(one.value, scope) for one in node.keywords if one.arg is not None}
        stated = [one for one in arguments if is_constant(one)]
        if len(options) < len(node.keywords) or not all(map(is_number, [*stated, *options.values()])):
            raise UnsplittableError("math")
        if len(stated) < len(arguments) - 1:
            raise UnsplittableError("two results")
        operation = small(function.operation)
        if len(stated) == len(arguments):
            return operation(*arguments, **options)
        return self._recorder.later(lambda *operands: operation(*operands, **options), *arguments)

    def builtin(self, name: str, node: ast.Call, scope: Scope) -> Any:
        """Read a builtin of a constant or a result; its further arguments are constants."""
        if name == "isinstance" and len(node.args) == 2 and not node.keywords:
            return self._is_instance(node, scope)
        if name not in INSIDE or (not node.args and (name not in OF_ELEMENTS or name == "len" or node.keywords)):
            raise UnsplittableError(f"builtin {name}")
        if not node.args:
            return OF_ELEMENTS[name](())
        first, others = node.args[0], node.args[1:]
        if name in OF_ELEMENTS and len(node.args) == 1 and not node.keywords and _is_range(first):
            return OF_ELEMENTS[name](self._reader.counted_elements(first, scope))
        found = self._reader.read(first, scope)
        options = [self._reader.constant(one, scope) for one in others]
        named = {one.arg: self._reader.constant(one.value, scope) for one in node.keywords if one.arg is not None}
        if len(named) < len(node.keywords) or not _has_options(name, options, named):
            raise UnsplittableError(f"options of {name}")
        if isinstance(found, Register):
            return self._recorder.add("apply", name, found.index, options, list(named.items()))
        if isinstance(found, Sent | Later):
            if name not in ON_RESULT:
                raise UnsplittableError(f"builtin {name}")
            operation = small(ON_RESULT[name])
            return self._recorder.later(lambda value: operation(value, *options, **named), found)
        return self._of_constant(name, found, options, named)

    def _of_constant(self, name: str, value: Any, options: list[Any], named: dict[str, Any]) -> Any:
        if name in OF_CONSTANTS and not named:
            found = OF_CONSTANTS[name](value, *options)
            if found != found:
                raise UnsplittableError("not a number")
            return found
        if name not in OF_ELEMENTS or not isinstance(value, list | tuple | str) or options:
            raise UnsplittableError(f"builtin {name}")
        if name == "sorted" and not all(type(one) is str or is_number(one) for one in value):
            raise UnsplittableError("sorted")
        self._steps.take_value(value)
        return OF_ELEMENTS[name](value, **named)

    def _is_instance(self, node: ast.Call, scope: Scope) -> Register:
        found, asked = self._reader.read(node.args[0], scope), node.args[1]
        asked_for = asked.elts if isinstance(asked, ast.Tuple) else [asked]
        names = [one.id for one in asked_for if isinstance(one, ast.Name)]
        if not isinstance(found, Register) or len(names) < len(asked_for):
            raise UnsplittableError("isinstance")
        if not all(name in TYPES and scope.is_builtin(name) for name in names):
            raise UnsplittableError("isinstance")
        return self._recorder.add("isinstance", found.index, names)


def math_member(name: str) -> Any:
    """Return a member of the module `math`."""
    if name not in MATHS:
        raise UnsplittableError(f"math.{name}")
    found = MATHS[name]
    return Pure(found) if callable(found) else found


def _has_options(name: str, options: list[Any], named: dict[str, Any]) -> bool:
    """Return True if these further arguments of a builtin reveal nothing of an expected value."""
    if name == "round" and len(options) + len(named) == 1:
        return all(map(is_digits, options)) and all(key == "ndigits" and is_digits(named[key]) for key in named)
    if name == "int" and len(options) + len(named) == 1:
        return all(type(one) is int for one in (*options, *named.values())) and named.keys() <= {"base"}
    if name == "sorted" and not options:
        return named.keys() <= {"reverse"} and all(type(one) is bool for one in named.values())
    return not options and not named


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"
