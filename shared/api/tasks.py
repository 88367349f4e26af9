"""Bodies of `/v1/tasks`: a task and its workflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Strict, Tag, model_validator
from pydantic_core import PydanticCustomError

from shared.kinds.formulation import MOST_AMOUNT, MOST_DURATION_S, MOST_QUOTAS, MOST_UNITS, Learned
from shared.kinds.plain import check_plain
from shared.kinds.registry import all_kinds
from shared.kinds.spec import KindSpec
from shared.kinds.staging import StageForm
from shared.runtime.patterns import NAME
from shared.runtime.validation import FORM, UNKNOWN_FIELD, explain, unknown_field

Name = Annotated[str, Field(pattern=NAME)]
"""Letters, digits, dot, dash, underscore; at most 64."""


class Model(BaseModel):
    """Base of REST bodies that rejects unknown fields, and values of another type (`false` for a number)."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_fields(cls, given: Any) -> Any:
        """Reject an unknown field with the list of the fields that there are."""
        unknown = given.keys() - cls.model_fields.keys() if isinstance(given, dict) else ()
        if unknown:
            raise PydanticCustomError(UNKNOWN_FIELD, "{why}", {"why": unknown_field(min(unknown), cls.model_fields)})
        return given


Count = Annotated[int, Field(ge=0, le=MOST_UNITS)]
Whole = Annotated[int, Strict(False), Field(ge=1, le=MOST_UNITS)]
"""A number as the key of a JSON object, where it is a string."""
Pair = Annotated[tuple[Count, Count], Strict(False)]
"""A list in JSON."""
Share = Annotated[float, Field(ge=0, le=1)]


class AnyOf(Model):
    """A set of amounts."""

    any_of: Annotated[list[Annotated[int, Field(ge=1, le=MOST_UNITS)]], Field(min_length=1, max_length=MOST_UNITS)]


def _amount_form(value: Any) -> str | None:
    """Return the form of an amount, so that an error is about this form alone."""
    forms: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (int, "fixed"),
        ((list, tuple), "range"),
        ((dict, AnyOf), "set"),
    )
    return next((FORM.format(name) for types, name in forms if isinstance(value, types)), None)


Amount = Annotated[
    Annotated[Count, Tag(FORM.format("fixed"))]
    | Annotated[Pair, Tag(FORM.format("range"))]
    | Annotated[AnyOf, Tag(FORM.format("set"))],
    Discriminator(
        _amount_form,
        custom_error_type="amount_unknown",
        custom_error_message='must be a number of units, [fewest, most], or {"any_of": [amounts]}',
    ),
]


class Amdahl(Model):
    """E(m) = 1 / (serial * m + 1 - serial)."""

    model: Literal["amdahl"]
    serial: Share
    """Part of T that more units do not shorten."""


class Power(Model):
    """m units are m ** exponent times as fast as one."""

    model: Literal["power"]
    exponent: Share


def _form(value: Any) -> str:
    """Return the form of an elasticity, so that an error is about this form alone."""
    model = value.get("model", "table") if isinstance(value, Mapping) else getattr(value, "model", "table")
    return FORM.format(model)


Scaling = Annotated[
    Annotated[dict[Whole, Annotated[float, Field(gt=0, le=1)]], Tag(FORM.format("table"))]
    | Annotated[Amdahl, Tag(FORM.format("amdahl"))]
    | Annotated[Power, Tag(FORM.format("power"))],
    Discriminator(
        _form,
        custom_error_type="elasticity_unknown",
        custom_error_message=(
            'must be a table like {"1": 1.0, "4": 0.8}, {"model": "amdahl", "serial": s}, '
            'or {"model": "power", "exponent": e}'
        ),
    ),
]


def _list_kinds(schema: dict[str, Any]) -> None:
    schema["enum"] = list(all_kinds().plain)


class StageTemplate(Model):
    """One step of a workflow: the action for each request, and its resources."""

    name: Name
    kind: Annotated[str, Field(json_schema_extra=_list_kinds)]
    """Action kind: code.run, code.asserts, code.stdio, math.verify, answer.match, python.function, sleep, noop."""
    params: dict[str, Any] = {}
    """Parameters of all requests. A request's own parameters override them."""
    units: dict[Name, Amount] | None = None
    """Resource -> units, [fewest, most], or for the pool's resource {"any_of": [...]}. Default: one core (sleep, noop:
    one slot)."""
    elasticity: Scaling = {}
    """Units -> efficiency E(m), or a model of it. With m units the action takes T / (E(m) * m). Empty: more units do
    not help."""
    duration_s: Annotated[float, Field(gt=0, le=MOST_DURATION_S)] | None = None
    """T, seconds on one unit. Default: learned from earlier actions of this stage."""
    quotas: Annotated[
        dict[Name, Annotated[float, Field(gt=0, le=MOST_AMOUNT)] | Learned],
        Field(max_length=MOST_QUOTAS, examples=[{"search": 1}, {"judge": 1, "judge-tokens": "learned"}]),
    ] = {}
    """Quota (`PUT /v1/quotas/{quota}`) -> amount that it takes, together with its units or not at all. "learned": what
    earlier actions of this task have used, as far as known."""
    node_class: Name = "default"
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """Execution limit. Queueing does not count."""
    timeout_score: float | None = None
    """Score of a request that reaches this stage's time limit. Default: the task's."""
    error_score: float | None = None
    """Score of a request whose sample ends the process of this stage's `python.function` after the call has begun: by
    an exit, a BaseException, a signal or the memory limit. Default: 0. Other kinds score such an end 0."""
    exception_score: float | None = None
    """Score of a request for which this stage's `python.function` raises an ordinary exception. Default: none; the
    request is refused and masked."""
    worker_cost: Annotated[float, Field(gt=0)] = 1.0
    """C_j: cost of one worker of this stage, in any unit common to the workflow."""

    @property
    def spec(self) -> KindSpec:
        """Declaration of its kind."""
        return all_kinds().kind(self.kind)

    @property
    def fields(self) -> frozenset[str]:
        """Parameters of its kind."""
        return frozenset(self.spec.fields)

    @property
    def form(self) -> StageForm:
        """Pool, cost and elasticity."""
        scaling = self.elasticity if isinstance(self.elasticity, dict) else self.elasticity.model_dump()
        return StageForm.of(self.spec, self.units, scaling, self.node_class)

    @property
    def pool(self) -> str:
        """Pool in which its actions queue, `<resource>@<node class>`."""
        return self.form.pool

    @property
    def cost(self) -> dict[str, tuple[int, int]]:
        """Resource -> (fewest, most) units."""
        return self.form.formulation.cost

    def merged(self, given: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the template's parameters, overridden by `given` (those that its kind has), then by `own`."""
        fields = self.spec.fields
        return {**self.params, **{name: value for name, value in given.items() if name in fields}, **own}

    @model_validator(mode="after")
    def _known(self) -> StageTemplate:
        spec = self.spec  # raises if there is no such kind
        if unknown := self.params.keys() - set(spec.fields):
            raise ValueError(f"params of {self.kind}: {unknown_field(min(unknown), spec.fields)}")
        self._check_params(spec)
        _ = self.form  # raises if it is invalid
        return self

    def _check_params(self, spec: KindSpec) -> None:
        types = get_type_hints(spec.params, include_extras=True)
        for name, value in self.params.items():
            check_plain(value, f"params.{name}")
            try:
                msgspec.convert(value, types[name])
            except msgspec.ValidationError as error:
                raise ValueError(f"params.{name}: {explain(error, types[name])}") from error
        if spec.check is not None:
            spec.check(self.params)


class Task(Model):
    """One RL training job: its workflow and its tolerated delay."""

    stages: Annotated[list[StageTemplate], Field(min_length=1, max_length=16)]
    """Stages in order. A request ends early at a stage that fails."""
    batch_size: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    """Reward requests of one batch; null: a batch ends when it is sealed."""
    max_extra_delay_s: Annotated[float, Field(ge=0, le=3600)] = 2.0
    """D: tolerated extra delay of a batch, seconds, compared with unlimited resources."""
    trainer_resources: Annotated[float, Field(ge=0)] = 1.0
    """Rt: resources that wait while the trainer waits, for example its number of GPUs."""
    timeout_score: float = 0.0
    """Score of a request that reaches a stage's time limit, unless the stage has its own."""
    budget_s: Annotated[float, Field(gt=0, le=86_400)] = 3600.0
    """Seconds after which the answer of a request is not needed."""

    @model_validator(mode="after")
    def _distinct(self) -> Task:
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise ValueError("stage names must differ")
        return self


class TaskView(Task):
    """A declared task."""

    name: str
    tenant: str
    version: int
    """Number of changes. An open batch keeps the version with which it was opened."""


class TaskList(Model):
    """All tasks of a tenant."""

    tasks: list[TaskView]
