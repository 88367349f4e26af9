"""Names while a text is read."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from services.cpu_manager.graders.splitting.plan import Later, Register, Sent, UnsplittableError

BUILTIN_NAMES: Final = frozenset(dir(builtins))


@dataclass(frozen=True, slots=True)
class Hidden:
    """A name of the tests that cannot be read as a value: `check`, `METADATA`, the module `math`."""

    name: str


@dataclass(frozen=True, slots=True)
class Pure:
    """A function of the module `math`."""

    operation: Callable[..., Any]


def is_constant(value: Any) -> bool:
    """Return True for plain data that is known while the text is read."""
    return not isinstance(value, Register | Sent | Later | Hidden | Pure)


@dataclass(slots=True)
class Scope:
    """Names of the tests. Names that the tests do not bind belong to the builtins or to the program."""

    shared: dict[str, Any]
    """Names of the module: imports and definitions."""
    local: dict[str, Any]
    """Names of the function, and of comprehensions."""
    declared: frozenset[str] = frozenset()
    """Every name that the function binds somewhere: it is local from the first line on."""

    def find(self, name: str) -> tuple[bool, Any]:
        """Return whether the tests bind the name, and its value."""
        if name in self.local:
            return True, self.local[name]
        if name in self.declared:
            raise UnsplittableError("a local name before its binding")
        return name in self.shared, self.shared.get(name)

    def is_builtin(self, name: str) -> bool:
        """Return True if the name refers to the builtin."""
        return name in BUILTIN_NAMES and not self.find(name)[0]

    def inner(self) -> Scope:
        """Return the scope of a comprehension."""
        return Scope(self.shared, dict(self.local), self.declared)


def bind(target: ast.expr, value: Any, names: dict[str, Any]) -> None:
    """Bind a name, or the names of a pattern."""
    if isinstance(target, ast.Name):
        names[target.id] = value
        return
    if not isinstance(target, ast.Tuple | ast.List) or not isinstance(value, list | tuple):
        raise UnsplittableError("assignment")
    if len(target.elts) != len(value):
        raise UnsplittableError("assignment")
    for inner, part in zip(target.elts, value, strict=True):
        bind(inner, part, names)
