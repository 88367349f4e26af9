"""Rules of executors: who may name their resources, and what a declaration of kinds may import."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from typing import Final

from tests.architecture.source import Finding, Module

RESOURCES: Final = ("cores", "slots", "memory_mb", "starts", "calls", "gpus")
"""Resources of the managers, written here independently of its declarations."""

COMMON: Final = (["shared"], ["services", "proxy"], ["services", "scaling_planner"])
"""Packages that work with the resources of every executor."""

MAY_NAME: Final[dict[str, str]] = {
    "services/proxy/http/openapi/examples.py": "examples of bodies in the OpenAPI document",
    "services/proxy/http/openapi/kinds.py": "examples of `units` in the OpenAPI document",
}
"""Modules that may name them, each with the reason."""

DECLARATIONS: Final = ("msgspec", "shared.kinds", "shared.messages", "shared.policy", "shared.runtime")
"""Packages that a module `kinds` may import, beside the standard library."""


def resources_are_named_by_their_executors(module: Module) -> Iterator[Finding]:
    """A resource is named by the executor that declares it; all other code reads the name from a declaration."""
    if not any(module.package[: len(package)] == package for package in COMMON) or module.path in MAY_NAME:
        return
    yield from named_resources(module)


def named_resources(module: Module) -> Iterator[Finding]:
    """Yield texts that name a resource (`cores`) or a pool of it (`cores@any`)."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition("@")[0]
            if name in RESOURCES:
                yield module.found(node, f"names the resource {name!r}: read it from a KindSpec (shared/kinds)")


def declarations_import_only_shared(module: Module) -> Iterator[Finding]:
    """`services/<name>/kinds.py` is loaded by every process, so it imports nothing of its service."""
    parts = module.path.split("/")
    if parts[0] != "services" or parts[2:] != ["kinds.py"]:
        return
    for node, name in module.imports():
        if name.split(".")[0] not in sys.stdlib_module_names and not any(
            name == allowed or name.startswith(f"{allowed}.") for allowed in DECLARATIONS
        ):
            yield module.found(node, f"imports {name}: a declaration imports only {', '.join(DECLARATIONS)}")
