"""The one place that turns (kind, parameters, units) into a stage as the journal stores it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import msgspec

from shared.kinds.formulation import Amount, Formulation, Learned, amounts_of, formulated
from shared.kinds.plain import check_plain
from shared.kinds.spec import KindSpec, Params, parameter
from shared.messages.actions import StageWork
from shared.policy.model.quotas import NO_QUOTAS
from shared.runtime.errors import SHOWN_CHARS, BadRequest
from shared.runtime.validation import decoded


class StageForm(NamedTuple):
    """A kind with its units: everything of a stage that does not depend on a request's parameters."""

    spec: KindSpec
    pool: str
    """Pool in which its actions queue, `<resource>@<node class>`."""
    formulation: Formulation

    @classmethod
    def of(
        cls,
        spec: KindSpec,
        units: Mapping[str, Amount] | None = None,
        scaling: Mapping[Any, Any] | None = None,
        node_class: str = "default",
    ) -> StageForm:
        """Return the form of a kind with these units; None: the kind's default units.

        Raises:
            ValueError: units that cannot be granted, or an invalid elasticity.
        """
        if units is None and not scaling:
            return _default_form(spec, node_class)
        taken = spec.units if units is None else units
        pool = spec.pool(taken, node_class)
        return cls(spec, pool, formulated(taken, scaling or {}, pool))

    @property
    def fewest(self) -> int:
        """Fewest units of the pool's resource."""
        return self.formulation.cost.get(self.pool.partition("@")[0], (0, 0))[0]

    def check_units(self, params: Mapping[str, Any] | Params, what: str = "") -> None:
        """Reject units with which nodes would always reject the action.

        Args:
            params: all parameters of a request, or those of a task.
            what: name of the stage for the message; empty: the kind.

        Raises:
            ValueError: with these parameters the kind needs a unit of a resource, and there is none; or no node can
                grant the fewest units together.
        """
        if self.spec.sizes:
            self._check_sizes(what)
        required, cost = self.spec.requirement, self.formulation.cost
        if required is None or cost.get(required.resource, (0, 0))[0] >= 1 or not required.applies(params):
            return
        units = {name: fewest for name, (fewest, _) in cost.items()}
        raise ValueError(f"{what or self.spec.name} {required.why}; its `units` are {units}")

    def _check_sizes(self, what: str) -> None:
        resource, sizes = self.spec.resources[0], self.spec.sizes
        fewest = self.formulation.cost.get(resource, (0, 0))[0]
        for amount in self.formulation.amounts or (fewest,):
            if amount and amount not in sizes:
                listed = ", ".join(map(str, sizes))
                raise ValueError(f"{what or self.spec.name}: units.{resource}: {amount} is none of {listed}")

    def stage(
        self,
        params: bytes,
        *,
        timeout_s: float,
        name: str = "run",
        duration_s: float | None = None,
        timeout_score: float | None = None,
        error_score: float = 0.0,
        exception_score: float | None = None,
        quotas: Mapping[str, float] = NO_QUOTAS,
        repeatable: bool | None = None,
        service: str = "",
    ) -> StageWork:
        """Return the stage.

        Args:
            params: JSON that has been checked.
            repeatable: `KindSpec.repeats` of these parameters; None: that of the kind.
            service: model service that it uses.
        """
        return StageWork(
            name=name,
            kind=self.spec.name,
            pool=self.pool,
            cost=self.formulation.cost,
            timeout_s=timeout_s,
            params=params,
            repeatable=self.spec.repeatable if repeatable is None else repeatable,
            timeout_score=timeout_score,
            amounts=self.formulation.amounts,
            elasticity=self.formulation.elasticity,
            duration_s=duration_s,
            error_score=error_score,
            exception_score=exception_score,
            quotas=dict(quotas),
            service=service,
        )


@lru_cache(maxsize=256)
def _default_form(spec: KindSpec, node_class: str) -> StageForm:
    """Return the form of a kind with its default units. Cached, because most actions have them."""
    pool = spec.pool(spec.units, node_class)
    return StageForm(spec, pool, formulated(spec.units, {}, pool))


def check_free_form(spec: KindSpec, params: Mapping[str, Any]) -> None:
    """Check the parameters that may hold any JSON.

    Raises:
        ValueError: one of them cannot be written as JSON again, or its nesting is too deep.
    """
    for name in spec.free_form:
        if name in params:
            check_plain(params[name], name)


class SingleAction(Protocol):
    """One action as a caller sends it: plain, or in a trajectory's environment."""

    @property
    def params(self) -> msgspec.Raw: ...
    @property
    def units(self) -> Mapping[str, Any] | None: ...
    @property
    def elasticity(self) -> Mapping[str, float | str]: ...
    @property
    def duration_s(self) -> float | None: ...
    @property
    def quotas(self) -> Mapping[str, float | Learned]: ...
    @property
    def timeout_s(self) -> float: ...


def single_stage(spec: KindSpec, request: SingleAction, node_class: str, *, prepared: bool = False) -> StageWork:
    """Return the only stage of an action; its last one if it is prepared by another, which makes its artifact.

    Raises:
        BadRequest: its parameters or its units are invalid, its units do not suffice, or it takes an artifact that no
            stage makes.
    """
    params = decoded(spec.decoder, request.params, f"params of {spec.name}")
    if spec.free_form:
        try:
            check_free_form(spec, msgspec.structs.asdict(params))
        except ValueError as error:
            raise BadRequest(what=f"params of {spec.name}: {error}") from error
    if spec.places is not None and (values := parameter(params, "values")):
        found = frozenset[str]().union(*spec.places(msgspec.structs.asdict(params)).values())
        if unused := values.keys() - found:
            listed = ", ".join(f"{{{name}}}" for name in sorted(found)) or "none"
            shown = min(unused)[:SHOWN_CHARS]
            raise BadRequest(what=f"params of {spec.name}: `values` has {shown!r} without a place; there is {listed}")
    try:
        form = StageForm.of(spec, request.units, request.elasticity, node_class)
        form.check_units(params)
        if spec.takes(params) and not prepared:
            raise ValueError(
                f"{spec.name} takes an artifact, and no stage is before it; declare a task with both stages"
            )
        quotas = amounts_of(request.quotas) if request.quotas else NO_QUOTAS
    except ValueError as error:
        raise BadRequest(what=str(error)) from error
    return form.stage(
        bytes(request.params),
        timeout_s=request.timeout_s,
        duration_s=request.duration_s,
        quotas=quotas,
        repeatable=spec.repeats(params),
        service=spec.service_of(params),
    )


class StageUse(NamedTuple):
    """A stage with its parameters, for `check_artifacts`."""

    name: str
    spec: KindSpec
    params: Mapping[str, Any]


def check_artifacts(stages: Iterable[StageUse]) -> None:
    """Check that an earlier stage makes the artifact that a stage takes.

    Raises:
        ValueError: none does. The message says what to put before it.
    """
    made = False
    for name, spec, params in stages:
        if spec.takes(params) and not made:
            maker = spec.prepared_by.kind if spec.prepared_by else ""
            what = f"put a stage of the kind {maker} before it" if maker else "let an earlier stage make one"
            raise ValueError(f"stage {name!r} ({spec.name}) takes an artifact, and no earlier stage makes one; {what}")
        made = made or spec.makes(params)
