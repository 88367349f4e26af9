"""Tasks and their workflows, as trainers declare them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_type_hints

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, model_validator

from shared.api.plain import check_plain
from shared.messages.kinds import KINDS, default_units, pool_of

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""Letters, digits, dot, dash, underscore; at most 64."""


class Model(BaseModel):
    """Base of REST bodies: a misspelt field is an error, not a silence, and so is `false` where a number belongs."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False)


def _ascending(pair: tuple[int, int]) -> tuple[int, int]:
    if pair[0] > pair[1]:
        raise ValueError(f"[fewest, most]: {pair[0]} is more than {pair[1]}")
    return pair


Count = Annotated[int, Field(ge=0, le=1024)]
Whole = Annotated[int, Strict(False), Field(ge=1, le=1024)]
"""A key of a JSON object that is a number: JSON writes it as a string."""
Pair = Annotated[tuple[Count, Count], Strict(False), AfterValidator(_ascending)]
"""JSON has lists alone."""


class StageTemplate(Model):
    """One step of a workflow: what to run for each request, and what it may use."""

    name: Name
    kind: Annotated[str, Field(json_schema_extra={"enum": list(KINDS)})]
    """Action kind: code.run, code.asserts, code.stdio, math.verify, answer.match, python.function, sleep, noop."""
    params: dict[str, Any] = {}
    """Parameters all requests share; a request's own are laid over them."""
    units: dict[Name, Count | Pair] | None = None
    """Resource -> units an action takes, or [fewest, most]. Default: one core (sleep, noop: one slot)."""
    elasticity: dict[Whole, Annotated[float, Field(gt=0, le=1)]] = {}
    """Units -> efficiency E(m): with m units it takes T / (E(m) * m). Empty: it does not scale."""
    node_class: Name = "default"
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """Execution limit. Queueing does not count."""
    timeout_score: float | None = None
    """Score of a request that meets this stage's limit. Default: the task's."""
    worker_cost: Annotated[float, Field(gt=0)] = 1.0
    """C_j: what one worker of this stage costs, in any unit common to the workflow."""

    @property
    def fields(self) -> frozenset[str]:
        """Parameters its kind has."""
        return frozenset(KINDS[self.kind].__struct_fields__)

    @property
    def cost(self) -> dict[str, tuple[int, int]]:
        """Resource -> (fewest, most) units."""
        units = self.units if self.units is not None else default_units(self.kind)
        return {name: (value, value) if isinstance(value, int) else value for name, value in units.items()}

    @property
    def pool(self) -> str:
        """Where its actions queue, `<resource>@<node class>`."""
        return pool_of(self.cost, self.node_class)

    def merged(self, given: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """A request's parameters over the template's: those its kind has, then those meant for this stage alone."""
        fields = self.fields
        return {**self.params, **{name: value for name, value in given.items() if name in fields}, **own}

    @model_validator(mode="after")
    def _known(self) -> StageTemplate:
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind {self.kind!r}; there are {', '.join(KINDS)}")
        unknown = self.params.keys() - set(KINDS[self.kind].__struct_fields__)
        if unknown:
            raise ValueError(f"{self.kind} has no parameter {min(unknown)!r}")
        types = get_type_hints(KINDS[self.kind], include_extras=True)
        for name, value in self.params.items():
            check_plain(value, f"params.{name}")
            try:
                msgspec.convert(value, types[name])
            except msgspec.ValidationError as error:
                raise ValueError(f"params.{name}: {error}") from error
        return self


class Task(Model):
    """One RL training job: its workflow and what delay it tolerates."""

    stages: Annotated[list[StageTemplate], Field(min_length=1, max_length=16)]
    """Run in order; a request ends early at a stage that fails."""
    batch_size: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    """Reward requests of one batch; None: batches end when they are sealed."""
    max_extra_delay_s: Annotated[float, Field(ge=0, le=3600)] = 2.0
    """D: seconds a batch may be complete later than with endless resources."""
    trainer_resources: Annotated[float, Field(ge=0)] = 1.0
    """Rt: what waits while the trainer waits, e.g. its number of GPUs."""
    timeout_score: float = 0.0
    """Score of a request that met a stage's time limit, where the stage names none of its own."""
    budget_s: Annotated[float, Field(gt=0, le=86_400)] = 3600.0
    """Seconds after which nobody needs a request's answer any more."""

    @model_validator(mode="after")
    def _distinct(self) -> Task:
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise ValueError("stage names must differ")
        return self


class TaskView(Task):
    """A task as it stands."""

    name: str
    tenant: str
    version: int
    """Counts changes. Open batches keep the version they were opened with."""


class TaskList(Model):
    """All tasks of a tenant."""

    tasks: list[TaskView]
