"""The source tree as the architecture's rules read it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class Finding:
    """A line that breaks a rule; as text it is what an editor jumps to."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


@dataclass(frozen=True)
class Module:
    """One Python file of the tree."""

    root: Path
    path: str
    """Relative to the root, with slashes."""

    @cached_property
    def text(self) -> str:
        return (self.root / self.path).read_text("utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def package(self) -> list[str]:
        """The packages that hold it, outermost first."""
        return self.path.split("/")[:-1]

    def found(self, node: ast.AST, what: str) -> Finding:
        return Finding(self.path, getattr(node, "lineno", 1), what)

    def imports(self) -> Iterator[tuple[ast.AST, str]]:
        """Every import wherever it stands, with its absolute dotted name: `from a import b` is `a.b`."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self.package[: len(self.package) - node.level + 1] if node.level else []
                source = ".".join([*base, *([node.module] if node.module else [])])
                yield from ((node, f"{source}.{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Call) and dotted(node.func) in ("importlib.import_module", "__import__"):
                yield from ((node, str(name.value)) for name in node.args[:1] if isinstance(name, ast.Constant))


def modules(root: Path, *folders: str) -> list[Module]:
    """The Python files under these folders, in order."""
    files = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    return [Module(root, path.relative_to(root).as_posix()) for path in files if "__pycache__" not in path.parts]


def dotted(node: ast.expr) -> str:
    """`a.b.c` for names and attributes of names; what an expression in between returns is `?`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"
