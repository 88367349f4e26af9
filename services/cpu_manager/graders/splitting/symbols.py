"""Values that exist only while a text is read: functions of the tests, modules, builtins."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from services.cpu_manager.graders.splitting.plan import UnsplittableError

MOST_STEPS: Final = 50_000
"""Expressions and statements read for one text, loops unrolled."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the tests define; calls of it are read in place."""

    node: ast.FunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """A module that the tests import."""

    name: str


@dataclass(frozen=True, slots=True)
class Pure:
    """A function without side effects that is applied outside."""

    operation: Callable[..., Any]
    bound: tuple[Any, ...] = ()
    """Its first operands: the object of a method."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A name that the tests import and the splitter does not know. Using it is unsplittable."""

    name: str


SYMBOLS: Final = Function | Module | Pure | Foreign


@dataclass(slots=True)
class Scope:
    """Names of the tests. Names that they do not bind belong to the builtins or to the program."""

    shared: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    local: dict[str, Any] | None = None
    calls: int = 0
    """Functions of the tests inside each other."""

    def find(self, name: str) -> tuple[bool, Any]:
        """Whether the tests bind the name, and to which value."""
        for names in (self.local, self.shared):
            if names is not None and name in names:
                return True, names[name]
        return False, None

    def bind(self, name: str, value: Any) -> None:
        """An assignment, in the innermost scope."""
        (self.shared if self.local is None else self.local)[name] = value

    def inside(self, arguments: dict[str, Any]) -> Scope:
        """The scope of a called function."""
        if self.calls >= 20:
            raise UnsplittableError("calls nested too deeply")
        return Scope(self.shared, arguments, self.calls + 1)
