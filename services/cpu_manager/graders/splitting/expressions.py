"""Expressions of the tests: constants are computed, calls of the program recorded, a few operations deferred.

Forms without a method here are not split. docs/graders.md lists the forms.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from typing import Any, Final

from services.cpu_manager.graders.splitting.builtin_calls import BuiltinCalls, math_member
from services.cpu_manager.graders.splitting.operators import (
    COMPARISONS,
    ON_RESULTS,
    UNARY,
    comparable,
    folded,
    is_number,
    small,
)
from services.cpu_manager.graders.splitting.plan import Later, Recorder, Register, StepBudget, UnsplittableError
from services.cpu_manager.graders.splitting.symbols import Hidden, Pure, Scope, bind, is_constant
from services.cpu_manager.graders.splitting.values import PlainDict, PlainSet

_METHODS: Final = frozenset(
    name for kind in (str, bytes, list, tuple, dict, set, int, float, complex) for name in dir(kind)
)
"""Names of methods of plain data. `f().startswith("a")` would let the program judge the expected value."""


class Expressions:
    """Reads expressions. Every method raises UnsplittableError for unsupported forms."""

    def __init__(self, recorder: Recorder, steps: StepBudget) -> None:
        self._recorder = recorder
        self._steps = steps
        self._builtins = BuiltinCalls(self, recorder, steps)
        self._in_argument = False

    def read(self, node: ast.expr, scope: Scope) -> Any:
        """Return a constant, a register, or a deferred operation."""
        self._steps.take()
        reader: Callable[[Any, Scope], Any] | None = getattr(self, f"_read_{type(node).__name__.lower()}", None)
        if reader is None:
            raise UnsplittableError(type(node).__name__)
        return reader(node, scope)

    def constant(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of an expression that is known now."""
        found = self.read(node, scope)
        if not is_constant(found):
            raise UnsplittableError("not a constant")
        return found

    def check(self, test: ast.expr, scope: Scope, line: int, message: str) -> None:
        """Record an assertion.

        The parts of `and`, of a chain, and of `all` over constants are recorded one by one: Python also stops at the
        first that is false.
        """
        self._steps.take()
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for part in test.values:
                self.check(part, scope, line, message)
        elif isinstance(test, ast.Compare):
            left = self.read(test.left, scope)
            for kind, node in zip(test.ops, test.comparators, strict=True):
                right = self.read(node, scope)
                self._recorder.check(self._compared(kind, left, right), line, message)
                left = right
        elif (generator := _all_of(test, scope)) is not None:
            for each in self.rounds(generator.generators, scope):
                self.check(generator.elt, each, line, message)
        elif isinstance(test, ast.Constant):
            self._recorder.check(bool(test.value), line, message)
        else:
            self._recorder.check(self._truth(test, scope), line, message)

    def _truth(self, node: ast.expr, scope: Scope) -> Any:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._steps.take()
            return self._recorder.later(operator.not_, self._truth(node.operand, scope))
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left = self.read(node.left, scope)
            return self._compared(node.ops[0], left, self.read(node.comparators[0], scope))
        found = self.read(node, scope)
        if isinstance(found, Register):  # the truth of a program's own object is evaluated inside
            return self._recorder.use(self._recorder.add("apply", "bool", found.index, [], []))
        if not isinstance(found, Later):
            raise UnsplittableError("no result")
        return found

    def _compared(self, kind: ast.cmpop, left: Any, right: Any) -> Later:
        name = type(kind).__name__
        if is_constant(left) == is_constant(right):
            raise UnsplittableError("not a result and a constant")
        result_is_left = is_constant(right)
        if not comparable(name, right if result_is_left else left, result_is_left=result_is_left):
            raise UnsplittableError(name)
        return self._recorder.later(COMPARISONS[name], self.operand(left), self.operand(right))

    def operand(self, found: Any) -> Any:
        """Return a value that was read, as an operand of a deferred operation."""
        if isinstance(found, Register):
            return self._recorder.use(found)
        if isinstance(found, Hidden | Pure):
            raise UnsplittableError("not data")
        return found

    def elements(self, node: ast.expr, scope: Scope) -> Iterator[Any]:
        """Yield the elements of a constant whose order is known."""
        found: Any
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
            if not scope.is_builtin("range") or node.keywords:
                raise UnsplittableError("range")
            found = range(*[self.constant(one, scope) for one in node.args])
        else:
            found = self.constant(node, scope)
            if not isinstance(found, list | tuple | str):
                raise UnsplittableError("not iterable")
        for element in found:
            self._steps.take()
            yield element

    def counted_elements(self, node: ast.expr, scope: Scope) -> list[Any]:
        """Return the elements of a constant whose order is known, charged to the steps."""
        found = list(self.elements(node, scope))
        self._steps.take_value(found)
        return found

    def rounds(self, generators: list[ast.comprehension], scope: Scope) -> Iterator[Scope]:
        """Yield one scope for each round of a comprehension over a constant."""
        first, *others = generators
        if others or first.ifs or first.is_async:
            raise UnsplittableError("comprehension")
        inner = scope.inner()
        for element in self.elements(first.iter, scope):
            bind(first.target, element, inner.local)
            yield inner

    def _read_constant(self, node: ast.Constant, _: Scope) -> Any:
        if node.value is ...:
            raise UnsplittableError("Ellipsis")
        return node.value

    def _read_name(self, node: ast.Name, scope: Scope) -> Any:
        bound, value = scope.find(node.id)
        if not bound or isinstance(value, Hidden | Pure):
            raise UnsplittableError("a name of the program as a value")
        if self._in_argument and not self._is_immutable(value):
            raise UnsplittableError("an argument that the tests could read again")
        return value

    def _is_immutable(self, value: Any) -> bool:
        self._steps.take()
        if isinstance(value, tuple):
            return all(map(self._is_immutable, value))
        return is_constant(value) and not isinstance(value, list | PlainSet | PlainDict)

    def _read_list(self, node: ast.List, scope: Scope) -> Any:
        return self._made(lambda *parts: list(parts), [self.read(one, scope) for one in node.elts])

    def _read_tuple(self, node: ast.Tuple, scope: Scope) -> Any:
        return self._made(lambda *parts: parts, [self.read(one, scope) for one in node.elts])

    def _read_listcomp(self, node: ast.ListComp, scope: Scope) -> Any:
        parts = [self.read(node.elt, each) for each in self.rounds(node.generators, scope)]
        return self._made(lambda *parts: list(parts), parts)

    def _made(self, make: Callable[..., Any], parts: list[Any]) -> Any:
        if all(map(is_constant, parts)):
            return make(*parts)
        return self._recorder.later(make, *map(self.operand, parts), fallible=False)

    def _read_set(self, node: ast.Set, scope: Scope) -> Any:
        return self._counted(PlainSet, [self.constant(one, scope) for one in node.elts])

    def _read_dict(self, node: ast.Dict, scope: Scope) -> Any:
        pairs = []
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                raise UnsplittableError("unpacking")
            pairs.append((self.constant(key, scope), self.constant(value, scope)))
        return self._counted(PlainDict, pairs)

    def _counted(self, make: Callable[[Any], Any], parts: Any) -> Any:
        self._steps.take_value(parts)
        return make(parts)

    def _read_unaryop(self, node: ast.UnaryOp, scope: Scope) -> Any:
        operation, value = UNARY.get(type(node.op).__name__), self.constant(node.operand, scope)
        if operation is None or not is_number(value):
            raise UnsplittableError("operator")
        return operation(value)

    def _read_binop(self, node: ast.BinOp, scope: Scope) -> Any:
        name = type(node.op).__name__
        left, right = self.read(node.left, scope), self.read(node.right, scope)
        if is_constant(left) and is_constant(right):
            found = folded(name, left, right, self._steps)
            if found != found:
                raise UnsplittableError("not a number")
            return found
        stated = right if is_constant(right) else left
        if name not in ON_RESULTS or not is_number(stated):
            raise UnsplittableError("operator")
        return self._recorder.later(small(ON_RESULTS[name]), self.operand(left), self.operand(right))

    def _read_subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        base = self.read(node.value, scope)
        if not isinstance(base, Register):
            raise UnsplittableError("subscript")
        if isinstance(node.slice, ast.Slice):
            bounds = (node.slice.lower, node.slice.upper, node.slice.step)
            index: Any = ("|", [None if one is None else self._whole(one, scope) for one in bounds])
        else:
            found = self.constant(node.slice, scope)
            if type(found) not in (int, str):
                raise UnsplittableError("subscript")
            index = self._recorder.packed(found, set())
        return self._recorder.add("item", base.index, index)

    def _whole(self, node: ast.expr, scope: Scope) -> int:
        found = self.constant(node, scope)
        if type(found) is not int:
            raise UnsplittableError("slice")
        return found

    def _read_attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        if isinstance(node.value, ast.Name) and scope.find(node.value.id) == (True, Hidden("math")):
            found = math_member(node.attr)
            if isinstance(found, Pure):
                raise UnsplittableError("a function as a value")
            return found
        return self._attribute(node, scope)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Register:
        base = self.read(node.value, scope)
        if not isinstance(base, Register) or node.attr.startswith("_"):
            raise UnsplittableError("attribute")
        return self._recorder.add("attribute", base.index, node.attr)

    def _read_call(self, node: ast.Call, scope: Scope) -> Any:
        function = node.func
        if isinstance(function, ast.Name):
            bound, value = scope.find(function.id)
            if isinstance(value, Pure):
                return self._builtins.math(value, node, scope)
            if not bound and scope.is_builtin(function.id):
                return self._builtins.builtin(function.id, node, scope)
            if not bound:
                value = self._recorder.add("name", function.id)
            if not isinstance(value, Register):
                raise UnsplittableError("call")
            return self._recorder.call(value, *self._arguments(node, scope))
        if not isinstance(function, ast.Attribute):
            raise UnsplittableError("call")
        if isinstance(function.value, ast.Name) and scope.find(function.value.id) == (True, Hidden("math")):
            found = math_member(function.attr)
            if isinstance(found, Pure):
                return self._builtins.math(found, node, scope)
            raise UnsplittableError("call")
        if (node.args or node.keywords) and not (_is_bare_call(function.value) and function.attr not in _METHODS):
            raise UnsplittableError("the program would judge what the tests state")
        return self._recorder.call(self._attribute(function, scope), *self._arguments(node, scope))

    def _arguments(self, node: ast.Call, scope: Scope) -> tuple[list[Any], dict[str, Any]]:
        """Return constants that are created for this call alone."""
        before, self._in_argument = self._in_argument, True
        arguments = [self.constant(one, scope) for one in node.args]
        keywords = {one.arg: self.constant(one.value, scope) for one in node.keywords if one.arg is not None}
        self._in_argument = before
        if len(keywords) < len(node.keywords):
            raise UnsplittableError("unpacking")
        return arguments, keywords


def _is_bare_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args and not node.keywords


def _all_of(test: ast.expr, scope: Scope) -> ast.GeneratorExp | None:
    if not isinstance(test, ast.Call) or not isinstance(test.func, ast.Name) or test.func.id != "all":
        return None
    if not scope.is_builtin("all") or len(test.args) != 1 or test.keywords:
        return None
    return test.args[0] if isinstance(test.args[0], ast.GeneratorExp) else None
