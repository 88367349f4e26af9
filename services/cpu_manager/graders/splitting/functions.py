"""Functions that are applied outside, by the names that the tests use for them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from services.cpu_manager.graders.splitting.operators import MATHS, TYPES, TooCostlyError
from services.cpu_manager.graders.splitting.plan import UnsplittableError
from services.cpu_manager.graders.splitting.symbols import Pure


def member(module: str, name: str) -> Any:
    """A member of a module that the splitter knows."""
    if module != "math" or name not in MATHS:
        raise UnsplittableError(f"{module}.{name}")
    found = MATHS[name]
    return Pure(found) if callable(found) else found


def chained(comparisons: list[Callable[..., Any]]) -> Callable[..., Any]:
    """`a < b < c`: stops at the first comparison that is false."""

    def compare(*operands: Any) -> Any:
        found: Any = True
        for place, comparison in enumerate(comparisons):
            found = comparison(operands[place], operands[place + 1])
            if not found:
                break
        return found

    return compare


def types_of(node: ast.expr) -> tuple[type, ...]:
    """The second argument of `isinstance`."""
    names = node.elts if isinstance(node, ast.Tuple) else [node]
    found: list[type] = []
    for name in names:
        if not isinstance(name, ast.Name) or name.id not in TYPES:
            raise UnsplittableError("isinstance")
        found += TYPES[name.id]
    return tuple(found)


def is_instance(types: tuple[type, ...]) -> Callable[[Any], bool]:
    """`isinstance` with these types."""
    return lambda value: isinstance(value, types)


def text_method(name: str) -> Callable[..., Any]:
    """A method of text, whose object comes first."""

    def call(text: Any, *operands: Any) -> Any:
        if not isinstance(text, str | bytes):
            raise AttributeError(f"{type(text).__name__!r} object has no attribute {name!r}")
        if len(text) > 1 << 20:
            raise TooCostlyError
        return getattr(text, name)(*operands)

    return call
