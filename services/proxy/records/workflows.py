"""Workflows prepared for use: a task's stages with their parameter types. A request is resolved in microseconds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from shared.api.requests import ActionRequest
from shared.api.tasks import StageTemplate, Task
from shared.kinds.formulation import amounts_of
from shared.kinds.registry import UnknownKind, all_kinds
from shared.kinds.spec import KindSpec, Preparation
from shared.kinds.staging import StageForm, StageUse, check_artifacts, check_free_form, single_stage
from shared.messages.actions import StageWork
from shared.messages.batches import StagePlan
from shared.policy.model.quotas import LEARNED
from shared.runtime.errors import SHOWN_CHARS, BadRequest
from shared.runtime.validation import decoded, explain

_encoder = msgspec.json.Encoder()
_object = msgspec.json.Decoder(dict[str, Any])
_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class PreparedStage:
    """One stage, ready for a request's parameters."""

    template: StageTemplate
    form: StageForm
    fields: frozenset[str]
    places: Mapping[str, frozenset[str]]
    """Parameter of the template -> places in it that a request's `values` fill."""

    @classmethod
    def of(cls, template: StageTemplate) -> PreparedStage:
        places = template.spec.places
        return cls(template, template.form, template.fields, places(template.params) if places else {})

    @property
    def learned(self) -> frozenset[str]:
        """Quotas whose amounts the mesh learns."""
        return frozenset(name for name, amount in amounts_of(self.template.quotas).items() if amount == LEARNED)

    @property
    def service(self) -> str:
        """Model service of the template; empty: the kind uses none, or each request names its own."""
        given = self.template.params.get(self.form.spec.service_by)
        return given if isinstance(given, str) else ""

    def plan(self, learned: Mapping[str, float]) -> StagePlan:
        """Return the stage's description for the planner. `learned`: present amounts of quotas, at least of those whose
        amounts the mesh learns.
        """
        return StagePlan(
            name=self.template.name,
            pool=self.form.pool,
            units=self.form.fewest,
            worker_cost=self.template.worker_cost,
            timeout_s=self.template.timeout_s,
            quotas={
                name: learned[name] if amount == LEARNED else amount
                for name, amount in amounts_of(self.template.quotas).items()
            },
            service=self.service,
        )

    def check_units(self, params: Mapping[str, Any]) -> None:
        """Reject a stage that nodes would always reject.

        Raises:
            BadRequest: with these parameters its units do not suffice.
        """
        try:
            self.form.check_units(params, f"stage {self.template.name!r} ({self.template.kind})")
        except ValueError as error:
            raise BadRequest(what=str(error)) from error

    def fill(self, given: dict[str, Any], own: dict[str, Any]) -> StageWork:
        """Return this stage with a request's parameters over its template's.

        Raises:
            BadRequest: a parameter is missing or invalid, or its units do not suffice.
        """
        merged, spec = self.template.merged(given, own), self.form.spec
        try:
            msgspec.convert(merged, spec.params)
            check_free_form(spec, merged)
        except ValueError as error:
            why = explain(error, spec.params) if isinstance(error, msgspec.ValidationError) else error
            raise BadRequest(what=f"params of stage {self.template.name!r} ({self.template.kind}): {why}") from error
        if self.places:
            self._check_places(given.keys() | own.keys(), merged.get("values", {}))
        self.check_units(merged)
        return self.form.stage(
            _encoder.encode(merged),
            name=self.template.name,
            timeout_s=self.template.timeout_s,
            timeout_score=self.template.timeout_score,
            duration_s=self.template.duration_s,
            error_score=self.template.error_score or 0.0,
            exception_score=self.template.exception_score,
            quotas=amounts_of(self.template.quotas),
            repeatable=spec.repeats(merged),
            service=spec.service_of(merged),
        )

    def _check_places(self, given: Collection[str], values: Collection[str]) -> None:
        """Reject a request that would send a place of the template as it is: a judge would score that text."""
        for name, places in self.places.items():
            if name not in given and (missing := places - set(values)):
                shown = min(missing)
                raise BadRequest(
                    what=f"params of stage {self.template.name!r} ({self.template.kind}): `{name}` has the place "
                    f'{{{shown}}} and `values` has no text for it; send "params": {{"values": {{"{shown}": "..."}}}}'
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
            BadRequest: the units of a stage do not suffice.
        """
        for stage in self.stages:
            stage.check_units(stage.template.params)
        _check_artifacts(_possible(stage) for stage in self.stages)

    def resolve(self, params: msgspec.Raw, stage_params: dict[str, msgspec.Raw]) -> tuple[StageWork, ...]:
        """Return every stage with a request's parameters.

        Raises:
            BadRequest: an unknown parameter or stage, or an invalid value.
        """
        given = _decode_object(params, "params")
        own = {name: _decode_object(raw, f"stage_params.{name[:SHOWN_CHARS]}") for name, raw in stage_params.items()}
        if unknown := given.keys() - frozenset[str]().union(*(stage.fields for stage in self.stages)):
            raise self._without(
                "parameter", min(unknown), [name for stage in self.stages for name in stage.form.spec.fields]
            )
        if unknown := own.keys() - {stage.template.name for stage in self.stages}:
            raise self._without("stage", min(unknown), [stage.template.name for stage in self.stages])
        filled = tuple(stage.fill(given, own.get(stage.template.name, {})) for stage in self.stages)
        if any(stage.form.spec.takes_artifact is not None for stage in self.stages):
            uses = (
                StageUse(name, stage.form.spec, stage.template.merged(given, own.get(name, {})))
                for stage in self.stages
                for name in (stage.template.name,)
            )
            _check_artifacts(uses)
        return filled

    def _without(self, what: str, name: str, known: Iterable[str]) -> BadRequest:
        listed, shown = ", ".join(f"`{each}`" for each in dict.fromkeys(known)), name[:SHOWN_CHARS]
        return BadRequest(what=f"task {self.task!r} has no {what} `{shown}`; the {what}s are {listed or 'none'}")


def _possible(stage: PreparedStage) -> StageUse:
    """Return a stage as its template says. An artifact that a request's parameter decides is taken to be made."""
    spec, params = stage.form.spec, stage.template.params
    if spec.makes_artifact is not None and spec.makes_artifact.parameter:
        params = {**params, spec.makes_artifact.parameter: params.get(spec.makes_artifact.parameter, "")}
    return StageUse(stage.template.name, spec, params)


def _decode_object(raw: msgspec.Raw, name: str) -> dict[str, Any]:
    return decoded(_object, raw, name)


def plain_stages(request: ActionRequest) -> tuple[StageWork, ...]:
    """Return the stages of an action outside any batch: one, or two if another stage prepares it.

    Raises:
        BadRequest: unknown kind, or its parameters are invalid, or it needs a unit or an artifact that it lacks.
    """
    try:
        spec = all_kinds().kind(request.kind)
    except UnknownKind as error:
        raise BadRequest(what=str(error)) from error
    if spec.prepared_by is not None:
        return _prepared(spec, spec.prepared_by, request)
    return (single_stage(spec, request, request.node_class),)


def _prepared(spec: KindSpec, preparation: Preparation, request: ActionRequest) -> tuple[StageWork, ...]:
    """Return both stages of an action that is prepared by another. Each gets the parameters of its kind; units,
    elasticity, duration and quotas of the request are those of its own.
    """
    decoded(msgspec.json.Decoder(preparation.params), request.params, f"params of {spec.name}")
    given: dict[str, msgspec.Raw] = _raw_object.decode(request.params)
    first = all_kinds().kind(preparation.kind)
    early = {name: value for name, value in given.items() if name in first.fields}
    late = {name: value for name, value in given.items() if name not in first.fields}
    before = msgspec.structs.replace(request, params=_raw(early), units=None, elasticity={}, duration_s=None, quotas={})
    own = msgspec.structs.replace(request, params=_raw(late))
    return (
        msgspec.structs.replace(single_stage(first, before, request.node_class), name=preparation.stage),
        single_stage(spec, own, request.node_class, prepared=True),
    )


def _raw(values: dict[str, msgspec.Raw]) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(values))


def _check_artifacts(stages: Iterable[StageUse]) -> None:
    try:
        check_artifacts(stages)
    except ValueError as error:
        raise BadRequest(what=str(error)) from error
