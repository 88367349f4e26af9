"""Declarations of services that execute actions: kinds of actions, runtimes of environments.

A service that executes actions declares them in its module `kinds`: `KINDS`, and if it creates environments also
`RUNTIMES` and `RESOURCES` (`shared.kinds.registry`). Everything else reads these declarations; only the generated types
of the client name the kinds, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

PLACE: Final = "{dop}"
"""Place in a command or line that is replaced by the number of granted units."""


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every kind's parameters. Unknown fields are rejected, so that a misspelt limit is not ignored."""


def parameter(params: Mapping[str, Any] | Params, name: str) -> Any:
    """Return a parameter as it was given, decoded or as JSON; None if it is missing."""
    return getattr(params, name) if isinstance(params, Params) else params.get(name)


@dataclass(frozen=True, slots=True)
class Requirement:
    """Resource of which a kind needs at least one unit."""

    resource: str
    why: str
    """For callers, after the name of the kind: `runs in a sandbox and needs a core`."""
    parameter: str = ""
    """Only if this parameter is given; empty: always."""

    def applies(self, params: Mapping[str, Any] | Params) -> bool:
        """Return whether an action with these parameters has the requirement."""
        if not self.parameter:
            return True
        return parameter(params, self.parameter) is not None


@dataclass(frozen=True, slots=True)
class ArtifactUse:
    """A kind makes or takes an artifact: bytes that a stage leaves for later stages of its action (ADR 0074)."""

    parameter: str = ""
    """Only if this parameter is given; empty: always."""

    def applies(self, params: Mapping[str, Any] | Params) -> bool:
        """Return whether a stage with these parameters makes or takes one."""
        return not self.parameter or parameter(params, self.parameter) is not None


@dataclass(frozen=True, slots=True)
class Preparation:
    """Stage that is put before an action of a kind, outside of tasks. It makes the artifact that the kind takes."""

    kind: str
    stage: str
    """Name of that stage."""
    params: type[Params]
    """Parameters of such an action: those of both kinds."""


@dataclass(frozen=True, slots=True, eq=False)
class KindSpec:
    """One action kind. Declared once, so that identity is equality."""

    name: str
    params: type[Params]
    service: str
    """Package in `services` that executes it and declares it."""
    units: Mapping[str, int]
    """Default units."""
    resources: tuple[str, ...]
    """Resources of which pools of this kind count units, most important first. The last one is the pool's resource of
    actions that take no units."""
    repeatable: bool = True
    """A second execution changes nothing outside, so the action is executed again after a lost attempt."""
    environment: bool = False
    """It acts in a trajectory's environment, and is allowed nowhere else."""
    requirement: Requirement | None = None
    free_form: tuple[str, ...] = ()
    """Parameters that may hold any JSON."""
    repeatable_by: str = ""
    """Parameter of a repeatable kind: an action for which it is false is not repeatable. Empty: there is none."""
    places: Callable[[Mapping[str, Any]], Mapping[str, frozenset[str]]] | None = None
    """Of parameters, returns parameter -> names of its places that the parameter `values` fills. None: it has none."""
    sizes: tuple[int, ...] = ()
    """Amounts of its first resource that a node can grant together. Empty: all."""
    service_by: str = ""
    """Parameter with the name of the model service that an action uses. Empty: it uses none."""
    uses_service: str = ""
    """Model service that all of its actions use. Empty: the one that `service_by` names."""
    makes_artifact: ArtifactUse | None = None
    """Its stages leave an artifact if they pass. None: they leave none."""
    takes_artifact: ArtifactUse | None = None
    """Its stages need the artifact of an earlier stage. None: they need none."""
    prepared_by: Preparation | None = None
    """Stage before an action of this kind. None: such an action has one stage."""
    check: Callable[[Mapping[str, Any]], None] | None = None
    """Raises ValueError for parameters of a template that no request makes valid. They have their types."""
    decoder: msgspec.json.Decoder[Params] = field(init=False, repr=False)
    """Decoder of its parameters."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "decoder", msgspec.json.Decoder(self.params))

    def repeats(self, params: Mapping[str, Any] | Params) -> bool:
        """Return whether an action with these parameters is executed again after a lost attempt."""
        if not self.repeatable or not self.repeatable_by:
            return self.repeatable
        return parameter(params, self.repeatable_by) is not False

    def service_of(self, params: Mapping[str, Any] | Params) -> str:
        """Return the model service that an action with these parameters uses; empty if it uses none."""
        return str(parameter(params, self.service_by)) if self.service_by else self.uses_service

    def makes(self, params: Mapping[str, Any] | Params) -> bool:
        """Return whether a stage with these parameters leaves an artifact."""
        return self.makes_artifact is not None and self.makes_artifact.applies(params)

    def takes(self, params: Mapping[str, Any] | Params) -> bool:
        """Return whether a stage with these parameters needs an artifact."""
        return self.takes_artifact is not None and self.takes_artifact.applies(params)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of its parameters, in order."""
        return self.params.__struct_fields__

    def pool(self, units: Mapping[str, object], node_class: str) -> str:
        """Return the pool of an action that takes these resources: `<resource>@<node class>`.

        Its resource is the first of `resources` that the action takes, else the first that it takes.
        """
        for resource in self.resources:
            if resource in units:
                return f"{resource}@{node_class}"
        return f"{next(iter(units), self.resources[-1])}@{node_class}"


def runtime_kind(name: str) -> str:
    """Return the kind that a node offers if it has this runtime, beside the action kinds that it executes."""
    return f"runtime.{name}"


@dataclass(frozen=True, slots=True)
class RuntimeSpec:
    """One runtime of environments."""

    name: str
    holds: Mapping[str, str | int]
    """Resource -> units that an environment holds: the field of its specification with their number, or the number."""
    images: bool = False
    """It creates environments of container images; otherwise of `shared.messages.environments.LOCAL`."""

    @property
    def kind(self) -> str:
        """Kind that a node with this runtime offers."""
        return runtime_kind(self.name)

    def units(self, spec: object) -> dict[str, int]:
        """Return the units that an environment of this specification holds while it is created."""
        return {name: each if isinstance(each, int) else getattr(spec, each) for name, each in self.holds.items()}
