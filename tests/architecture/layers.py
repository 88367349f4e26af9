"""The layers: which package may import which. Whatever is not named here may not be imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.architecture.source import Finding, Module

_BASE: Final = ("shared.policy", "shared.runtime")

LAYERS: Final[dict[str, tuple[str, ...]]] = {
    "shared.policy": (),
    "shared.policy.model": (),
    "shared.policy.order": ("shared.policy.model",),
    "shared.policy.resources": ("shared.policy.model", "shared.policy.order"),
    "shared.policy.elastic": ("shared.policy.model", "shared.policy.resources"),
    "shared.policy.dispatch": (
        "shared.policy.model",
        "shared.policy.order",
        "shared.policy.resources",
        "shared.policy.elastic",
    ),
    "shared.policy.scaling": ("shared.policy.model", "shared.policy.order"),
    "shared.policy.routing": ("shared.policy.model",),
    "shared.policy.serving": ("shared.policy.model",),
    "shared.runtime": (),
    "shared.tokens": (),
    "shared.walls": (),
    "shared.messages": _BASE,
    "shared.kinds": (*_BASE, "shared.messages"),
    "shared.model_services": (*_BASE, "shared.messages", "shared.kinds"),
    "shared.api": (*_BASE, "shared.messages", "shared.kinds", "shared.tokens"),
    "shared.bus": (*_BASE, "shared.messages", "shared.model_services", "shared.api"),
    "shared.store": (*_BASE, "shared.messages", "shared.api", "shared.bus", "shared.tokens"),
    "shared.node": (*_BASE, "shared.messages", "shared.bus"),
    "services.proxy.records": ("shared", "services.proxy.metrics", "services.proxy.settings"),
    "services.proxy.leader": ("shared", "services.proxy.metrics", "services.proxy.settings", "services.proxy.records"),
    "services": ("shared", "services"),
    "treadle.client": (),
    "treadle": ("shared", "treadle"),
}
"""Package -> what it may import of ours beside itself. The longest name that fits a module counts."""

OURS: Final = ("shared", "services", "treadle", "tests", "scripts", "alembic.versions")


def layers_are_kept(module: Module) -> Iterator[Finding]:
    """Imports lead downwards: policy and runtime at the bottom, services and `treadle` at the top."""
    own = ".".join([*module.package, module.path.rsplit("/", 1)[-1].removesuffix(".py")])
    layer = max((name for name in LAYERS if within(own, name)), key=len, default="")
    if not layer:
        if module.package[:1] == ["shared"] and module.package != ["shared"]:
            yield Finding(module.path, 1, f"{own} belongs to no layer: add it to LAYERS")
        return
    for node, name in module.imports():
        if any(within(name, ours) for ours in OURS) and not any(within(name, to) for to in (layer, *LAYERS[layer])):
            yield module.found(node, f"{layer} imports {name}: it may import {', '.join(LAYERS[layer]) or 'nothing'}")


def within(name: str, package: str) -> bool:
    """Return whether a dotted name is a package or a module in it."""
    return name == package or name.startswith(f"{package}.")
