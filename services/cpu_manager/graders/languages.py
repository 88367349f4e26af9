"""Names of languages: the names that clients use, and the canonical name of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

ALIASES: Final[Mapping[str, str]] = {
    "py": "python",
    "python3": "python",
    "py3": "python",
    "js": "javascript",
    "node": "javascript",
    "nodejs": "javascript",
    "ts": "typescript",
    "c++": "cpp",
    "cxx": "cpp",
    "cc": "cpp",
    "golang": "go",
    "rs": "rust",
    "sh": "bash",
    "shell": "bash",
}
"""Alias -> canonical name. SandboxFusion calls JavaScript `nodejs`; model fences say `python3`, `js`, `c++`, `sh`."""


def canonical(language: str) -> str:
    """Return the canonical name of a language, whatever its case or alias; an unknown name in lower case."""
    name = language.strip().lower()
    return ALIASES.get(name, name)


def missing(language: str, available: Iterable[str]) -> str:
    """Return the message for a language without a toolchain here; it must not look like a compile error."""
    have = ", ".join(sorted(available)) or "none"
    return f"This node has no toolchain for {language!r} (it has: {have}). Send the action to a node that has one."
