"""Registry of all declared kinds, runtimes and resources.

A package in `services` contributes by having a module `kinds`; nothing lists these packages (ADR 0051). The module only
declares, and imports only `shared`, so that every process may load it without loading the service.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from shared.kinds.spec import KindSpec, RuntimeSpec
from shared.messages.environments import LOCAL, EnvironmentSpec
from shared.policy.resources.resource import ResourceSpec, Specs, lasting
from shared.runtime.errors import SHOWN_CHARS

SERVICES: Final = "services"
"""Package whose packages may declare kinds."""
MODULE: Final = "kinds"


class UnknownKind(ValueError):
    """No service declares this kind. The message lists the declared ones."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """Declarations of all services."""

    plain: Mapping[str, KindSpec]
    """Kinds of plain actions and of stages of reward requests."""
    in_environments: Mapping[str, KindSpec]
    """Kinds for a trajectory's environment."""
    runtimes: tuple[RuntimeSpec, ...] = ()
    resources: Specs = field(default_factory=dict)
    """Resources with properties of their own."""

    @classmethod
    def of(
        cls, specs: Iterable[KindSpec], runtimes: Iterable[RuntimeSpec] = (), resources: Iterable[Specs] = ()
    ) -> Kinds:
        """Return the registry of these declarations.

        Args:
            specs: kinds of all services.
            runtimes: of all services.
            resources: one mapping for each service.

        Raises:
            ValueError: two kinds or two resources have one name, or two runtimes create environments of one image.
        """
        known: dict[str, KindSpec] = {}
        for spec in specs:
            if spec.name in known:
                raise ValueError(f"{known[spec.name].service} and {spec.service} both declare the kind {spec.name!r}")
            known[spec.name] = spec
        creators: dict[bool, RuntimeSpec] = {}
        for runtime in runtimes:
            other = creators.setdefault(runtime.images, runtime)
            if other is not runtime:
                images = "container images" if runtime.images else f"the image {LOCAL!r}"
                raise ValueError(
                    f"the runtimes {other.name!r} and {runtime.name!r} both create environments of {images}"
                )
        declared: dict[str, ResourceSpec] = {}
        for each in resources:
            if twice := sorted(declared.keys() & each.keys()):
                raise ValueError(f"two services declare the resource {twice[0]!r}")
            declared |= each
        return cls(
            {name: spec for name, spec in known.items() if not spec.environment},
            {name: spec for name, spec in known.items() if spec.environment},
            tuple(creators.values()),
            declared,
        )

    def kind(self, name: str) -> KindSpec:
        """Return a kind of plain actions.

        Raises:
            UnknownKind: there is none of this name.
        """
        spec = self.plain.get(name)
        if spec is None:
            raise UnknownKind(f"unknown kind {name[:SHOWN_CHARS]!r}; there are {', '.join(self.plain)}")
        return spec

    def environment_kind(self, name: str) -> KindSpec:
        """Return a kind for environments.

        Raises:
            UnknownKind: there is none of this name.
        """
        spec = self.in_environments.get(name)
        if spec is None:
            shown = name[:SHOWN_CHARS]
            raise UnknownKind(f"unknown kind {shown!r}; in a trajectory there are {', '.join(self.in_environments)}")
        return spec

    @property
    def held(self) -> frozenset[str]:
        """Resources that environments hold, and never an action alone. No pool counts them."""
        return frozenset(name for name, spec in self.resources.items() if spec.held_by != "action")

    def runtime(self, image: str) -> RuntimeSpec:
        """Return the runtime that creates environments of this image.

        Raises:
            LookupError: no service declares one.
        """
        for runtime in self.runtimes:
            if runtime.images == (image != LOCAL):
                return runtime
        raise LookupError(f"no service declares a runtime for the image {image!r}")

    def can_create(self, image: str) -> bool:
        """Return whether a service declares a runtime for environments of this image."""
        return any(runtime.images == (image != LOCAL) for runtime in self.runtimes)

    def held_units(self, spec: EnvironmentSpec) -> dict[str, int]:
        """Return the units that an environment holds of its node while it is created."""
        return self.runtime(spec.image).units(spec)

    def lasting_units(self, spec: EnvironmentSpec) -> dict[str, int]:
        """Return the units that an environment holds of its node until its end."""
        return lasting(self.resources, self.held_units(spec))


@functools.cache
def all_kinds() -> Kinds:
    """Return the declarations of the services of this distribution. Loaded at the first call, about 20 ms.

    Raises:
        ValueError: as `Kinds.of`, or a kind names another service than the package that declares it.
    """
    specs: list[KindSpec] = []
    runtimes: list[RuntimeSpec] = []
    resources: list[Specs] = []
    for name in declaring_modules():
        module, service = importlib.import_module(name), name.split(".")[1]
        for spec in module.KINDS:
            if spec.service != service:
                raise ValueError(f"{name} declares the kind {spec.name!r} of another service: {spec.service!r}")
        specs += module.KINDS
        runtimes += getattr(module, "RUNTIMES", ())
        resources.append(getattr(module, "RESOURCES", {}))
    return Kinds.of(specs, runtimes, resources)


def declaring_modules() -> list[str]:
    """Return the modules that declare kinds: `services.<name>.kinds`, sorted."""
    package = importlib.import_module(SERVICES)
    names = (f"{SERVICES}.{info.name}.{MODULE}" for info in pkgutil.iter_modules(package.__path__) if info.ispkg)
    return sorted(name for name in names if importlib.util.find_spec(name) is not None)
