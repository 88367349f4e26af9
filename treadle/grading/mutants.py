"""Seeded mutants of a Python function: programs that are nearly right, like those of a model in training.

A mutant changes one place of the function (two or more if it has too few places): an operator, a comparison, a
constant, a boundary, a condition, a result. Some mutants are equivalent to the original and pass its tests, as happens
in a real group of samples. An endless mutant never returns.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

MOST_TRIES: Final = 24
"""Attempts per mutant. If a changed text is not new, changes are drawn again; more at once after eight attempts."""

OPERATORS: Final[dict[type[ast.operator], tuple[type[ast.operator], ...]]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.FloorDiv),
    ast.Div: (ast.FloorDiv, ast.Mult),
    ast.FloorDiv: (ast.Div, ast.Sub),
    ast.Mod: (ast.FloorDiv, ast.Add),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr,),
}
COMPARISONS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}


class Mutant(NamedTuple):
    """A changed program."""

    code: str
    change: str
    """Description of the change, e.g. `Lt -> LtE in line 4`."""


class Change(NamedTuple):
    """One possible change of a tree, made in place."""

    what: str
    make: Callable[[], None]


def mutants(source: str, entry_point: str, count: int, rng: random.Random) -> list[Mutant]:
    """Return `count` different mutants, all different from the source too.

    Args:
        source: a module that defines `entry_point` at its top level.
        rng: makes all choices; the same state gives the same mutants.
    Raises:
        ValueError: the module does not define the function.
    """
    seen = {ast.unparse(ast.parse(source))}
    made: list[Mutant] = []
    while len(made) < count:
        mutant = _another(source, entry_point, seen, rng)
        seen.add(mutant.code)
        made.append(mutant)
    return made


def endless(source: str, entry_point: str) -> Mutant:
    """Return the program with an endless loop at the beginning of the function.

    Raises:
        ValueError: the module does not define the function.
    """
    tree = ast.parse(source)
    body = _function(tree, entry_point).body
    body.insert(_first_statement(body), ast.parse("while True:\n    pass").body[0])
    return Mutant(ast.unparse(ast.fix_missing_locations(tree)), "endless loop")


def _another(source: str, entry_point: str, seen: set[str], rng: random.Random) -> Mutant:
    for attempt in range(MOST_TRIES):
        tree = ast.parse(source)
        done = []
        for _ in range(1 + attempt // 8):
            changes = list(_changes(_function(tree, entry_point)))
            if not changes:
                break
            change = rng.choice(changes)
            change.make()
            done.append(change.what)
        code = ast.unparse(ast.fix_missing_locations(tree))
        if code not in seen:
            return Mutant(code, ", ".join(done))
    return _gives_up(source, entry_point, seen)


def _gives_up(source: str, entry_point: str, seen: set[str]) -> Mutant:
    """Return a function that returns a number at once. Used when there are no new changes; there are enough numbers."""
    for number in range(len(seen) + 1):
        tree = ast.parse(source)
        body = _function(tree, entry_point).body
        body.insert(_first_statement(body), ast.Return(ast.Constant(number)))
        code = ast.unparse(ast.fix_missing_locations(tree))
        if code not in seen:
            return Mutant(code, f"returns {number}")
    raise AssertionError("more numbers were tried than programs have been seen")


def _function(tree: ast.Module, entry_point: str) -> ast.FunctionDef:
    """Return the effective definition: the last one of that name."""
    for node in reversed(tree.body):
        if isinstance(node, ast.FunctionDef) and node.name == entry_point:
            return node
    raise ValueError(f"the module does not define {entry_point}")


def _first_statement(body: list[ast.stmt]) -> int:
    """Return the index of the first statement after the docstring."""
    first = body[0]
    return int(
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )


def _changes(function: ast.FunctionDef) -> Iterator[Change]:
    """Yield every possible change of the function's body, in the order of `ast.walk` over its statements."""
    for statement in function.body[_first_statement(function.body) :]:
        for node in ast.walk(statement):
            yield from _changes_of(node)


def _changes_of(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.BinOp() | ast.AugAssign():
            yield from _operators(node)
        case ast.Compare():
            yield from _comparisons(node)
        case ast.BoolOp():
            other = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield _set(node, "op", other(), f"{type(node.op).__name__} -> {other.__name__}")
        case ast.If() | ast.IfExp() | ast.While():
            yield _set(node, "test", ast.UnaryOp(ast.Not(), node.test), "condition turned round")
        case ast.Return(value=ast.expr()):
            yield _set(node, "value", ast.Constant(None), "result dropped")
        case ast.Constant():
            yield from _constants(node)
        case ast.Call(func=ast.Name(id="range"), args=[*_, _]):
            yield from _boundaries(node)


def _operators(node: ast.BinOp | ast.AugAssign) -> Iterator[Change]:
    for other in OPERATORS.get(type(node.op), ()):
        yield _set(node, "op", other(), f"{type(node.op).__name__} -> {other.__name__}")


def _comparisons(node: ast.Compare) -> Iterator[Change]:
    for place, comparison in enumerate(node.ops):
        for other in COMPARISONS.get(type(comparison), ()):
            ops = [*node.ops[:place], other(), *node.ops[place + 1 :]]
            yield _set(node, "ops", ops, f"{type(comparison).__name__} -> {other.__name__}")


def _constants(node: ast.Constant) -> Iterator[Change]:
    value = node.value
    if isinstance(value, bool):
        yield _set(node, "value", not value, f"{value} -> {not value}")
    elif isinstance(value, (int, float)):
        for other in (value + 1, value - 1):
            yield _set(node, "value", other, f"{value} -> {other}")
    elif isinstance(value, str):
        other_text = value[1:] if value else "x"
        yield _set(node, "value", other_text, f"{value!r} -> {other_text!r}")


def _boundaries(call: ast.Call) -> Iterator[Change]:
    """Yield changes of `range(a, b)` to `range(a, b - 1)` and `range(a, b + 1)`."""
    place = min(1, len(call.args) - 1)
    for operator, sign in ((ast.Add, "+"), (ast.Sub, "-")):
        bound = ast.BinOp(copy.deepcopy(call.args[place]), operator(), ast.Constant(1))
        args = [*call.args[:place], bound, *call.args[place + 1 :]]
        yield _set(call, "args", args, f"range ends {sign} 1")


def _set(node: ast.AST, field: str, value: object, what: str) -> Change:
    line = getattr(node, "lineno", None)
    return Change(f"{what} in line {line}" if line else what, lambda: setattr(node, field, value))
