"""Workflows prepared for use: a task's stages with their parameter types. A request is resolved in microseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from shared.api.elasticity import Formulation, formulated
from shared.api.plain import check_plain
from shared.api.requests import ActionRequest
from shared.api.tasks import StageTemplate, Task
from shared.messages.actions import StageWork
from shared.messages.batches import StagePlan
from shared.messages.kinds import FREE_FORM, KINDS, Params, default_units, needs_core, pool_of
from shared.runtime.errors import SHOWN_CHARS, BadRequest
from shared.runtime.validation import decoded, explain

_encoder = msgspec.json.Encoder()
_object = msgspec.json.Decoder(dict[str, Any])
_decoders = {kind: msgspec.json.Decoder(params) for kind, params in KINDS.items()}


@dataclass(frozen=True, slots=True)
class PreparedStage:
    """One stage, ready for a request's parameters."""

    template: StageTemplate
    params: type[Params]
    fields: frozenset[str]
    formulation: Formulation
    pool: str

    @classmethod
    def of(cls, template: StageTemplate) -> PreparedStage:
        return cls(template, KINDS[template.kind], template.fields, template.formulation, template.pool)

    def plan(self) -> StagePlan:
        """Return the stage's description for the planner."""
        fewest, _ = self.formulation.cost.get(self.pool.partition("@")[0], (0, 0))
        return StagePlan(
            name=self.template.name,
            pool=self.pool,
            units=fewest,
            worker_cost=self.template.worker_cost,
            timeout_s=self.template.timeout_s,
        )

    def check_core(self, params: Mapping[str, Any]) -> None:
        """Reject a stage that nodes would always reject.

        Raises:
            BadRequest: with these parameters it needs a core, and its units have none.
        """
        cost = self.formulation.cost
        if not _has_core(cost) and needs_core(self.template.kind, params):
            raise _coreless(f"stage {self.template.name!r} ({self.template.kind})", cost)

    def fill(self, given: dict[str, Any], own: dict[str, Any]) -> StageWork:
        """Return this stage with a request's parameters over its template's.

        Raises:
            BadRequest: a parameter is missing or invalid, or the stage needs a core and has none.
        """
        merged = self.template.merged(given, own)
        try:
            msgspec.convert(merged, self.params)
            _check_free_form(merged)
        except ValueError as error:
            why = explain(error, self.params) if isinstance(error, msgspec.ValidationError) else error
            raise BadRequest(what=f"params of stage {self.template.name!r} ({self.template.kind}): {why}") from error
        self.check_core(merged)
        return StageWork(
            name=self.template.name,
            kind=self.template.kind,
            pool=self.pool,
            cost=self.formulation.cost,
            timeout_s=self.template.timeout_s,
            params=_encoder.encode(merged),
            timeout_score=self.template.timeout_score,
            amounts=self.formulation.amounts,
            elasticity=self.formulation.elasticity,
            duration_s=self.template.duration_s,
            error_score=self.template.error_score or 0.0,
            exception_score=self.template.exception_score,
        )


@dataclass(frozen=True, slots=True)
class Workflow:
    """A task's prepared stages."""

    tenant: str
    task: str
    stages: tuple[PreparedStage, ...]
    budget_s: float
    timeout_score: float

    @classmethod
    def of(cls, tenant: str, name: str, task: Task) -> Workflow:
        stages = tuple(PreparedStage.of(stage) for stage in task.stages)
        return cls(tenant, name, stages, task.budget_s, task.timeout_score)

    def check(self) -> None:
        """Check that nodes would accept its requests.

        Raises:
            BadRequest: a stage needs a core and has none.
        """
        for stage in self.stages:
            stage.check_core(stage.template.params)

    def resolve(self, params: msgspec.Raw, stage_params: dict[str, msgspec.Raw]) -> tuple[StageWork, ...]:
        """Return every stage with a request's parameters.

        Raises:
            BadRequest: an unknown parameter or stage, or an invalid value.
        """
        given = _decode_object(params, "params")
        own = {name: _decode_object(raw, f"stage_params.{name[:SHOWN_CHARS]}") for name, raw in stage_params.items()}
        if unknown := given.keys() - frozenset[str]().union(*(stage.fields for stage in self.stages)):
            raise self._without(
                "parameter", min(unknown), [name for stage in self.stages for name in stage.params.__struct_fields__]
            )
        if unknown := own.keys() - {stage.template.name for stage in self.stages}:
            raise self._without("stage", min(unknown), [stage.template.name for stage in self.stages])
        return tuple(stage.fill(given, own.get(stage.template.name, {})) for stage in self.stages)

    def _without(self, what: str, name: str, known: Iterable[str]) -> BadRequest:
        listed, shown = ", ".join(f"`{each}`" for each in dict.fromkeys(known)), name[:SHOWN_CHARS]
        return BadRequest(what=f"task {self.task!r} has no {what} `{shown}`; the {what}s are {listed or 'none'}")


def _decode_object(raw: msgspec.Raw, name: str) -> dict[str, Any]:
    return decoded(_object, raw, name)


def _check_free_form(params: Mapping[str, Any]) -> None:
    for name in FREE_FORM:
        if name in params:
            check_plain(params[name], name)


def _has_core(cost: Mapping[str, tuple[int, int]]) -> bool:
    return cost.get("cores", (0, 0))[0] > 0


def _coreless(what: str, cost: Mapping[str, tuple[int, int]]) -> BadRequest:
    units = {name: fewest for name, (fewest, _) in cost.items()}
    return BadRequest(what=f"{what} runs in a sandbox and needs a core; its `units` are {units}")


def plain_action(request: ActionRequest) -> StageWork:
    """Return the one stage of an action outside any batch.

    Raises:
        BadRequest: unknown kind, or its parameters are invalid, or it needs a core and has none.
    """
    decoder = _decoders.get(request.kind)
    if decoder is None:
        raise BadRequest(what=f"unknown kind {request.kind[:SHOWN_CHARS]!r}; there are {', '.join(KINDS)}")
    params = decoded(decoder, request.params, f"params of {request.kind}")
    try:
        _check_free_form({name: getattr(params, name, None) for name in FREE_FORM})
    except ValueError as error:
        raise BadRequest(what=f"params of {request.kind}: {error}") from error
    units = request.units if request.units is not None else default_units(request.kind)
    pool = pool_of(units, request.node_class)
    try:
        formulation = formulated(units, request.elasticity, pool)
    except ValueError as error:
        raise BadRequest(what=str(error)) from error
    if not _has_core(formulation.cost) and needs_core(request.kind, msgspec.structs.asdict(params)):
        raise _coreless(request.kind, formulation.cost)
    return StageWork(
        name="run",
        kind=request.kind,
        pool=pool,
        cost=formulation.cost,
        timeout_s=request.timeout_s,
        params=bytes(request.params),
        amounts=formulation.amounts,
        elasticity=formulation.elasticity,
        duration_s=request.duration_s,
    )
