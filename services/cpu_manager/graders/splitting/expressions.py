"""Expressions of the tests: constants are computed, calls of the program recorded, the rest kept for later."""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from services.cpu_manager.graders.splitting.functions import chained, is_instance, member, text_method, types_of
from services.cpu_manager.graders.splitting.operators import (
    BINARY,
    BUILTINS,
    COMPARISONS,
    INSIDE,
    TEXTS,
    UNARY,
    size_of,
    weight_of,
)
from services.cpu_manager.graders.splitting.plan import Later, Recorder, Register, Sent, UnsplittableError
from services.cpu_manager.graders.splitting.symbols import MOST_STEPS, SYMBOLS, Function, Module, Pure, Scope
from services.cpu_manager.graders.splitting.values import PlainDict, PlainSet

_BUILTIN_NAMES: Final = frozenset(dir(builtins))
_METHODS: Final = frozenset(
    name for kind in (str, bytes, list, tuple, dict, set, int, float, complex) for name in dir(kind)
)
"""Names that plain data have. `f(x).startswith("a")` is a question to the result, so it is asked outside or not at
all; other methods are the program's own (`Solution().solve(3)`)."""
_ONLY_CONSTANTS: Final = frozenset({"str", "dict", "range", "chr", "complex"})
"""Builtins whose value for a result that came from outside could differ from Python's."""


class Inline(Protocol):
    """Reads a call of a function that the tests define."""

    def __call__(self, function: Function, arguments: list[Any], keywords: dict[str, Any], scope: Scope) -> Any: ...


def is_constant(value: Any) -> bool:
    """Plain data, known while the text is read."""
    return not isinstance(value, Register | Sent | Later | SYMBOLS)


class Expressions:
    """Reads expressions. Every method raises UnsplittableError for what has no form here."""

    def __init__(self, recorder: Recorder, inline: Inline) -> None:
        self._recorder = recorder
        self._inline = inline
        self._steps = 0
        self.builtin_calls = 0
        """Calls of builtins outside so far. A program may define a function of the same name (`sum(10, 15)`)."""

    def step(self, count: int = 1) -> None:
        """Count work against the bound of one text."""
        self._steps += count
        if self._steps > MOST_STEPS:
            raise UnsplittableError("too long")

    def read(self, node: ast.expr, scope: Scope) -> Any:
        """A constant, a register, an operation for later, or a symbol."""
        self.step()
        reader: Callable[[Any, Scope], Any] | None = getattr(self, f"_read_{type(node).__name__.lower()}", None)
        if reader is None:
            raise UnsplittableError(type(node).__name__)
        return reader(node, scope)

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """The expression as an operand: plain data, or how to get them outside."""
        return self._operand(self.read(node, scope))

    def constant(self, node: ast.expr, scope: Scope) -> Any:
        """The expression where it is known now."""
        found = self.read(node, scope)
        if not is_constant(found):
            raise UnsplittableError("not a constant")
        return found

    def truth(self, node: ast.expr, scope: Scope) -> Any:
        """The expression as a condition. The truth of a program's own object is asked inside."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self._apply(operator.not_, self.truth(node.operand, scope))
        found = self.read(node, scope)
        if isinstance(found, Register):
            return self._recorder.use(self._recorder.add("apply", "bool", found.index))
        return self._operand(found)

    def elements(self, node: ast.expr, scope: Scope) -> Iterator[Any]:
        """The elements of a constant that can be iterated over."""
        found = self.constant(node, scope)
        if not isinstance(found, list | tuple | str | bytes | PlainSet | PlainDict):
            raise UnsplittableError("not iterable")
        for element in found:
            self.step()
            yield element

    def comprehended(self, generators: list[ast.comprehension], scope: Scope) -> Iterator[Scope]:
        """One scope for each round of a comprehension over constants."""
        local = Scope(scope.shared, dict(scope.local or {}), scope.calls)
        yield from self._rounds(generators, local)

    def _rounds(self, generators: list[ast.comprehension], scope: Scope) -> Iterator[Scope]:
        if not generators:
            yield scope
            return
        first, *others = generators
        if first.is_async:
            raise UnsplittableError("asynchronous")
        for element in self.elements(first.iter, scope):
            self.assign(first.target, element, scope)
            if all(self.constant(condition, scope) for condition in first.ifs):
                yield from self._rounds(others, scope)

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Bind a name, or the names of a pattern."""
        if isinstance(target, ast.Name):
            scope.bind(target.id, value)
            return
        if not isinstance(target, ast.Tuple | ast.List) or not isinstance(value, list | tuple):
            raise UnsplittableError("assignment")
        if len(target.elts) != len(value):
            raise UnsplittableError("assignment")
        for inner, part in zip(target.elts, value, strict=True):
            self.assign(inner, part, scope)

    def _operand(self, found: Any) -> Any:
        if isinstance(found, Register):
            return self._recorder.use(found)
        if isinstance(found, SYMBOLS):
            raise UnsplittableError("not data")
        return found

    def _apply(self, operation: Callable[..., Any], *operands: Any) -> Any:
        if all(is_constant(operand) for operand in operands):
            self.step(sum(map(size_of, operands)) >> 6)
            found = operation(*operands)
            self.step(weight_of(found, MOST_STEPS))
            return found
        return Later.of(operation, operands)

    def _read_constant(self, node: ast.Constant, _: Scope) -> Any:
        if node.value is ...:
            raise UnsplittableError("Ellipsis")
        return node.value

    def _read_name(self, node: ast.Name, scope: Scope) -> Any:
        bound, value = scope.find(node.id)
        if bound:
            if self._recorder.has_exposed:
                self._check_unexposed(value)
            return value
        if node.id in _BUILTIN_NAMES:
            raise UnsplittableError("a builtin as a value")
        return self._recorder.add("name", node.id)

    def _check_unexposed(self, value: Any) -> None:
        self.step()
        if self._recorder.is_exposed(value):
            raise UnsplittableError("an argument is read again after the call that may have changed it")
        if isinstance(value, list | tuple | PlainSet):
            for part in value:
                self._check_unexposed(part)
        elif isinstance(value, PlainDict):
            for pair in value.items():
                self._check_unexposed(pair)

    def _read_list(self, node: ast.List, scope: Scope) -> Any:
        return self._apply(lambda *parts: list(parts), *self._all(node.elts, scope))

    def _read_tuple(self, node: ast.Tuple, scope: Scope) -> Any:
        return self._apply(lambda *parts: parts, *self._all(node.elts, scope))

    def _read_set(self, node: ast.Set, scope: Scope) -> Any:
        return self._apply(lambda *parts: PlainSet(parts), *self._all(node.elts, scope))

    def _read_dict(self, node: ast.Dict, scope: Scope) -> Any:
        keys = [key for key in node.keys if key is not None]
        if len(keys) < len(node.keys):
            raise UnsplittableError("unpacking")
        flat = [self.value(one, scope) for pair in zip(keys, node.values, strict=True) for one in pair]
        return self._apply(lambda *parts: PlainDict(zip(parts[::2], parts[1::2], strict=True)), *flat)

    def _all(self, nodes: list[ast.expr], scope: Scope) -> list[Any]:
        return [self.value(node, scope) for node in nodes]

    def _read_listcomp(self, node: ast.ListComp, scope: Scope) -> Any:
        found = [self.value(node.elt, each) for each in self.comprehended(node.generators, scope)]
        return self._apply(lambda *parts: list(parts), *found)

    def _read_setcomp(self, node: ast.SetComp, scope: Scope) -> Any:
        found = [self.value(node.elt, each) for each in self.comprehended(node.generators, scope)]
        return self._apply(lambda *parts: PlainSet(parts), *found)

    def _read_dictcomp(self, node: ast.DictComp, scope: Scope) -> Any:
        rounds = self.comprehended(node.generators, scope)
        return PlainDict([(self.constant(node.key, each), self.constant(node.value, each)) for each in rounds])

    def _read_generatorexp(self, node: ast.GeneratorExp, scope: Scope) -> Any:
        return [self.constant(node.elt, each) for each in self.comprehended(node.generators, scope)]

    def _read_unaryop(self, node: ast.UnaryOp, scope: Scope) -> Any:
        if isinstance(node.op, ast.Not):
            return self.truth(node, scope)
        return self._apply(UNARY[type(node.op).__name__], self.value(node.operand, scope))

    def _read_binop(self, node: ast.BinOp, scope: Scope) -> Any:
        operation = BINARY.get(type(node.op).__name__)
        if operation is None:
            raise UnsplittableError("operator")
        return self._apply(operation, self.value(node.left, scope), self.value(node.right, scope))

    def _read_boolop(self, node: ast.BoolOp, scope: Scope) -> Any:
        stops = isinstance(node.op, ast.Or)
        operands = [self.value(node.values[0], scope)]
        recorded = len(self._recorder.instructions)
        for other in node.values[1:]:
            if is_constant(operands[-1]) and bool(operands[-1]) == stops:
                break
            operands.append(self.value(other, scope))
        if len(self._recorder.instructions) > recorded:
            raise UnsplittableError("a call that Python may leave out")

        def decide(*found: Any) -> Any:
            return next((one for one in found if bool(one) == stops), found[-1])

        return self._apply(decide, *operands)

    def _read_compare(self, node: ast.Compare, scope: Scope) -> Any:
        operands = [self.value(node.left, scope), self._compared(node.ops[0], node.comparators[0], scope)]
        recorded = len(self._recorder.instructions)
        operands += [
            self._compared(kind, other, scope) for kind, other in zip(node.ops[1:], node.comparators[1:], strict=True)
        ]
        if len(self._recorder.instructions) > recorded:
            raise UnsplittableError("a call that Python may leave out")
        for place, kind in enumerate(node.ops):
            sides = operands[place : place + 2]
            if isinstance(kind, ast.Is | ast.IsNot) and not any(one is None or type(one) is bool for one in sides):
                raise UnsplittableError("identity")
        comparisons = [COMPARISONS[type(kind).__name__] for kind in node.ops]
        return self._apply(chained(comparisons), *operands)

    def _compared(self, kind: ast.cmpop, node: ast.expr, scope: Scope) -> Any:
        """The right side of a comparison. Behind `in` an iterator of the program is read inside."""
        found = self.read(node, scope)
        if isinstance(found, Register) and isinstance(kind, ast.In | ast.NotIn):
            found = self._recorder.add("apply", "contents", found.index)
        return self._operand(found)

    def _read_ifexp(self, node: ast.IfExp, scope: Scope) -> Any:
        return self.read(node.body if self.constant(node.test, scope) else node.orelse, scope)

    def _read_subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        base = self.read(node.value, scope)
        index = self._index(node.slice, scope)
        if isinstance(base, Register) and is_constant(index):
            return self._recorder.item(base, index)
        return self._apply(operator.getitem, self._operand(base), index)

    def _index(self, node: ast.expr, scope: Scope) -> Any:
        if not isinstance(node, ast.Slice):
            return self.value(node, scope)
        parts = (node.lower, node.upper, node.step)
        return slice(*[None if part is None else self.constant(part, scope) for part in parts])

    def _read_attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        base = self.read(node.value, scope)
        if isinstance(base, Module):
            return member(base.name, node.attr)
        if node.attr.startswith("_") or isinstance(base, SYMBOLS):
            raise UnsplittableError("attribute")
        if isinstance(base, Register) and node.attr not in _METHODS:
            return self._recorder.attribute(base, node.attr)
        operand = self._operand(base)
        if node.attr in TEXTS:
            return Pure(text_method(node.attr), (operand,))
        raise UnsplittableError(f"method {node.attr}")

    def _read_call(self, node: ast.Call, scope: Scope) -> Any:
        if isinstance(node.func, ast.Name) and not scope.find(node.func.id)[0] and node.func.id in _BUILTIN_NAMES:
            return self._builtin(node.func.id, node, scope)
        function = self.read(node.func, scope)
        arguments, keywords = self._arguments(node, scope)
        if isinstance(function, Register):
            return self._recorder.call(function, arguments, keywords)
        if isinstance(function, Function):
            return self._inline(function, arguments, keywords, scope)
        if isinstance(function, Pure):
            operands = [self._operand(one) for one in arguments]
            if not keywords:
                return self._apply(function.operation, *function.bound, *operands)
            if all(is_constant(one) for one in keywords.values()):
                return self._apply(lambda *found: function.operation(*found, **keywords), *function.bound, *operands)
        raise UnsplittableError("call")

    def _arguments(self, node: ast.Call, scope: Scope) -> tuple[list[Any], dict[str, Any]]:
        arguments: list[Any] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                arguments += self.elements(argument.value, scope)
            else:
                arguments.append(self.read(argument, scope))
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise UnsplittableError("unpacking")
            keywords[keyword.arg] = self.read(keyword.value, scope)
        return arguments, keywords

    def _builtin(self, name: str, node: ast.Call, scope: Scope) -> Any:
        if name == "isinstance" and len(node.args) == 2 and not node.keywords:
            return self._apply(is_instance(types_of(node.args[1])), self.value(node.args[0], scope))
        operation = BUILTINS.get(name)
        if operation is None and name not in INSIDE:
            raise UnsplittableError(f"builtin {name}")
        arguments, keywords = self._arguments(node, scope)
        if name in INSIDE and len(arguments) == 1 and not keywords and isinstance(arguments[0], Register):
            return self._recorder.add("apply", name, arguments[0].index)
        if name == "sorted" and len(arguments) == 1 and isinstance(arguments[0], Register):
            arguments = [self._recorder.add("apply", "list", arguments[0].index)]
        if operation is None or not all(is_constant(one) for one in keywords.values()):
            raise UnsplittableError(f"builtin {name}")
        self.builtin_calls += 1
        operands = [self._operand(one) for one in arguments]
        if name in _ONLY_CONSTANTS and not all(is_constant(one) for one in operands):
            raise UnsplittableError(f"builtin {name}")
        return self._apply(lambda *found: operation(*found, **keywords), *operands)
