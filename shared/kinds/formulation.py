"""Cost and elasticity of an action (ARL-Tangram §4.1): translation of trainers' forms into those of the journal.

Stages of tasks, plain actions and actions of trajectories have the same forms:

    units       resource -> 2 (fixed), [1, 8] (fewest and most), {"any_of": [1, 2, 4, 8]} (only these amounts)
    elasticity  {"1": 1.0, "4": 0.8} (a table of E(m)), {"model": "amdahl", "serial": 0.05},
                {"model": "power", "exponent": 0.9}
    duration_s  seconds on one unit
    quotas      quota -> amount, or "learned"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol

import msgspec

from shared.policy.model.elasticity import LEAST_EFFICIENCY, Elasticity, by_table
from shared.policy.model.quotas import LEARNED
from shared.runtime.patterns import NAME, whole
from shared.runtime.validation import explain

MOST_UNITS: Final = 1024
MOST_DURATION_S: Final = 86_400.0
MOST_AMOUNT: Final = 1e9
"""Most that one action takes of a quota."""
MOST_QUOTAS: Final = 8
"""Most quotas from which one action takes."""

Name = Annotated[str, msgspec.Meta(pattern=whole(NAME))]
"""Letters, digits, dot, dash, underscore; at most 64."""


class AmountSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A set of amounts: `{"any_of": [1, 2, 4, 8]}`."""

    any_of: list[int]


# The union's members have no bounds, because msgspec 0.22 confuses them. `formulated` checks them.
Units = Mapping[Name, int | list[int] | AmountSet]
"""Resource -> units, in bodies of hot routes."""
Scaling = Annotated[
    Mapping[str, float | str],
    msgspec.Meta(examples=[{"1": 1.0, "4": 0.8}, {"model": "amdahl", "serial": 0.05}]),
]
"""Elasticity, in bodies of hot routes."""
Duration = Annotated[float, msgspec.Meta(gt=0, le=MOST_DURATION_S)]
Learned = Literal["learned"]
"""The mesh reserves what earlier actions of this task (or kind) and tenant have used."""
QuotaAmounts = Annotated[
    Mapping[Name, float | Learned],
    msgspec.Meta(max_length=MOST_QUOTAS, examples=[{"search": 1}, {"judge": 1, "judge-tokens": "learned"}]),
]
"""Quota -> amount, in bodies of hot routes. `amounts_of` checks the bounds."""


class Choice(Protocol):
    """A set of amounts, read by msgspec or by pydantic."""

    @property
    def any_of(self) -> Sequence[int]: ...


Amount = int | Sequence[int] | Choice


class Formulation(NamedTuple):
    """Cost and elasticity as `StageWork` stores them, under the same names."""

    cost: dict[str, tuple[int, int]]
    """Resource -> (fewest, most) units."""
    amounts: tuple[int, ...]
    """Allowed amounts of the pool's resource, ascending; empty if every amount of the range is allowed."""
    elasticity: Elasticity | None
    """None: more units do not help."""


class _Amdahl(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="model", tag="amdahl"):
    serial: Annotated[float, msgspec.Meta(ge=0, le=1)]


class _Power(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="model", tag="power"):
    exponent: Annotated[float, msgspec.Meta(ge=0, le=1)]


_Table = dict[
    Annotated[int, msgspec.Meta(ge=1, le=MOST_UNITS)], Annotated[float, msgspec.Meta(ge=LEAST_EFFICIENCY, le=1)]
]


def formulated(units: Mapping[str, Amount], scaling: Mapping[Any, Any], pool: str) -> Formulation:
    """Return cost and elasticity of work that queues in `pool` (`KindSpec.pool`).

    Raises:
        ValueError: units that cannot be granted, or an invalid elasticity. The message has the allowed forms.
    """
    cost: dict[str, tuple[int, int]] = {}
    amounts: tuple[int, ...] = ()
    for resource, amount in units.items():
        if isinstance(amount, int):
            cost[resource] = _bounds(resource, amount, amount)
        elif isinstance(amount, Sequence):
            if len(amount) != 2:
                raise ValueError(f"units.{resource}: a list is [fewest, most]; a set of amounts is {{'any_of': [...]}}")
            cost[resource] = _bounds(resource, *amount)
        else:
            allowed = _allowed(resource, amount, pool.partition("@")[0])
            cost[resource] = allowed[0], allowed[-1]
            amounts = allowed if len(allowed) > 1 else ()
    elasticity, key = elasticity_of(scaling), pool.partition("@")[0]
    fewest, most = cost.get(key, (0, 0))
    if elasticity is not None and fewest < 1 <= most:
        raise ValueError(f"units.{key}: what scales needs one at least, and may have up to {most}; write [1, {most}]")
    return Formulation(cost, amounts, elasticity)


def amounts_of(quotas: Mapping[str, float | str]) -> dict[str, float]:
    """Return quota -> amount as `StageWork` stores it; `LEARNED` for one that is left to the mesh.

    Raises:
        ValueError: an amount is not positive, or too large.
    """
    for name, amount in quotas.items():
        if not isinstance(amount, str) and not 0 < amount <= MOST_AMOUNT:
            raise ValueError(f'quotas.{name}: {amount} is not above 0 and at most {MOST_AMOUNT:g}; or write "learned"')
    return {name: LEARNED if isinstance(amount, str) else amount for name, amount in quotas.items()}


def _bounds(resource: str, fewest: int, most: int) -> tuple[int, int]:
    if fewest > most:
        raise ValueError(f"units.{resource}: [fewest, most]: {fewest} is more than {most}")
    if fewest < 0 or most > MOST_UNITS:
        raise ValueError(f"units.{resource}: {fewest if fewest < 0 else most} is not from 0 to {MOST_UNITS}")
    return fewest, most


def _allowed(resource: str, choice: Choice, key: str) -> tuple[int, ...]:
    if resource != key:
        raise ValueError(f"units.{resource}: a set of amounts is for {key} alone; write one amount")
    allowed = sorted(set(choice.any_of))
    if not allowed or allowed[0] < 1 or allowed[-1] > MOST_UNITS:
        raise ValueError(f"units.{resource}: any_of lists amounts from 1 to {MOST_UNITS}")
    return tuple(allowed)


def elasticity_of(scaling: Mapping[Any, Any]) -> Elasticity | None:
    """Return E(m) of a table or a named model; None for an empty table.

    Raises:
        ValueError: it is neither.
    """
    if not scaling:
        return None
    form: Any = _Amdahl | _Power if "model" in scaling else _Table
    try:
        model = msgspec.convert(scaling, form, str_keys=form is _Table)
    except msgspec.ValidationError as error:
        raise ValueError(
            f'elasticity: {explain(error, form)}. Write units -> efficiency as {{"1": 1.0, "4": 0.8}}, or '
            '{"model": "amdahl", "serial": 0..1}, or {"model": "power", "exponent": 0..1}'
        ) from error
    if isinstance(model, dict):
        return by_table(model)
    if isinstance(model, _Amdahl):
        return Elasticity("amdahl", serial=model.serial)
    return Elasticity("power", exponent=model.exponent)
